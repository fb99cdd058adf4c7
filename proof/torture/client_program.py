"""A client that can be killed: python -m proof.torture.client_program KIND SCENE ENDPOINT TOPIC GROUP NAME.

It sends and consumes without end, by popclient or by the official Python client. A JSON line on stdout says what is
begun, another one how it ended; what has begun when the process is killed has an unknown outcome.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from popclient import ClientConfig, MessageQueue, PullConsumer
from proof.history.scenes import Scene
from proof.torture.program_clients import KINDS, TIMEOUT_S, Client, Got
from tests.support.workload import digest

MESSAGE_GROUPS = 2  # of each program
DUE_WITHIN_S = 3  # both clients are given whole seconds
PAUSE_S = 0.02  # after a failure, and until a server is there
POLL_S = 1


class Lines:
    """What a program says of its calls."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # a checker of transactions is called in a thread of its client

    def call(self, name: str, do: Callable[[], object], **said: Any) -> None:
        """`do` may return a dict: more to say at its end."""
        number = self._begin(name, said)
        try:
            result = do()
        except Exception as error:  # noqa: BLE001 - whatever a client raises, it may have happened
            self._say(number=number, completed_ms=_now_ms(), error=repr(error)[:200])
            time.sleep(PAUSE_S)
        else:
            self._say(number=number, completed_ms=_now_ms(), **(result if isinstance(result, dict) else {}))

    def unconfirmed(self, name: str, **said: Any) -> None:
        """A call whose outcome nobody learns."""
        number = self._begin(name, said)
        self._say(number=number, completed_ms=_now_ms(), error="nobody confirms it")

    def _begin(self, name: str, said: dict[str, Any]) -> int:
        number = next(self._numbers)
        self._say(number=number, call=name, invoked_ms=_now_ms(), **said)
        return number

    def _say(self, **line: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


class Program:
    """Sends as its scene does, receives and acks."""

    def __init__(self, client: Client, lines: Lines, scene: Scene, name: str) -> None:
        self._client = client
        self._lines = lines
        self._name = name
        self._chance = random.Random(name)
        sending = {Scene.FIFO: self._send_in_order, Scene.DELAY: self._send_later, Scene.TRANSACTIONS: self._send_half}
        self._send = sending.get(scene, self._send_plain)

    def run(self) -> None:
        for number in itertools.count(1):
            for part in range(4):
                self._send(f"{self._name} {number} {part}")
            self._receive()

    def _send_plain(self, body: str) -> None:
        self._send_message(body)

    def _send_in_order(self, body: str) -> None:
        group = f"{self._name}-group-{self._chance.randrange(MESSAGE_GROUPS)}"
        self._send_message(body, message_group=group)

    def _send_later(self, body: str) -> None:
        due_s = int(time.time()) + self._chance.randrange(DUE_WITHIN_S)
        self._send_message(body, due_s=due_s, due_ms=due_s * 1_000 - time.time() * 1_000 + _now_ms())

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

        may_hide = self._client.receives_ahead
        self._lines.call("Receive", receive, held_ms=self._client.surely_held_s * 1_000, may_hide=may_hide)
        for each in held:
            self._lines.call("Ack", partial(self._client.ack, each), message_id=each.message_id, handle=each.handle)


class QueueProgram:
    """Reads whole queues by popclient; it begins where the program before it has committed."""

    def __init__(self, endpoint: str, topic: str, group: str, lines: Lines, name: str) -> None:
        config = ClientConfig(endpoint, request_timeout=TIMEOUT_S)
        self._consumer = PullConsumer(config, group, consume_from="CONSUME_FROM_FIRST_OFFSET")
        self._queues = self._consumer.assign(topic)
        self._lines = lines
        self._chance = random.Random(name)

    def run(self) -> None:
        while True:
            for each in self._queues:
                self._lines.call("ReadOffset", partial(self._committed, each), queue=each.queue_id)
            for _ in range(8):
                self._poll()
                if self._chance.random() < 0.5:
                    self._commit()

    def _committed(self, queue: MessageQueue) -> dict[str, int]:
        stored = self._consumer.committed(queue)
        return {"offset": -1 if stored is None else stored}

    def _poll(self) -> None:
        begins = {each.queue_id: self._consumer.position(each) for each in self._queues}

        def poll() -> dict[str, Any]:
            messages = self._consumer.poll(POLL_S)
            return {
                "pulls": [
                    {
                        "queue": each.queue_id,
                        "offset": begins[each.queue_id],
                        "next_offset": self._consumer.position(each),
                        "messages": [
                            (got.queue_offset, got.message_id, digest(got.body, dict(got.properties)))
                            for got in messages
                            if got.queue_id == each.queue_id
                        ],
                    }
                    for each in self._queues
                ]
            }

        self._lines.call("Poll", poll)

    def _commit(self) -> None:
        for each in self._queues:
            offset = self._consumer.position(each)
            commit = partial(self._consumer.commit, {each: offset})
            self._lines.call("CommitOffset", commit, queue=each.queue_id, offset=offset)


def _now_ms() -> float:
    return time.monotonic() * 1_000


def _open(kind: str, scene: Scene, endpoint: str, topic: str, group: str, name: str) -> Program | QueueProgram:
    lines = Lines()
    if scene is Scene.QUEUES:
        return QueueProgram(endpoint, topic, group, lines, name)

    def decide(message_id: str) -> bool:
        commits = zlib.crc32(message_id.encode()) % 2 == 0
        lines.unconfirmed("EndTransaction", message_id=message_id, commits=commits)
        return commits

    return Program(KINDS[kind](endpoint, topic, group, decide), lines, scene, name)


def main() -> None:
    kind, scene, *words = sys.argv[1:]
    program = None
    while program is None:
        try:
            program = _open(kind, Scene(scene), *words)
        except Exception:  # noqa: BLE001 - no server may be there yet
            time.sleep(PAUSE_S)
    program.run()


if __name__ == "__main__":
    main()
