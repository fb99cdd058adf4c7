"""Dead letters of a Postgres that fails over while they are read: each once, from the primary."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.types import BinaryType, LongType, StructType

from popclient.spark.dead_letters import database
from popclient.spark.dead_letters.fetching import PAGE_ROWS_MAX
from popclient.spark.dead_letters.options import parse
from popclient.spark.dead_letters.reading import IdRange, ViewReader
from popclient.spark.dead_letters.streaming import DeadLetterStream
from tests.spark.filled import fill
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.standby import standby_of

COUNT = 2 * PAGE_ROWS_MAX + 100
LAST = COUNT - 1  # the one after it is of another namespace
IDS = StructType().add("id", LongType())
WITH_BODIES = StructType().add("id", LongType()).add("body", BinaryType())


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with postgres_server(own=True) as server:
        fill(server.url, COUNT)
        yield server


@pytest.mark.parametrize("driver", ["psycopg", "adbc"])
def test_a_read_goes_on_at_the_new_primary(
    primary: PostgresServer, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standby_of(primary) as standby:
        monkeypatch.setattr("time.sleep", _in_place_of_a_pause(lambda: _promote(standby)))
        reader = ViewReader(parse({"url": _both(standby, primary), "driver": driver}), WITH_BODIES)
        reading = reader.read(IdRange(1, LAST))
        ids = next(reading)["id"].to_pylist()
        primary.kill()
        for batch in reading:
            ids += batch["id"].to_pylist()
    assert ids == list(range(1, LAST + 1))


def test_a_stream_goes_on_at_the_new_primary(primary: PostgresServer) -> None:
    with standby_of(primary) as standby:
        stream = DeadLetterStream(parse({"url": _both(standby, primary)}), IDS)
        assert stream.initialOffset() == {"v": 1, "id": 0}
        primary.kill()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("time.sleep", _in_place_of_a_pause(lambda: _promote(standby)))
            assert stream.latestOffset({"v": 1, "id": 0}, stream.getDefaultReadLimit()) == {"v": 1, "id": LAST}
        stream.stop()


def test_a_standby_is_not_read(primary: PostgresServer) -> None:
    """It is listed first, and may be behind."""
    with standby_of(primary) as standby:
        url = parse({"url": _both(standby, primary)}).url
        with database.connected(url) as conn:
            assert not conn.exec_driver_sql("SELECT pg_is_in_recovery()").scalar()
        with database.connected(url.replace("=primary", "=standby")) as conn:
            assert conn.exec_driver_sql("SELECT pg_is_in_recovery()").scalar()


def test_without_a_new_primary_it_says_why(primary: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 0.3)
    options = parse({"url": primary.url})
    reading = ViewReader(options, IDS).read(IdRange(1, LAST))
    next(reading)
    primary.kill()
    with pytest.raises(ValueError, match=r"option url=.* cannot be read: .*refused"):
        list(reading)
    primary.restart()


def _in_place_of_a_pause(happens: Callable[[], None]) -> Callable[[float], None]:
    done: list[float] = []

    def pause(seconds: float) -> None:
        if not done:
            happens()
        done.append(seconds)

    return pause


def _both(one: PostgresServer, other: PostgresServer) -> str:
    return f"postgresql://postgres@127.0.0.1:{one._port},127.0.0.1:{other._port}/postgres"


def _promote(standby: PostgresServer) -> None:
    with psycopg.connect(standby.url, autocommit=True) as conn:
        assert conn.execute("SELECT pg_promote()").fetchone() == (True,)
