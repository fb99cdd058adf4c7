"""Dead letters as a stream: each once, in the order of ids, over restarts and replays."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, text, update

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructType

from popclient.spark.dead_letters import database
from popclient.spark.dead_letters.database import connected
from popclient.spark.dead_letters.options import parse
from popclient.spark.dead_letters.queries import Ids
from popclient.spark.dead_letters.streaming import DeadLetterStream
from popclient.spark.streams import ReadAllAvailable, ReadMaxRows
from popserver.database.database import Database
from popserver.database.schema import dead_letter
from popserver.delivery.dead_letter_topic import DeadLetterCandidate, move_to_dead_letters
from popserver.engine.transaction import Transaction
from popserver.model.group import Group
from popserver.model.retry import Holder
from popserver.model.states import Event
from tests.spark.filled import EPOCH_MS, fill
from tests.support.open_store import MINUTE, OpenStore, open_store
from tests.support.postgres import PostgresServer, fresh_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1_000
ONLY_ID = StructType().add("id", LongType())
Offset = dict[str, int]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/popmq.db"
        return
    with fresh_database(request.getfixturevalue("postgres")) as made:
        yield made


def stream(url: str, **options: Any) -> DeadLetterStream:
    given = {name.lower(): str(value) for name, value in options.items()}
    return DeadLetterStream(parse({"url": url, **given}), ONLY_ID)


def ids_of(reader: DeadLetterStream, start: Offset, end: Offset) -> list[int]:
    return [
        number
        for partition in reader.partitions(start, end)
        for page in reader.read(partition)
        for number in page.column("id").to_pylist()
    ]


def at(number: int) -> Offset:
    return {"v": 1, "id": number}


def query(spark: SparkSession, url: str, folder: Path, **options: Any) -> None:
    """One run over what there is, into Parquet."""
    letters = spark.readStream.format("popmq").option("url", url).options(**options).load()
    writing = letters.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writing.option("path", str(folder / "dead")).trigger(availableNow=True).start().awaitTermination()


def written(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(folder / "dead")).select("id").collect())


def test_each_once_over_restarts_and_a_replay(spark: SparkSession, tmp_path: Path) -> None:
    """What died after a run comes with the next; a batch whose commit is lost is the same when it is read again."""
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, COUNT)
    query(spark, url, tmp_path, maxRowsPerTrigger=300, consumerGroup="billing")
    expected = [i + 1 for i in range(COUNT - 1) if i % 3]
    assert written(spark, tmp_path) == expected
    commits = sorted(int(each.name) for each in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert len(commits) == 3  # 666 of them, at most 300 at once

    for name in (str(commits[-1]), f".{commits[-1]}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    query(spark, url, tmp_path, maxRowsPerTrigger=300, consumerGroup="billing")
    assert written(spark, tmp_path) == expected

    _die_again(url, 2)
    query(spark, url, tmp_path, maxRowsPerTrigger=300, consumerGroup="billing")
    assert written(spark, tmp_path) == [*expected, COUNT + 1]


def _die_again(url: str, number: int) -> None:
    """A dead letter that was sent back and died again has a new id."""
    database = Database(url)
    with database.writing.connect() as conn:
        database.begin(conn)
        renewed = update(dead_letter).where(dead_letter.c.dead_letter_id == number)
        conn.execute(renewed.values(dead_letter_id=COUNT + 1))
        conn.exec_driver_sql("COMMIT")
    database.close()


def test_a_batch_is_a_range_of_ids(url: str) -> None:
    fill(url, COUNT)
    reader = stream(url, numPartitions=3)
    start = reader.initialOffset()
    assert start == reader.initialOffset() == at(0)
    assert reader.partitions(start, start) == []
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert end == at(10)
    assert reader.reportLatestOffset() == at(COUNT) | {"group": None, "topic": None}
    assert ids_of(reader, start, end) == list(range(1, 11))
    # The last one is a stranger's: it is no reason for a batch.
    assert reader.latestOffset(end, ReadAllAvailable()) == at(COUNT - 1)
    assert reader.latestOffset(at(COUNT - 1), ReadMaxRows(5)) == at(COUNT - 1)
    another = stream(url, numPartitions=3)  # in a new process, after a crash
    assert another.reportLatestOffset() == reader.reportLatestOffset()
    assert ids_of(another, end, at(COUNT - 1)) == list(range(11, COUNT))


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, 1),
        ({"startingId": 500}, 500),
        ({"startingTimestamp": EPOCH_MS + 300_000}, 301),
        ({"startingTimestamp": EPOCH_MS + 10_000_000}, COUNT + 1),
        ({"startingId": 5_000_000}, COUNT + 1),
        ({"topic": "hotels", "startingId": 2}, 6),
    ],
)
def test_where_it_starts(tmp_path: Path, options: dict[str, Any], first: int) -> None:
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, COUNT)
    assert stream(url, **options).initialOffset() == at(first - 1)


@pytest.mark.row("L12")
def test_properties_as_json(url: str) -> None:
    """As in a batch: what the database has."""
    fill(url, 4)
    options = parse({"url": url, "propertiesas": "json"})
    reader = DeadLetterStream(options, StructType().add("properties", StringType()))
    [partition] = reader.partitions(at(0), at(3))
    found = [text for page in reader.read(partition) for text in page.column(0).to_pylist()]
    assert [json.loads(text or "{}") for text in found] == [{}, {"origin": "JFK", "distance": "1"}, {}]


def test_a_slower_transaction_is_not_passed_over(postgres_url: str) -> None:
    """Of two that write dead letters at once, on two servers, none shows the later id before the earlier one."""
    with open_store(postgres_url) as slow, open_store(postgres_url) as quick:
        topic = slow.topic()
        groups = [slow.group(name, meets=[topic]) for name in ("slow", "quick")]
        slow.send(topic)
        for group in groups:
            slow.receive(group, topic, holder=Holder.SIMPLE, invisible_ms=MINUTE)
        reader = stream(postgres_url)
        bury_one(slow, groups[0])

        def bury_and_commit() -> None:
            bury_one(quick, groups[1])
            quick.conn.exec_driver_sql("COMMIT")

        thread = threading.Thread(target=bury_and_commit)
        thread.start()
        while not slow.one_value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
            time.sleep(0.01)
        assert reader.latestOffset(at(0), ReadAllAvailable()) == at(0)
        slow.conn.exec_driver_sql("COMMIT")
        thread.join(60)
        end = reader.latestOffset(at(0), ReadAllAvailable())
        assert ids_of(reader, at(0), end) == [1, 2]


def bury_one(store: OpenStore, group: Group) -> None:
    """A message of the group dies, in a transaction that stays open."""
    tx = Transaction.at(store.conn, store.now_ms)
    store.database.begin(store.conn)
    [row] = store.rows("SELECT message_key, topic_id FROM delivery WHERE group_id = :id", id=group.group_id)
    move_to_dead_letters(
        tx, group, [DeadLetterCandidate(row.message_key, row.topic_id, 1, "c1")], Event.FORWARD_TO_DLQ, "test"
    )
    tx.finish()


def test_available_now_ends_at_what_was_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 10)
    reader = stream(url)
    reader.prepareForTriggerAvailableNow()
    _die_again(url, 3)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(9)
    assert reader.latestOffset(at(9), ReadAllAvailable()) == at(9)
    assert stream(url).latestOffset(at(9), ReadAllAvailable()) == at(COUNT + 1)


def test_what_dies_while_it_begins_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead letter that the look for the first did not see is not passed over."""
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 10)
    first = Ids.first

    def then_one_dies(ids: Ids) -> int | None:
        found = first(ids)
        _die_again(url, 3)
        return found

    monkeypatch.setattr(Ids, "first", then_one_dies)
    start = stream(url, startingId=COUNT).initialOffset()
    assert start == at(10)
    assert stream(url, startingId=COUNT).latestOffset(start, ReadAllAvailable()) == at(COUNT + 1)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What connections of streams were opened, and closed."""
    told: list[str] = []

    @contextmanager
    def telling(url: str) -> Iterator[Connection]:
        told.append("opened")
        with connected(url) as conn:
            yield conn
        told.append("closed")

    monkeypatch.setattr(database, "connected", telling)
    return told


def test_an_idle_query_keeps_its_connection(url: str, opened: list[str]) -> None:
    """Until there is something new; it is not pickled, and goes with the stream."""
    fill(url, 10)
    reader = DeadLetterStream(parse({"url": url}), ONLY_ID, sleep=_not_at_all)
    reader.initialOffset()
    for _ in range(3):
        assert reader.latestOffset(at(9), ReadAllAvailable()) == at(9)
    assert opened == ["opened"]
    assert ids_of(pickle.loads(pickle.dumps(reader)), at(7), at(9)) == [8, 9]
    _die_again(url, 3)
    assert reader.latestOffset(at(9), ReadAllAvailable()) == at(COUNT + 1)
    assert opened == ["opened", "closed"]
    assert reader.latestOffset(at(COUNT + 1), ReadAllAvailable()) == at(COUNT + 1)
    reader.stop()
    assert opened == ["opened", "closed"] * 2


def test_a_kept_connection_that_is_lost_is_opened_again(postgres: PostgresServer) -> None:
    with fresh_database(postgres) as url:
        fill(url, 10)
        reader = DeadLetterStream(parse({"url": url}), ONLY_ID, sleep=_not_at_all)
        assert reader.latestOffset(at(9), ReadAllAvailable()) == at(9)
        with connected(parse({"url": url}).url) as conn:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            conn.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        _die_again(url, 3)
        assert reader.latestOffset(at(9), ReadAllAvailable()) == at(COUNT + 1)


def _not_at_all(_: float) -> None:
    """No time passes."""


def test_an_idle_query_looks_less_and_less_often(tmp_path: Path) -> None:
    """Down to once a second; after something new the pauses begin anew."""
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 10)
    slept: list[float] = []
    reader = DeadLetterStream(parse({"url": url}), ONLY_ID, now=lambda: 0.0, sleep=slept.append)
    assert reader.latestOffset(at(9), ReadAllAvailable()) == at(9)
    assert slept == []
    for _ in range(6):
        assert reader.latestOffset(at(9), ReadAllAvailable()) == at(9)
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    _die_again(url, 3)
    assert reader.latestOffset(at(9), ReadAllAvailable()) == at(COUNT + 1)
    slept.clear()
    for _ in range(2):
        assert reader.latestOffset(at(COUNT + 1), ReadAllAvailable()) == at(COUNT + 1)
    assert slept == [0.05]


def test_available_now_does_not_wait(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 10)
    slept: list[float] = []
    reader = DeadLetterStream(parse({"url": url}), ONLY_ID, now=lambda: 0.0, sleep=slept.append)
    reader.prepareForTriggerAvailableNow()
    for _ in range(2):
        assert reader.latestOffset(at(9), ReadAllAvailable()) == at(9)
    assert slept == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingId": 7}, "option endingId=7 is for spark.read; a stream has no end"),
        ({"endingTimestamp": 7}, "option endingTimestamp=7 is for spark.read"),
        ({"maxRowsPerTrigger": 0}, "option maxRowsPerTrigger='0' is not allowed; give a whole number from 1"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        stream(f"sqlite:///{tmp_path}/popmq.db", **options)


def test_a_strange_checkpoint_is_named(tmp_path: Path) -> None:
    reader = stream(f"sqlite:///{tmp_path}/popmq.db")
    with pytest.raises(ValueError, match="is not one of dead letters"):
        reader.partitions({"v": 1, "q": 3}, at(4))


def test_a_refusal_reaches_the_user(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 10)
    with pytest.raises(PySparkException, match="option endingId=7 is for"):
        query(spark, url, tmp_path, endingId=7)
    with pytest.raises(PySparkException, match="option maxRowsPerTrigger=7 is for"):
        spark.read.format("popmq").option("url", url).option("maxRowsPerTrigger", 7).load().count()
