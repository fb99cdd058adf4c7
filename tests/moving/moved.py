"""Two PopMQ servers, and `popmq move` between them as an operator types it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import popserver
from popclient import Message, Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.moving.moves import Move, MoveFile
from popserver import EmbeddedBroker
from tests.support.scripted_server import until_in_thread
from tests.support.shell import POPMQ

PATIENCE_S = 60.0


class Moved:
    """`old` and `new`: the servers."""

    def __init__(self, old: EmbeddedBroker, new: EmbeddedBroker, folder: Path) -> None:
        self.old, self.new = old, new
        self.file = folder / "move.json"

    def admin(self, of: EmbeddedBroker) -> Admin:
        return Admin(of.endpoint)

    def command(self, action: str, *more: str) -> list[str]:
        yes = ["--yes"] if action in ("start", "finish", "back") else []
        return [POPMQ, "--json", "move", action, *more, *yes, "--file", str(self.file)]

    def run(self, action: str, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(action, *more), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def done(self, action: str, *more: str) -> Any:
        """The document of a command that must succeed."""
        done = self.run(action, *more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def plan(self, *more: str) -> Any:
        return self.done("plan", *self.sides, *more)

    @property
    def sides(self) -> list[str]:
        return ["--from", self.old.endpoint, "--to", self.new.endpoint]

    @property
    def move(self) -> Move:
        return MoveFile(self.file).load()

    @contextmanager
    def running(self, action: str = "start") -> Iterator[subprocess.Popen[str]]:
        """The command in the background; stopped by SIGTERM at the end, unless it has been killed."""
        process = subprocess.Popen(
            self.command(action), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield process
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        except BaseException:
            process.kill()
            raise
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode in (0, -signal.SIGKILL), (out, err)

    def until(self, fact: Callable[[Move], Any]) -> None:
        until_in_thread(lambda: fact(self.move), PATIENCE_S)

    def until_switched(self) -> None:
        self.until(lambda move: all(each.is_switched for each in move.in_order))

    def until_finished(self, group: str) -> None:
        self.until(lambda move: all(group in each.finished for each in move.in_order))


def send(to: EmbeddedBroker, topic: str, *bodies: str, **more: Any) -> None:
    with Producer(to.endpoint) as producer:
        for body in bodies:
            producer.send(Message(topic, body, **more))


def receive(of: EmbeddedBroker, group: str, topic: str, count: int, wait_s: float = PATIENCE_S) -> list[str]:
    """The bodies of so many messages, which are acked; of fewer, if no more come within `wait_s`."""
    found: list[str] = []
    until = time.monotonic() + wait_s
    with SimpleConsumer(of.endpoint, group, topic, await_duration=2) as consumer:
        while len(found) < count and time.monotonic() < until:
            views = consumer.receive(min(32, count - len(found)))
            found += [view.text for view in views]
            consumer.ack(views)
    return found


def gets_nothing(of: EmbeddedBroker, group: str, topic: str) -> bool:
    return receive(of, group, topic, 1, wait_s=1) == []


@contextmanager
def two_servers(folder: Path) -> Iterator[Moved]:
    with popserver.embedded() as old, popserver.embedded() as new:
        yield Moved(old, new, folder)
