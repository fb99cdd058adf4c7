"""The mode `journal`, batch by batch: real push consumers, of PopMQ and of a server with the standard RPCs alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.types import BinaryType, StringType, StructType

import popserver
from popclient import Message, PopError, Producer
from popclient.admin import Admin
from popclient.spark.journal.folder import JournalFailed
from popclient.spark.journal.options import parse
from popclient.spark.journal.source import JournalStream, seq_of
from popclient.spark.message_columns import MessageColumns
from tests.spark.stepping import ALL_COLUMNS, Stepping
from tests.support.scripted_server import ServerThread, until_in_thread


@pytest.fixture(scope="module")
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as broker:
        yield broker


_names = count(1)


class Job:
    """A query that is started again and again, as by a new process each time."""

    def __init__(self, endpoints: str, folder: Path) -> None:
        self.topic = f"journaled-{next(_names)}"
        self.endpoints = endpoints
        self.folder = folder
        self.query = Stepping()
        self.reader: JournalStream | None = None

    def send(self, bodies: range, **fields: Any) -> list[str]:
        with Producer(self.endpoints) as producer:
            for body in bodies:
                producer.send(Message(self.topic, str(body), **fields))
        return [str(body) for body in bodies]

    def start(self, *, available_now: bool = False, schema: StructType = ALL_COLUMNS, **more: Any) -> Stepping:
        self.stop()
        options = {
            "endpoints": self.endpoints,
            "topic": self.topic,
            "consumerGroup": "g",
            "journalPath": str(self.folder / "journal"),
            **{name: str(value) for name, value in more.items()},
        }
        self.reader = JournalStream(parse(options), schema)
        self.query.start(self.reader, available_now=available_now)
        return self.query

    def read(self, messages: int) -> None:
        """Batches until so many rows have come in all."""
        until_in_thread(lambda: self.query.batch() and len(self.query.rows) >= messages)

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()
            if self.reader._journal is not None:
                self.reader._journal.close()
            self.reader = None

    def open_messages(self) -> tuple[int, int]:
        """Ready, and in somebody's hands."""
        with Admin(self.endpoints) as admin:
            lags = admin.list_lag("g", self.topic)
        return sum(lag.ready for lag in lags), sum(lag.inflight + lag.waiting_retry for lag in lags)


@pytest.fixture
def job(broker: popserver.EmbeddedBroker, tmp_path: Path) -> Iterator[Job]:
    job = Job(broker.endpoint, tmp_path)
    yield job
    job.stop()


def test_a_replay_is_the_same_though_all_was_acked(job: Job) -> None:
    sent = job.send(range(20))
    job.start()
    job.read(20)
    until_in_thread(lambda: job.open_messages() == (0, 0))
    job.query.committed -= 1  # the newest commit is deleted
    last = len(job.query.read_again())
    job.start()
    job.read(20 + last)
    assert sorted(job.query.bodies[:20], key=int) == sent
    assert job.query.bodies[20:] == job.query.bodies[20 - last : 20]


def test_message_groups_keep_their_order(job: Job) -> None:
    sent = job.send(range(60), message_group="one")
    job.start(numPartitions=1)
    job.read(60)
    assert job.query.bodies == sent


def test_what_another_checkpoint_has_left_is_read_first(job: Job) -> None:
    sent = job.send(range(5))
    job.start()
    until_in_thread(
        lambda: job.query.reader.latestOffset(job.query.planned[0], None)["seq"] and not job.open_messages()[0]
    )
    until_in_thread(lambda: job.open_messages() == (0, 0))
    job.stop()
    job.query = Stepping()
    job.start()
    job.read(5)
    assert sorted(job.query.bodies) == sent


def test_a_full_journal_receives_nothing_until_spark_has_read_it(job: Job) -> None:
    sent = job.send(range(30), properties={"ballast": "x" * 1_000})
    query = job.start(journalMaxBytes=5_000, maxMessagesPerTrigger=10)
    offset = until_in_thread(lambda: query.reader.latestOffset(query.planned[0], None)["seq"])
    receiving = query.reader._writer
    until_in_thread(lambda: receiving._full.is_set())
    more = job.send(range(30, 32))
    query.reader.latestOffset(query.planned[0], None)
    query.reader.latestOffset(query.planned[0], None)
    assert job.open_messages()[0] >= 2
    assert offset >= 1
    job.read(32)
    assert sorted(job.query.bodies, key=int) == sent + more


def test_available_now_ends_though_new_messages_come_all_the_time(job: Job) -> None:
    sent = job.send(range(10))
    query = job.start(available_now=True, quietPeriod="300ms")
    numbers = count(100)
    while query.batch():
        next_one = next(numbers)
        job.send(range(next_one, next_one + 1))
    assert set(sent) <= set(query.bodies)
    assert len(query.bodies) == len(set(query.bodies))


def test_columns_as_kafka_names_them(job: Job) -> None:
    job.send(range(1), keys=["k", "l"])
    job.start(schema=StructType().add("value", BinaryType()).add("topic", StringType()), columns="kafka")
    job.read(1)
    assert job.query.rows == [{"value": b"0", "topic": job.topic}]


def test_the_lag_behind_the_journal_is_in_the_progress(job: Job) -> None:
    job.send(range(3))
    query = job.start(maxMessagesPerTrigger=1)
    job.read(1)
    until_in_thread(lambda: query.reader.reportLatestOffset()["seq"] == 3)
    assert query.reader.reportLatestOffset() == {"v": 1, "seq": 3, "group": "g", "lag": 2}


# ---- Servers with the standard RPCs alone ----


def test_any_server_will_do(tmp_path: Path) -> None:
    with ServerThread(capabilities="") as server:
        job = Job(server.endpoints, tmp_path)
        sent = job.send(range(30))
        job.start()
        job.read(30)
        until_in_thread(lambda: not server.server.held)
        job.stop()
    assert sorted(job.query.bodies, key=int) == sent


def test_what_comes_again_because_the_ack_was_not_heard_is_dropped(tmp_path: Path) -> None:
    with ServerThread(capabilities="") as server:
        job = Job(server.endpoints, tmp_path)
        sent = job.send(range(5))
        job.start()
        job.read(5)
        job.stop()
        server.server.stored[job.topic] *= 2  # a server that knows of no ack
        sent += job.send(range(5, 7))
        job.start()
        job.read(7)
        until_in_thread(lambda: not server.server.held)
        job.stop()
    assert sorted(job.query.bodies) == sent


# ---- What goes wrong ----


@pytest.mark.parametrize(
    "strange", [{"v": 1, "seq": 3, "parts": 1, "messages": 5}, {"v": 2, "seq": 3}, {"v": 1, "id": 3}, {"seq": 3}]
)
def test_a_checkpoint_of_another_source_is_refused(strange: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"not one of journals, which have the form \{'v': 1, 'seq': 12\}.* of its own"
    ):
        seq_of(strange)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"filterType": "SQL92"}, "option filterType='SQL92' is not allowed; give it together with filterExpression"),
        (
            {"includeHeaders": "true"},
            "option includeHeaders='true' is not allowed; give it together with columns=kafka",
        ),
    ],
)
def test_what_goes_with_nothing_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        Job("127.0.0.1:1", tmp_path).start(**options)
    assert words in str(refused.value)


def test_a_journal_that_cannot_be_written_fails_the_query_and_acks_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = job.send(range(3))
    query = job.start()
    with monkeypatch.context() as patched, pytest.raises(JournalFailed, match=r"No space left on device.* not acked"):
        patched.setattr(os, "fsync", _full)
        until_in_thread(lambda: query.batch() and False)
    assert sum(job.open_messages()) == 3
    assert not list((job.folder / "journal").glob("*-*"))
    assert sent


def test_a_listener_that_fails_for_any_reason_ends_the_query(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.send(range(3))
    query = job.start()
    with monkeypatch.context() as patched, pytest.raises(JournalFailed, match=r"TypeError.*not a body"):
        patched.setattr(MessageColumns, "of_messages", _mistaken)
        until_in_thread(lambda: query.batch() and False)
    assert sum(job.open_messages()) == 3


def _mistaken(*_: Any) -> None:
    raise TypeError("not a body")


def _full(_handle: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_topic_that_cannot_be_fails_the_query(job: Job) -> None:
    job.topic = "not there"
    query = job.start()
    with pytest.raises(PopError, match="not there"):
        query.batch()
