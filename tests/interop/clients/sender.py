"""A producer of the official Python client: sends three messages to topic `orders` of the server named, and ends.

It sends when the server's settings have arrived. Its metrics are sent at the end of the process.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from rocketmq import ClientConfiguration, Credentials, Message, Producer


def main() -> None:
    producer = Producer(ClientConfiguration(sys.argv[1], Credentials()), ("orders",))
    metrics, has_settings = producer.client_metrics, threading.Event()
    reset = metrics.reset_metrics

    def reset_and_tell(metric: Any) -> None:
        reset(metric)
        has_settings.set()

    metrics.reset_metrics = reset_and_tell
    producer.startup()
    assert has_settings.wait(30)
    for _ in range(3):
        message = Message()
        message.topic = "orders"
        message.body = b"x"
        producer.send(message)
    producer.shutdown()


main()
