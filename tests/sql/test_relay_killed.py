"""Relays as processes, `popmq relay` and one of asyncio: stopped, and killed in the middle of their work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

import popserver
from popclient import sql
from popclient.admin import Admin
from popserver import EmbeddedBroker

POPMQ = str(Path(sys.executable).with_name("popmq"))
COMMANDS = {
    "popmq": lambda endpoint, url: [POPMQ, "--endpoint", endpoint, "relay", "--database-url", url],
    "asyncio": lambda endpoint, url: [sys.executable, "-m", "tests.sql.relay_aio", endpoint, url],
}
MESSAGES = 4_000
GROUPS = 7


@contextmanager
def relaying(broker: EmbeddedBroker, url: str, *more: str, by: str = "popmq") -> Iterator[subprocess.Popen[str]]:
    """The command, or the program of asyncio."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POPMQ_")}
    process = subprocess.Popen(
        [*COMMANDS[by](broker.endpoint, url), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def left(url: str) -> int:
    engine = create_engine(url)
    with engine.connect() as conn:
        found: int = conn.execute(text("SELECT count(*) FROM popmq_outbox")).scalar_one()
    engine.dispose()
    return found


def stored(broker: EmbeddedBroker) -> list[tuple[str, str]]:
    """(message group, body) in the order of the queues."""
    query = text("SELECT message_group, body FROM message ORDER BY message_key")
    rows = broker.run(broker.app.broker.engine.reader.read(lambda conn: list(conn.execute(query))))
    return [(row.message_group, bytes(row.body).decode()) for row in rows]


@pytest.fixture
def filled(sqlite_url: str) -> str:
    """An outbox with many messages of a few message groups."""
    engine = create_engine(sqlite_url)
    sql.metadata.create_all(engine)
    with engine.begin() as conn:
        for number in range(MESSAGES):
            sql.enqueue(conn, "steps", f"{number}", message_group=f"g{number % GROUPS}")
    engine.dispose()
    return sqlite_url


@pytest.mark.parametrize("by", COMMANDS)
def test_killed_again_and_again_it_loses_nothing_doubles_nothing_and_keeps_the_order(filled: str, by: str) -> None:
    with popserver.embedded() as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("steps", queue_count=4, accept_message_types=["FIFO"])
        for goal in (MESSAGES - 1, MESSAGES * 2 // 3, MESSAGES // 3):
            with relaying(broker, filled, by=by) as process:
                while left(filled) > goal and process.poll() is None:
                    time.sleep(0.001)
                assert process.poll() is None, process.communicate()
                process.send_signal(signal.SIGKILL)
        assert 0 < left(filled) < MESSAGES
        with relaying(broker, filled, "--once", by=by) as process:
            out, err = process.communicate()
            assert process.returncode == 0, err
            assert out.startswith("moved ")
            assert out.endswith("0 wait\n")
        bodies: dict[str, list[int]] = defaultdict(list)
        for group, body in stored(broker):
            bodies[group].append(int(body))
    assert left(filled) == 0
    assert dict(bodies) == {f"g{each}": list(range(each, MESSAGES, GROUPS)) for each in range(GROUPS)}


def test_stopped_it_ends_in_order(filled: str) -> None:
    with popserver.embedded() as broker, relaying(broker, filled, "--json") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f'{{"waiting": {MESSAGES}, "refused": 0}}\n'
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


def test_a_database_without_an_outbox_is_said_at_once(tmp_path: Path) -> None:
    with popserver.embedded() as broker:
        for url, status, word in (
            (f"sqlite:///{tmp_path / 'none.db'}", 1, "none.db does not exist"),
            ("nonsense", 2, "Could not parse"),
            ("nosuch://host/db", 2, "nosuch"),
        ):
            with relaying(broker, url) as process:
                _, err = process.communicate(timeout=120)
                assert (process.returncode, word in err) == (status, True), err
