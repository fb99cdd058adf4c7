"""popclient at a RocketMQ cluster of two masters, whose processes are killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from popclient import ClientConfig, PopError, Producer, SimpleConsumer
from tests.interop.matrix import rocketmq
from tests.interop.matrix.stage import AWAIT_S
from tests.interop.seen import until
from tests.spark.stream_job import Job
from tests.support.built_programs import do_without
from tests.support.rocketmq_cluster import BROKERS, NAME_SERVER, PROXY, Cluster, accepting, cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group(rocketmq.NAME),
    pytest.mark.row("O9"),
]
PATIENCE_S = 120  # for what RocketMQ does in its own time: routes are thirty seconds old
HOLD_S = 60
TOPIC, GROUP = "orders", "kitchen"
BOOKINGS, LEDGER = "bookings", "group-of-bookings"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        topics = dict.fromkeys((TOPIC, BOOKINGS), accepting("NORMAL"))
        with cluster(tmp_path_factory.mktemp("cluster"), topics, {GROUP: {}, LEDGER: {}}) as it:
            yield it
    except rocketmq.Missing as missing:
        do_without(str(missing))


@pytest.fixture
def at(running: Cluster) -> ClientConfig:
    return ClientConfig(running.endpoint, request_timeout=30.0)


def sends(producer: Producer, count: int) -> set[str]:
    """Message ids of `count` sends that the cluster has taken, those of one process may fail meanwhile."""
    sent: set[str] = set()

    def is_all() -> bool:
        try:
            sent.add(producer.send(TOPIC, "one espresso").message_id)
        except PopError:
            return False
        return len(sent) >= count

    until(is_all, PATIENCE_S)
    return sent


def receives(consumer: SimpleConsumer, sent: set[str]) -> None:
    """Until each of these was received and acked."""
    missing = set(sent)

    def is_all() -> bool:
        try:
            messages = consumer.receive(32, HOLD_S)
            missing.difference_update(each.message_id for each in messages)
            consumer.ack(messages)
        except PopError:
            return False
        return not missing

    until(is_all, PATIENCE_S)


def test_one_receive_looks_at_both_masters(at: ClientConfig) -> None:
    with Producer(at, TOPIC) as producer, SimpleConsumer(at, GROUP, TOPIC, await_duration=AWAIT_S) as consumer:
        for _ in range(16):
            sent = producer.send(TOPIC, "one espresso").message_id
            (message,) = consumer.receive(32, HOLD_S)
            consumer.ack(message)
            assert message.message_id == sent


@pytest.mark.parametrize("killed", BROKERS)
def test_sends_go_on_at_the_other_master(running: Cluster, at: ClientConfig, killed: str) -> None:
    with Producer(at, TOPIC) as producer, SimpleConsumer(at, GROUP, TOPIC, await_duration=AWAIT_S) as consumer:
        before = sends(producer, 20)
        running.kill(killed)
        during = sends(producer, 20)
        running.start(killed)
        receives(consumer, before | during)
        receives(consumer, sends(producer, 20))


@pytest.mark.parametrize("killed", [NAME_SERVER, PROXY])
def test_the_cluster_goes_on_when_a_process_is_back(running: Cluster, at: ClientConfig, killed: str) -> None:
    with Producer(at, TOPIC) as producer, SimpleConsumer(at, GROUP, TOPIC, await_duration=AWAIT_S) as consumer:
        running.kill(killed)
        running.start(killed)
        receives(consumer, sends(producer, 20))


@pytest.mark.parametrize("killed", BROKERS)
def test_a_journal_has_each_message_once(
    running: Cluster, at: ClientConfig, killed: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Also those that were held, or not acked yet, when their master was killed."""
    job = Job(spark, tmp_path, at.endpoints, BOOKINGS, mode="journal", journalPath=str(tmp_path / "journal"))
    numbers = itertools.count()
    sent: set[str] = set()

    def stored() -> bool:
        body = f"{killed} {next(numbers)}"
        try:
            producer.send(BOOKINGS, body)
        except PopError:
            return False
        sent.add(body)
        return True

    def more() -> None:
        """Twenty more that the cluster has taken; it may have stored others too."""
        for _ in range(20):
            until(stored, PATIENCE_S)

    query = job.start(every="0 seconds")
    with Producer(at, BOOKINGS) as producer:
        more()
        until(lambda: bool(job.rows), PATIENCE_S)
        running.kill(killed)
        more()
        running.start(killed)
        more()
        until(lambda: sent <= set(job.rows) or not query.isActive, PATIENCE_S)
    query.stop()
    assert query.exception() is None
    assert sent <= set(job.rows)
    assert len(set(job.rows)) == len(job.rows)
