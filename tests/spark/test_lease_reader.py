"""The mode `lease`, batch by batch, on a real server whose clock the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.types import BinaryType, StringType, StructType

import popserver
from popclient import Message, Producer, SimpleConsumer, UnsupportedByServer
from popclient.admin import Admin
from popclient.errors import Forbidden
from popclient.spark import bulk
from popclient.spark.bulk import TooMuchHeld
from popclient.spark.lease.holding import LeaseCalls, LeaseLost, LeaseTaken, Renewal
from popclient.spark.lease.options import parse
from popclient.spark.lease.source import LeaseStream
from tests.spark.stepping import ALL_COLUMNS, Stepping
from tests.support.scripted_server import ServerThread, until_in_thread

INVISIBLE = "60s"
LATER = "61s"


@pytest.fixture(scope="module")
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded(manual_clock=True) as broker:
        yield broker


_names = count(1)


class Job:
    """A query that is started again and again, as by a new process each time."""

    def __init__(self, endpoints: str) -> None:
        self.topic = f"leased-{next(_names)}"
        self.endpoints = endpoints
        self.query = Stepping()
        self.readers: list[LeaseStream] = []

    def send(self, bodies: range, **fields: Any) -> list[str]:
        with Producer(self.endpoints) as producer:
            for body in bodies:
                producer.send(Message(self.topic, str(body), **fields))
        return [str(body) for body in bodies]

    def start(self, *, available_now: bool = True, schema: StructType = ALL_COLUMNS, **more: Any) -> Stepping:
        options = {
            "endpoints": self.endpoints,
            "topic": self.topic,
            "consumerGroup": "g",
            "leaseOwner": "job",
            "invisibleDuration": INVISIBLE,
            **{name: str(value) for name, value in more.items()},
        }
        reader = LeaseStream(parse(options), schema)
        self.readers.append(reader)
        self.query.start(reader, available_now=available_now)
        return self.query

    def open_messages(self) -> tuple[int, int]:
        """Ready, and in somebody's hands."""
        with Admin(self.endpoints) as admin:
            lags = admin.list_lag("g", self.topic)
        return sum(lag.ready for lag in lags), sum(lag.inflight for lag in lags)

    def compete(self, messages: int) -> list[str]:
        """What another consumer of the group gets, and acks."""
        with SimpleConsumer(self.endpoints, "g", self.topic) as other:
            got = other.receive(messages, await_duration=5)
            other.ack(got)
        return [message.text for message in got]


@pytest.fixture
def job(broker: popserver.EmbeddedBroker) -> Iterator[Job]:
    job = Job(broker.endpoint)
    yield job
    for reader in job.readers:
        reader.stop()


@pytest.mark.row("O5")
@pytest.mark.user("U40")
def test_everything_once_and_the_last_batch_is_acked_too(job: Job) -> None:
    sent = job.send(range(35))
    query = job.start(maxMessagesPerTrigger=10)
    query.run()
    assert sorted(query.bodies, key=int) == sent
    assert [offset["messages"] for offset in query.planned] == [0, 10, 10, 10, 5]
    assert job.open_messages() == (0, 0)


@pytest.mark.row("O5")
@pytest.mark.user("U40")
def test_a_replay_is_the_same_while_the_lease_lives(job: Job, broker: popserver.EmbeddedBroker) -> None:
    """Other messages and other consumers make no difference; the lease is renewed by taking it up."""
    job.send(range(20))
    first = job.start(maxMessagesPerTrigger=10).batch()
    job.query.committed -= 1
    job.send(range(20, 25))
    for _ in range(3):
        broker.clock.advance("40s")
        job.start()
        assert job.query.read_again() == first
    job.query.rows.clear()
    job.query.run()
    assert sorted(job.query.bodies, key=int) == [str(number) for number in range(25)]
    assert job.open_messages() == (0, 0)


def test_what_was_received_before_a_crash_is_the_next_batch(job: Job) -> None:
    sent = job.send(range(10))
    query = job.start(maxMessagesPerTrigger=7)
    never_written = query.reader.latestOffset(query.planned[0], query.reader.getDefaultReadLimit())
    job.start(maxMessagesPerTrigger=100)
    query.run()
    assert query.planned[1] == never_written
    assert sorted(query.bodies, key=int) == sent


@pytest.mark.row("O5")
@pytest.mark.user("U40")
def test_a_lease_that_a_competitor_took(
    job: Job, broker: popserver.EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost: it was taken, or it comes as a new message."""
    sent = job.send(range(10))
    job.start().batch()
    job.query.rows.clear()
    job.query.committed -= 1
    broker.clock.advance(LATER)
    taken = job.compete(4)
    job.start(failOnLeaseLoss=True)
    with pytest.raises(
        LeaseLost, match=rf"batch 1 of option leaseOwner='job' has lost 10 of 10 messages of topic {job.topic}"
    ):
        job.query.batch()
    job.start()
    assert job.query.batch() == []
    assert "has lost 10 of 10 messages" in caplog.text
    job.query.run()
    assert len(taken) == 4
    assert sorted(taken + job.query.bodies, key=int) == sent
    assert {row["delivery_attempt"] for row in job.query.rows} == {2}


def test_a_lease_that_ended_while_spark_worked_is_told(
    job: Job, broker: popserver.EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    sent = job.send(range(5))
    query = job.start(available_now=False)
    query.batch()
    broker.clock.advance(LATER)  # as after a renewal that could not be made
    assert len(query.batch()) == 5
    assert "has lost 5 of 5 messages" in caplog.text
    assert sorted(query.bodies) == sorted(sent * 2)


def test_message_groups_go_on_as_soon_as_spark_has_committed(job: Job) -> None:
    sent = job.send(range(40), message_group="one")
    query = job.start(maxMessagesPerTrigger=15)
    query.run()
    assert query.bodies == sent
    assert job.open_messages() == (0, 0)


def test_an_idle_query_acks_its_last_batch(job: Job) -> None:
    job.send(range(3))
    query = job.start(available_now=False)
    assert len(query.batch()) == 3
    assert job.open_messages() == (0, 3)
    assert query.batch() == []
    assert job.open_messages() == (0, 0)


def test_available_now_ends_though_new_messages_come_all_the_time(job: Job) -> None:
    sent = job.send(range(20))
    query = job.start(maxMessagesPerTrigger=3)
    numbers = count(100, 3)
    while query.batch():
        next_one = next(numbers)
        job.send(range(next_one, next_one + 3))
    assert set(sent) <= set(query.bodies)
    assert len(query.bodies) == len(set(query.bodies))


def test_messages_that_came_back_are_read_by_available_now(job: Job, broker: popserver.EmbeddedBroker) -> None:
    sent = job.send(range(4))
    with SimpleConsumer(job.endpoints, "g", job.topic) as other:
        assert len(other.receive(4, invisible_duration=10, await_duration=5)) == 4
    broker.clock.advance("11s")
    job.start().run()
    assert sorted(job.query.bodies) == sent


def test_what_is_left_to_do_is_in_the_progress(job: Job) -> None:
    job.send(range(5))
    query = job.start(maxMessagesPerTrigger=2)
    query.batch()
    names = {"v": 1, "group": "g", "topic": job.topic}
    assert query.reader.reportLatestOffset() == {**names, "lag": 3, "inflight": 2}


def test_a_user_without_rights_still_has_a_progress_that_can_be_parsed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object) -> None:
        raise Forbidden("only an admin may")

    job.send(range(1))
    query = job.start()
    query.batch()
    monkeypatch.setattr(Admin, "list_lag", refuse)
    assert query.reader.reportLatestOffset() == {"v": 1, "group": "g", "topic": job.topic}


def test_only_what_is_wanted(job: Job) -> None:
    wanted = job.send(range(4), tag="a", properties={"distance": "900"})
    job.send(range(4, 8), tag="b", properties={"distance": "1100"})
    job.start(subExpression="a || c").run()
    assert sorted(job.query.bodies) == wanted
    assert job.open_messages() == (0, 0)


def test_columns_as_kafka_names_them(job: Job) -> None:
    job.send(range(1), keys=["k", "l"])
    job.start(schema=StructType().add("value", BinaryType()).add("topic", StringType()), columns="kafka").run()
    assert job.query.rows == [{"value": b"0", "topic": job.topic}]


def test_many_receives_make_a_batch_of_few_partitions(job: Job) -> None:
    with Producer(job.endpoints) as producer:
        producer.send_many([Message(job.topic, str(number)) for number in range(2_500)]).raise_for_failures()
    query = job.start(numPartitions=2)
    query.run()
    assert [(offset["parts"] >= 3, offset["messages"]) for offset in query.planned[1:]] == [(True, 2_500)]
    assert len(set(query.bodies)) == 2_500


# ---- What goes wrong ----


def test_two_queries_with_one_lease_owner_are_noticed(job: Job) -> None:
    job.send(range(30))
    mine = job.start(maxMessagesPerTrigger=5)
    mine.batch()
    job.query = Stepping()
    other = job.start(maxMessagesPerTrigger=5)
    assert other.batch() == mine.rows  # the first batch of each is batch 1, and might have been left by a crash
    other.batch()
    with pytest.raises(LeaseTaken, match="option leaseOwner='job' is held already"):
        mine.batch()


def test_a_receive_that_brings_more_than_a_process_should_have(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bodies do that were packed; the next try asks for fewer, when the holds have ended."""
    job.send(range(20))
    query = job.start()
    monkeypatch.setattr(bulk, "HELD_BYTES_MAX", 100)
    with pytest.raises(TooMuchHeld, match=r"receive job/1/0 of topic .* more than 100 bytes.*maxMessagesPerTrigger"):
        query.batch()


def test_a_server_without_bulk_is_named_with_the_way_out() -> None:
    with ServerThread(capabilities="") as server:
        job = Job(server.endpoints)
        with pytest.raises(
            UnsupportedByServer, match=r"needs a PopMQ server with popmq.v1.Bulk.*mode='journal'.*popmq\[fast\]"
        ):
            job.start(available_now=False).batch()


# ---- Renewal ----


class _Renewed(LeaseCalls):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def renew(self, attempt_id: str) -> int:
        self.calls.append(attempt_id)
        if attempt_id == "breaks":
            raise UnsupportedByServer("the server has gone")
        return 1


def test_a_lease_is_renewed_every_third_of_its_duration_until_it_is_let_go() -> None:
    holds = _Renewed()
    renewal = Renewal(holds, 60)
    renewal.keep(["breaks", "a"])
    until_in_thread(lambda: holds.calls.count("a") >= 2)
    assert holds.calls.count("breaks") >= 2  # a failure is no end
    renewal.keep(["b"])
    until_in_thread(lambda: holds.calls.count("b") >= 2)
    renewal.keep(())
    until_in_thread(lambda: renewal._attempt_ids == ())
    thread = renewal._thread
    renewal.stop()
    until_in_thread(lambda: thread is not None and not thread.is_alive())


# ---- Options ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a,b"}, "option topic='a,b' is not allowed; give the one topic to receive"),
        ({"leaseOwner": "x" * 201}, "give at most 200 printable characters"),
        ({"leaseOwner": "a\nb"}, "give at most 200 printable characters"),
        ({"invisibleDuration": "9s"}, "option invisibleDuration='9s' is not allowed; give a duration such as"),
        ({"maxMessagesPerTrigger": "0"}, "option maxMessagesPerTrigger='0' is not allowed; give a whole number from 1"),
        ({"failOnLeaseLoss": "maybe"}, "option failOnLeaseLoss='maybe' is not allowed; give true or false"),
        ({"startingOffsets": "latest"}, "option startingoffsets='latest' is unknown; allowed are mode, topic"),
    ],
)
def test_a_wrong_option_is_named(job: Job, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        job.start(**options)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["endpoints", "topic", "consumerGroup", "leaseOwner"])
def test_a_missing_option_is_named(name: str) -> None:
    options = {"endpoints": "127.0.0.1:1", "topic": "t", "consumerGroup": "g", "leaseOwner": "o"}
    del options[name]
    with pytest.raises(ValueError, match=f"option {name} is missing"):
        parse(options)
