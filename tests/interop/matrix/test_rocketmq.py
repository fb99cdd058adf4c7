"""popclient at RocketMQ itself: a journal of Spark, and what only PopMQ has. Scenarios are in `test_clients.py`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from popclient import Message, Producer, PullConsumer, QueuePushConsumer, UnsupportedByServer
from popclient.admin import Admin
from tests.interop.matrix import rocketmq
from tests.interop.matrix.conftest import Get
from tests.interop.matrix.rocketmq import JOURNAL
from tests.interop.matrix.stage import DOCTORS
from tests.spark.stream_job import Job, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group(rocketmq.NAME),
    pytest.mark.row("O9"),
]
QUEUES = Path(__file__).parents[3] / "docs" / "queues.md"
# What holds a consumer together, not what it can be told.
INNARDS = {"log", "defaultMQPushConsumerImpl"}


@pytest.fixture
def endpoint(servers: Get) -> str:
    return servers(rocketmq.NAME, False).endpoint


def test_a_journal_has_each_message_once(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    more = {"mode": "journal", "journalPath": str(tmp_path / "journal"), "quietPeriod": "6s"}
    job = Job(spark, tmp_path, endpoint, JOURNAL, **more)
    sent = send(endpoint, JOURNAL, range(300), keys="a", tag="b", properties={"c": "d"})
    assert job.run(maxMessagesPerTrigger=100) == sent
    sent += send(endpoint, JOURNAL, range(300, 310))
    assert job.run() == sent


def _pull(endpoint: str) -> None:
    with PullConsumer(endpoint, DOCTORS) as consumer:
        consumer.assign(JOURNAL)
        consumer.poll(timeout=5)


def _queue_push(endpoint: str) -> None:
    QueuePushConsumer(endpoint, DOCTORS, JOURNAL, lambda messages, context: None).start()


def _key(endpoint: str) -> None:
    with Producer(endpoint) as producer:
        producer.send(Message(JOURNAL, b"once", idempotency_key="1"))


def _admin(endpoint: str) -> None:
    with Admin(endpoint) as admin:
        admin.list_topics()


@pytest.mark.parametrize(
    ("call", "name"),
    [(_pull, "QueryOffset"), (_queue_push, "Legacy"), (_key, "idempotency key"), (_admin, "popmq.v1.Admin")],
)
def test_what_only_popmq_has_is_refused_by_name(endpoint: str, call: Callable[[str], Any], name: str) -> None:
    with pytest.raises(UnsupportedByServer, match=name):
        call(endpoint)


@pytest.mark.parametrize("of", ["client.consumer.DefaultMQPushConsumer", "client.ClientConfig"])
def test_every_option_of_a_4x_consumer_is_in_the_table(of: str) -> None:
    """As the jar of the newest RocketMQ has them."""
    command = ["javap", "-p", "-cp", rocketmq.classpath(), f"org.apache.rocketmq.{of}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.strip() for line in said.splitlines() if line.endswith(";") and "(" not in line]
    fields = {line.rstrip(";").split()[-1] for line in lines if " static " not in line} - INNARDS
    assert len(fields) > 30
    page = QUEUES.read_text()
    assert {field for field in fields if field not in page} == set()
