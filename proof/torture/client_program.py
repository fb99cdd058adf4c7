"""A client that can be killed: python -m proof.torture.client_program KIND ENDPOINT TOPIC GROUP NAME.

It sends, receives and acks without end, by popclient or by the official Python client. A JSON line on stdout says what
is begun, another one how it ended; what has begun when the process is killed has an unknown outcome.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tests.support.load import digest

HOLD_S = 2
WAIT_S = 2
TIMEOUT_S = 5  # with the wait it must be longer than the shortest poll, 5 s


class Got(NamedTuple):
    """A message as each of the clients gives it."""

    message_id: str
    body: bytes
    properties: dict[str, str]
    attempt: int
    handle: str
    original: Any


class Client(Protocol):
    """What both clients can do; every failure raises."""

    def send(self, body: str) -> str: ...
    def receive(self) -> list[Got]: ...
    def ack(self, got: Got) -> None: ...


class PopClient:
    """The client of this project."""

    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        from popclient import ClientConfig, Producer, SimpleConsumer

        config = ClientConfig(endpoint, request_timeout=TIMEOUT_S)
        self._topic = topic
        self._producer = Producer(config, topic)
        self._consumer = SimpleConsumer(config, group, topic, invisible_duration=HOLD_S, await_duration=WAIT_S)

    def send(self, body: str) -> str:
        return self._producer.send(self._topic, body).message_id

    def receive(self) -> list[Got]:
        return [
            Got(each.message_id, each.body, dict(each.properties), each.delivery_attempt, each.receipt_handle, each)
            for each in self._consumer.receive(8)
        ]

    def ack(self, got: Got) -> None:
        self._consumer.ack(got.original)


class OfficialClient:
    """RocketMQ's Python client."""

    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

        self._topic = topic
        self._message = Message
        configuration = ClientConfiguration(endpoint, Credentials(), "", TIMEOUT_S)
        self._producer = Producer(configuration, [topic], tls_enable=False)
        self._consumer = SimpleConsumer(
            configuration, group, {topic: FilterExpression()}, await_duration=WAIT_S, tls_enable=False
        )
        self._producer.startup()
        self._consumer.startup()

    def send(self, body: str) -> str:
        message = self._message()
        message.topic = self._topic
        message.body = body.encode()
        message_id: str = self._producer.send(message).message_id
        return message_id

    def receive(self) -> list[Got]:
        return [
            Got(
                each.message_id, each.body, dict(each.properties), each.delivery_attempt, each.receipt_handle, each
            )
            for each in self._consumer.receive(8, HOLD_S)
        ]  # fmt: skip

    def ack(self, got: Got) -> None:
        self._consumer.ack(got.original)


KINDS: dict[str, Callable[[str, str, str], Client]] = {"popclient": PopClient, "official": OfficialClient}


class Program:
    """Works until it is killed, and says what it does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count(1)

    def run(self, open_client: Callable[[], Client]) -> None:
        client = None
        while client is None:
            try:
                client = open_client()
            except Exception:  # noqa: BLE001 - no server may be there yet
                time.sleep(0.1)
        for number in itertools.count(1):
            for part in range(4):
                self._send(client, f"{self._name} {number} {part}")
            self._receive(client)

    def _send(self, client: Client, body: str) -> None:
        self._done("Send", lambda: {"message_id": client.send(body)}, digest=digest(body.encode(), {}))

    def _receive(self, client: Client) -> None:
        held: list[Got] = []

        def receive() -> dict[str, Any]:
            held.extend(client.receive())
            return {
                "deliveries": [
                    {
                        "message_id": each.message_id,
                        "digest": digest(each.body, each.properties),
                        "attempt": each.attempt,
                        "handle": each.handle,
                    }
                    for each in held
                ]
            }

        self._done("Receive", receive)
        for each in held:
            self._ack(client, each)

    def _ack(self, client: Client, got: Got) -> None:
        def ack() -> dict[str, Any]:
            client.ack(got)
            return {}

        self._done("Ack", ack, message_id=got.message_id, handle=got.handle)

    def _done(self, call: str, do: Callable[[], dict[str, Any]], **said: Any) -> None:
        number, invoked_ms = next(self._numbers), time.monotonic() * 1_000
        _say(number=number, call=call, invoked_ms=invoked_ms, **said)
        try:
            result = do()
        except Exception as error:  # noqa: BLE001 - whatever a client raises, it may have happened
            _say(number=number, completed_ms=time.monotonic() * 1_000, error=repr(error)[:200])
            time.sleep(0.02)
        else:
            _say(number=number, completed_ms=time.monotonic() * 1_000, **result)


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    kind, endpoint, topic, group, name = sys.argv[1:]
    Program(name).run(lambda: KINDS[kind](endpoint, topic, group))


if __name__ == "__main__":
    main()
