"""Lite topics with the official Java client, as published: its producer and its push consumer."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from popclient.admin import Admin
from popserver import embedded
from popserver.in_process import EmbeddedBroker
from tests.interop.official import PATIENCE_S
from tests.interop.programs import program_of

# The first of a language builds its program.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else tmp_path / "popmq.db"
    with embedded(url) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("sessions", accept_message_types=["LITE"])
        yield broker


class Lites:
    """One process with an official producer and an official lite consumer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._said: queue.Queue[str] = queue.Queue()
        self.got: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self) -> None:
        """Kill the process; it says nothing more."""
        self._process.kill()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word == "got":
                self.got.put(rest)
            else:
                self._said.put(line.strip())

    def says(self, patience_s: float = 60) -> str:
        return self._said.get(timeout=patience_s)

    def does(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.says()

    def gets(self, count: int) -> list[str]:
        return [self.got.get(timeout=PATIENCE_S) for _ in range(count)]


@contextlib.contextmanager
def lites(server: EmbeddedBroker, home: Path, group: str) -> Iterator[Lites]:
    home.mkdir()
    command = [*program_of("java", home)[:-1], "Lites"]
    with (
        (home / "stderr").open("w") as stderr,
        subprocess.Popen(
            [*command, server.endpoint, group, "sessions"],
            env={**os.environ, "HOME": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        running = Lites(process)
        try:
            assert running.says() == "started"
            yield running
        finally:
            running.end()


def test_java_gets_the_lite_topics_that_it_subscribes_to(server: EmbeddedBroker, tmp_path: Path) -> None:
    with lites(server, tmp_path / "one", "agents") as one:
        assert one.does("subscribe ada") == "subscribed"
        assert one.does("subscribe ben") == "subscribed"
        for line in ("send ada 1", "send ben 2", "send eve 3", "send ada 4", "send ada fail"):
            assert one.does(line).startswith("sent ")
        got = one.gets(5)
        assert [each for each in got if each.startswith("ada")] == ["ada 1 1", "ada 1 4", "ada 1 fail", "ada 2 fail"]
        assert "ben 1 2" in got
        assert one.does("unsubscribe ben") == "unsubscribed"
        assert one.does("topics") == "topics ada"
        assert one.does("subscribe eve") == "subscribed"
        assert one.gets(1) == ["eve 1 3"]
        too_long = one.does(f"subscribe {'x' * 65}")
        assert "length exceeded max length 64" in too_long
        assert "40020" in one.does("subscribe no.name")
        with Admin(server.endpoint) as admin:
            names = [each.name for each in admin.list_lite_topics("sessions")]
            (group,) = admin.get_lite_topic("sessions", "ada").groups
        assert names == ["ada", "ben", "eve"]
        assert (group.group, group.lite, len(group.client_ids), group.ready) == ("agents", "SHARED", 1, 0)


def test_java_is_told_when_another_client_takes_a_lite_topic(server: EmbeddedBroker, tmp_path: Path) -> None:
    with Admin(server.endpoint) as admin:
        admin.create_group("owners", lite="EXCLUSIVE")
    with lites(server, tmp_path / "one", "owners") as one, lites(server, tmp_path / "two", "owners") as two:
        assert one.does("subscribe ada") == one.does("subscribe ben") == "subscribed"
        assert two.does("subscribe ada") == "subscribed"
        for _ in range(1_000):
            if one.does("topics") == "topics ben":
                break
        assert one.does("topics") == "topics ben"
        assert two.does("send ada 1").startswith("sent ")
        assert two.does("send ben 2").startswith("sent ")
        assert (one.gets(1), two.gets(1)) == (["ben 1 2"], ["ada 1 1"])
