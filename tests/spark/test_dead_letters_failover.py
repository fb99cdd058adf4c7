"""Dead letters of a Postgres that fails over while they are read: each once, from the primary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread

import psycopg
import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.types import BinaryType, LongType, StructType
from sqlalchemy import Connection

from popclient.spark.dead_letters import database
from popclient.spark.dead_letters.fetching import PAGE_ROWS_MAX
from popclient.spark.dead_letters.options import parse
from popclient.spark.dead_letters.reading import IdRange, ViewReader
from popclient.spark.dead_letters.streaming import DeadLetterStream
from tests.spark.filled import fill
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.standby import standby_of
from tests.support.waiting import soon

COUNT = 2 * PAGE_ROWS_MAX + 100
LAST = COUNT - 1  # the one after it is of another namespace
IDS = StructType().add("id", LongType())
WITH_BODIES = StructType().add("id", LongType()).add("body", BinaryType())


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with postgres_server(own=True) as server:
        fill(server.url, COUNT)
        yield server


class Clock:
    """In place of the module `time`: a pause lasts no time here. happens: in the first pause."""

    def __init__(self, happens: Callable[[], None] = lambda: None) -> None:
        self.now = 1_000.0
        self.pauses = 0
        self._happens = happens

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1
        if self.pauses == 1:
            self._happens()


@pytest.mark.parametrize("driver", ["psycopg", "adbc"])
def test_a_read_goes_on_at_the_new_primary(
    primary: PostgresServer, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may have worked on a page for longer than a failover may take."""
    with standby_of(primary) as standby:
        monkeypatch.setattr(database, "time", clock := Clock(lambda: _promote(standby)))
        reader = ViewReader(parse({"url": _both(standby, primary), "driver": driver}), WITH_BODIES)
        reading = reader.read(IdRange(1, LAST))
        ids = next(reading)["id"].to_pylist()
        clock.now += 2 * database.PATIENCE_S
        primary.kill()
        for batch in reading:
            ids += batch["id"].to_pylist()
    assert ids == list(range(1, LAST + 1))
    assert clock.pauses


def test_a_stream_goes_on_at_the_new_primary(primary: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a trigger that is longer than a failover may take."""
    with standby_of(primary) as standby:
        monkeypatch.setattr(database, "time", clock := Clock(lambda: _promote(standby)))
        stream = DeadLetterStream(parse({"url": _both(standby, primary)}), IDS)
        assert stream.initialOffset() == {"v": 1, "id": 0}
        clock.now += 5 * database.PATIENCE_S
        primary.kill()
        assert stream.latestOffset({"v": 1, "id": 0}, stream.getDefaultReadLimit()) == {"v": 1, "id": LAST}
        stream.stop()
    assert clock.pauses


def test_a_standby_is_not_read(primary: PostgresServer) -> None:
    """It is listed first, and may be behind."""
    with standby_of(primary) as standby:
        url = parse({"url": _both(standby, primary)}).url
        with database.connected(url) as conn:
            assert not conn.exec_driver_sql("SELECT pg_is_in_recovery()").scalar()
        with database.connected(url.replace("=primary", "=standby")) as conn:
            assert conn.exec_driver_sql("SELECT pg_is_in_recovery()").scalar()


def test_without_a_new_primary_it_says_why(primary: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that has begun waits, also in a task that never reached the database; a query's first look does not."""
    monkeypatch.setattr(database, "time", clock := Clock())
    options = parse({"url": primary.url})
    reading, never_begun = (ViewReader(options, IDS).read(IdRange(1, LAST)) for _ in range(2))
    next(reading)
    primary.kill()
    try:
        assert _waited(clock, lambda: list(reading)) == database.PATIENCE_S
        assert _waited(clock, lambda: list(never_begun)) == database.PATIENCE_S
        assert _waited(clock, DeadLetterStream(options, IDS).initialOffset) == 0
    finally:
        primary.restart()


def _waited(clock: Clock, read: Callable[[], object]) -> float:
    begun = clock.now
    with pytest.raises(ValueError, match=r"option url=.* cannot be read: .*refused"):
        read()
    return clock.now - begun


@pytest.mark.parametrize("driver", ["psycopg", "adbc"])
def test_a_statement_that_fails_is_no_failover(
    primary: PostgresServer, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying it again would only fail again: here each statement takes too long, from the second page on."""
    monkeypatch.setattr(database, "time", clock := Clock())
    reading = ViewReader(parse({"url": primary.url, "driver": driver}), WITH_BODIES).read(IdRange(1, LAST))
    next(reading)
    with psycopg.connect(primary.url, autocommit=True) as conn:
        conn.execute("ALTER TABLE dead_letters RENAME TO kept")
        conn.execute("CREATE VIEW dead_letters AS SELECT kept.* FROM kept, pg_sleep(60)")
        asking = Thread(target=lambda: _cancel_what_sleeps(primary))
        asking.start()
    with pytest.raises(ValueError, match=r"cannot be read: .*cancel.*user request"):
        list(reading)
    asking.join()
    assert clock.pauses == 0


def test_a_question_that_fails_is_not_asked_again(postgres_url: str) -> None:
    """Over the kept connection of a stream: here the statement takes too long."""
    kept, asked = database.KeptConnection(parse({"url": postgres_url}).url), []

    def ask(conn: Connection) -> None:
        asked.append(conn)
        conn.exec_driver_sql("SET statement_timeout = 1")
        conn.exec_driver_sql("SELECT pg_sleep(60)")

    kept.ask(lambda conn: None)
    with pytest.raises(ValueError, match=r"option url=.* cannot be read: .*statement timeout"):
        kept.ask(ask)
    assert len(asked) == 1
    assert kept.ask(lambda conn: conn.exec_driver_sql("SELECT 1").scalar()) == 1
    kept.close()


def _cancel_what_sleeps(primary: PostgresServer) -> None:
    sleeping = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    with psycopg.connect(primary.url, autocommit=True) as conn:
        soon(lambda: conn.execute(sleeping).fetchall() != [])


def _both(one: PostgresServer, other: PostgresServer) -> str:
    return f"postgresql://postgres@127.0.0.1:{one._port},127.0.0.1:{other._port}/postgres"


def _promote(standby: PostgresServer) -> None:
    with psycopg.connect(standby.url, autocommit=True) as conn:
        assert conn.execute("SELECT pg_promote()").fetchone() == (True,)
