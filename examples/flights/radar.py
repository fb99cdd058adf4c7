"""A second group, read by the unmodified official Python client (rocketmq-python-client on PyPI).

`python -m examples.flights.radar ENDPOINTS`; SIGTERM ends it.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from rocketmq import ClientConfiguration, Credentials, FilterExpression, SimpleConsumer

from examples.flights.data import TOPIC
from examples.flights.groups import RADAR, RADAR_HOLD_S

BATCH = 32
ACKS_AT_ONCE = 8


def main(endpoints: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    consumer = SimpleConsumer(ClientConfiguration(endpoints, Credentials()), RADAR, {TOPIC: FilterExpression()}, 5)
    consumer.startup()
    try:
        with ThreadPoolExecutor(ACKS_AT_ONCE) as pool:
            while True:
                list(pool.map(consumer.ack, consumer.receive(BATCH, RADAR_HOLD_S)))
    finally:
        consumer.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
