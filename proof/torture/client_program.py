"""A client that can be killed: python -m proof.torture.client_program KIND SCENE ENDPOINT TOPIC GROUP NAME …

In the scene of lite topics the last words name those that it gets. It sends and consumes without end, by popclient or
by the official Python client; those of Java and Go are programs of
their own (`tests/interop/java/WorkingClient.java`, `tests/interop/go/working.go`), which say and do the same. A JSON
line on stdout says what is begun, another one how it ended; what has begun when the process is killed has an unknown
outcome.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from popclient import ClientConfig, LitePushConsumer, Producer, PushConsumer
from proof.history.scenes import Scene
from proof.torture.lite import lite_topics_of
from proof.torture.program_clients import CLIENTS, TIMEOUT_S, Client, Got, LiteClient, PopProducer, Sending
from proof.torture.program_lines import PAUSE_S, Lines, now_ms
from proof.torture.push_ears import Ear
from proof.torture.queue_programs import MemberProgram, PullProgram
from tests.support.workload import digest

MESSAGE_GROUPS = 2  # of each program
DUE_WITHIN_S = 3  # all clients are given whole seconds
BETWEEN_SENDS_S = 0.02  # of a program whose consumer is called by itself


class Program(Protocol):
    def run(self) -> None:
        """Without end."""


class Sender:
    """Sends as its scene does."""

    def __init__(self, client: Sending, lines: Lines, scene: Scene, name: str) -> None:
        self._client = client
        self._lines = lines
        self._name = name
        self._chance = random.Random(name)
        self._numbers = itertools.count(1)
        sending = {
            Scene.FIFO: self._send_in_order,
            Scene.LITE: self._send_to_lite_topic,
            Scene.DELAY: self._send_later,
            Scene.TRANSACTIONS: self._send_half,
        }
        self._send = sending.get(scene, self._send_message)

    def send(self) -> None:
        self._send(f"{self._name} {next(self._numbers)}")

    def _send_in_order(self, body: str) -> None:
        self._send_message(body, f"{self._name}-group-{self._chance.randrange(MESSAGE_GROUPS)}")

    def _send_to_lite_topic(self, body: str) -> None:
        self._send_message(body, self._chance.choice(lite_topics_of("program")))

    def _send_later(self, body: str) -> None:
        due_s = int(time.time()) + self._chance.randrange(DUE_WITHIN_S)
        self._send_message(body, due_s=due_s, due_ms=due_s * 1_000 - time.time() * 1_000 + now_ms())

    def _send_message(self, body: str, message_group: str = "", due_s: int = 0, **said: Any) -> None:
        if message_group:
            said["message_group"] = message_group
        self._lines.call(
            "Send",
            lambda: {"message_id": self._client.send(body, message_group, due_s)},
            digest=digest(body.encode(), {}),
            **said,
        )

    def _send_half(self, body: str) -> None:
        halves = []

        def send() -> dict[str, Any]:
            halves.append(self._client.send_half(body))
            return {"message_id": halves[0].message_id}

        self._lines.call("HalfSend", send, digest=digest(body.encode(), {}))
        for half in halves:
            commits = self._chance.random() < 0.7
            decide = half.commit if commits else half.roll_back
            self._lines.call("EndTransaction", decide, message_id=half.message_id, commits=commits)


class ReceivingProgram:
    """Sends, receives and acks, in turn."""

    def __init__(self, client: Client, lines: Lines, scene: Scene, name: str) -> None:
        self._client = client
        self._lines = lines
        self._sender = Sender(client, lines, scene, name)
        self._client_of = {"client": name} if scene is Scene.LITE else {}

    def run(self) -> None:
        while True:
            for _ in range(4):
                self._sender.send()
            self._receive()

    def _receive(self) -> None:
        held: list[Got] = []

        def receive() -> dict[str, Any]:
            held.extend(self._client.receive())
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

        client, held_ms = self._client, self._client.surely_held_s * 1_000
        self._lines.call("Receive", receive, held_ms=held_ms, may_hide=client.receives_ahead, **self._client_of)
        for each in held:
            self._lines.call("Ack", partial(client.ack, each), message_id=each.message_id, handle=each.handle)


class PushProgram:
    """Sends; its consumer calls a listener meanwhile."""

    def __init__(self, sender: Sender, start: Callable[[], None]) -> None:
        self._sender = sender
        self._start = start

    def run(self) -> None:
        self._start()
        while True:
            self._sender.send()
            time.sleep(BETWEEN_SENDS_S)


def _open(kind: str, scene: Scene, words: Sequence[str], lines: Lines) -> Program:
    endpoint, topic, group, name, *lite_topics = words
    config = ClientConfig(endpoint, request_timeout=TIMEOUT_S)
    match kind:
        case "pull":
            return PullProgram(endpoint, topic, group, lines, name)
        case "member":
            return MemberProgram(endpoint, topic, group, lines, name)
        case "push":
            ear = Ear(lines, name)
            pushed = PushConsumer(config, group, topic, ear.listen, interceptors=[ear], concurrency=4)
            return PushProgram(_sender(config, topic, lines, scene, name), pushed.start)
        case "lite push":
            ear = Ear(lines, name, says_client=True)
            lite = LitePushConsumer(config, group, topic, ear.listen, interceptors=[ear], concurrency=4)
            subscribe = partial(_subscribe, lite.subscribe_lite, lite_topics, lines, name)
            return PushProgram(_sender(config, topic, lines, scene, name), subscribe)
        case "lite":
            client = LiteClient(endpoint, topic, group)
            _subscribe(client.subscribe, lite_topics, lines, name)
            return ReceivingProgram(client, lines, scene, name)

    def decide(message_id: str) -> bool:
        commits = zlib.crc32(message_id.encode()) % 2 == 0
        lines.unconfirmed("EndTransaction", message_id=message_id, commits=commits)
        return commits

    return ReceivingProgram(CLIENTS[kind](endpoint, topic, group, decide), lines, scene, name)


def _sender(config: ClientConfig, topic: str, lines: Lines, scene: Scene, name: str) -> Sender:
    client = PopProducer(Producer(config, topic), topic, is_lite=scene is Scene.LITE)
    return Sender(client, lines, scene, name)


def _subscribe(subscribe: Callable[[list[str]], None], names: list[str], lines: Lines, name: str) -> None:
    """Until the server knows it."""
    while not lines.call("LiteSync", partial(subscribe, names), client=name, names=names, adds=True):
        pass


def main() -> None:
    kind, scene, *words = sys.argv[1:]
    program, lines = None, Lines()
    while program is None:
        try:
            program = _open(kind, Scene(scene), words, lines)
        except Exception:  # noqa: BLE001 - no server may be there yet
            time.sleep(PAUSE_S)
    program.run()


if __name__ == "__main__":
    main()
