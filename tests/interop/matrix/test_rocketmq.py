"""popclient at RocketMQ itself: what the scenarios of `test_clients.py` do not have, and what only PopMQ has."""

from __future__ import annotations

import queue
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from popclient import (
    ClientConfig,
    ConsumeResult,
    FilterExpression,
    LiteSimpleConsumer,
    Message,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
    QueuePushConsumer,
    SimpleConsumer,
    TransactionResolution,
    UnsupportedByServer,
)
from popclient.admin import Admin
from tests.interop.matrix import rocketmq
from tests.interop.matrix.conftest import Get
from tests.interop.matrix.rocketmq import group_of
from tests.interop.matrix.stage import AWAIT_S, DOCTORS
from tests.interop.seen import until
from tests.spark.stream_job import UNKNOWN, Job, letters_of, send
from tests.support.built_programs import do_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group(rocketmq.NAME),
    pytest.mark.row("O9"),
]
OPTIONS_OF_4X = Path(__file__).parents[3] / "docs" / "default-mq-push-consumer.md"
# What holds a consumer together, not what it can be told.
INNARDS = {"log", "defaultMQPushConsumerImpl"}
NOT_HERE = {"message_group", "lite_topic", "redrive_state", "plan_id", "topic"}  # the last one: it does not say it
HOLD_S = 10  # RocketMQ has no shorter one
PATIENCE_S = 60  # for what RocketMQ does in its own time


@pytest.fixture
def at(servers: Get) -> ClientConfig:
    """RocketMQ, and patience for a busy machine."""
    return ClientConfig(servers(rocketmq.NAME).endpoint, request_timeout=30.0)


def simple(at: ClientConfig, topic: str) -> SimpleConsumer:
    return SimpleConsumer(at, group_of(topic), topic, await_duration=AWAIT_S)


def received(consumer: SimpleConsumer, count: int, hold_s: float = 60) -> list[MessageView]:
    found: list[MessageView] = []

    def is_all() -> bool:
        found.extend(consumer.receive(32, hold_s))
        return len(found) >= count

    until(is_all, PATIENCE_S)
    return found


# ---- Beside the scenarios ----


def test_batches_of_a_message_group_come_in_order(at: ClientConfig) -> None:
    heard: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def listener(messages: Any) -> ConsumeResult:
        heard.put([each.text for each in messages])
        return ConsumeResult.SUCCESS

    sent = [str(number) for number in range(40)]
    with Producer(at) as producer:
        producer.send_many([Message("batches", body, message_group="UA") for body in sent]).raise_for_failures()
    came: list[str] = []
    with PushConsumer(at, group_of("batches"), "batches", listener, batch_size=8):
        while len(came) < len(sent):
            came += heard.get(timeout=PATIENCE_S)
    assert came == sent


def test_a_hold_is_kept(at: ClientConfig) -> None:
    with Producer(at) as producer, simple(at, "kept") as consumer:
        producer.send("kept", "UA1545")
        (message,) = received(consumer, 1, HOLD_S)
        first_end = message.invisible_until
        with message.keep_alive():
            until(lambda: message.invisible_until > first_end, PATIENCE_S)
        consumer.ack(message)


def test_a_message_is_given_up(at: ClientConfig) -> None:
    with Producer(at) as producer, simple(at, "forwarded") as consumer:
        sent = producer.send(Message("forwarded", "UA1545", tag="UA"))
        (message,) = received(consumer, 1)
        consumer.forward_to_dead_letter_queue(message, "no such flight")
    with SimpleConsumer(at, DOCTORS, f"%DLQ%{group_of('forwarded')}", await_duration=AWAIT_S) as doctor:
        (letter,) = received(doctor, 1)
        doctor.ack(letter)
    assert (letter.text, letter.tag) == ("UA1545", "UA")
    assert sent.message_id in (letter.message_id, letter.properties.get("DLQ_ORIGIN_MESSAGE_ID"))


def test_a_block_that_raises_sends_nothing(at: ClientConfig) -> None:
    """Nor is the server left with a half message that it would ask about: it asks about a younger one."""
    asked: list[str] = []

    def checker(half: MessageView) -> TransactionResolution:
        asked.append(half.text)
        return TransactionResolution.COMMIT

    with Producer(at, "decided", checker=checker) as producer, simple(at, "decided") as consumer:
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("decided", "never")):
            raise ZeroDivisionError
        with producer.transaction(Message("decided", "committed")):
            pass
        producer.transaction(Message("decided", "undecided")).__enter__()
        until(lambda: bool(asked), PATIENCE_S)
        assert {each.text for each in received(consumer, 2)} == {"committed", "undecided"}
    assert set(asked) == {"undecided"}


def test_a_namespace_means_nothing_to_it(at: ClientConfig) -> None:
    """As docs/compatibility.md warns."""
    with Producer(replace(at, namespace="team")) as producer:
        producer.send("named", "UA1545")
    with simple(at, "named") as consumer:
        (message,) = received(consumer, 1)
        consumer.ack(message)
    assert (message.topic, message.text) == ("named", "UA1545")


# ---- Spark ----


def test_a_journal_has_each_message_once(spark: SparkSession, at: ClientConfig, tmp_path: Path) -> None:
    more = {"mode": "journal", "journalPath": str(tmp_path / "journal"), "quietPeriod": "6s"}
    job = Job(spark, tmp_path, at.endpoints, "journal", **more)
    sent = send(at.endpoints, "journal", range(300), keys="a", tag="b", properties={"c": "d"})
    assert job.run(maxMessagesPerTrigger=100) == sent
    sent += send(at.endpoints, "journal", range(300, 310))
    assert job.run() == sent


def test_rows_are_sent(spark: SparkSession, at: ClientConfig) -> None:
    rows = spark.range(0, 300, 1, 3).selectExpr("concat('row ', id) AS body", "'UA' AS tag")
    rows.write.format("popmq").option("endpoints", at.endpoints).option("topic", "written").mode("append").save()
    with SimpleConsumer(at, group_of("written"), {"written": FilterExpression("UA")}, await_duration=AWAIT_S) as it:
        assert {each.text for each in received(it, 300)} == {f"row {number}" for number in range(300)}


def test_dead_letters_are_read_repaired_and_sent_again(spark: SparkSession, at: ClientConfig, tmp_path: Path) -> None:
    """With the columns of a database's dead letters, NULL where RocketMQ does not say it."""
    from popclient.spark import dlq

    group = group_of("lettered")
    sent = Message("lettered", "UA1545", tag="UA", keys=["N14228"], properties={"dest": "IAH"})
    with Producer(at) as producer, simple(at, "lettered") as consumer:
        receipt = producer.send(sent)
        (message,) = received(consumer, 1)
        consumer.forward_to_dead_letter_queue(message, "no such flight")
    more = {"mode": "journal", "journalPath": str(tmp_path / "journal"), "quietPeriod": "10s"}
    letters = {"topic": f"%DLQ%{group}", "columns": "dead_letters", "consumerGroup": DOCTORS}
    dead = letters_of(spark, tmp_path, {"endpoints": at.endpoints, **more, **letters})
    (row,) = dead.collect()
    assert (row.message_id, row.consumer_group) == (receipt.message_id, group)
    assert (bytes(row.body), row.tag, row["keys"]) == (b"UA1545", "UA", ["N14228"])
    assert row.properties == {"dest": "IAH"}
    assert row.born_timestamp < row.dead_timestamp
    assert {name for name in dead.columns if row[name] is None} == {*UNKNOWN, *NOT_HERE}
    mended = dlq.repair(dlq.classify(dead, "property:dest").where("class = 'IAH'"), body="'UA1546'", tag="NULL")
    back = dlq.messages(mended, target="lettered")
    back.write.format("popmq").option("endpoints", at.endpoints).mode("append").save()
    with simple(at, "lettered") as consumer:
        (again,) = received(consumer, 1)
        consumer.ack(again)
    assert (again.topic, again.text, again.tag, again.keys) == ("lettered", "UA1546", None, ("N14228",))


@pytest.mark.parametrize(
    ("mode", "more", "lacks"),
    [("queue", {}, "cannot read by offsets"), ("lease", {"leaseOwner": "job"}, "popmq.v1.Bulk")],
)
def test_other_modes_name_the_one_that_works(
    spark: SparkSession, at: ClientConfig, tmp_path: Path, mode: str, more: dict[str, str], lacks: str
) -> None:
    job = Job(spark, tmp_path, at.endpoints, "journal", mode=mode, **more)
    with pytest.raises(Exception, match=rf"(?s)UnsupportedByServer.*{lacks}.*mode='?journal"):
        job.run()


# ---- What only PopMQ has ----


def _pull(at: ClientConfig) -> None:
    with PullConsumer(at, DOCTORS) as consumer:
        consumer.assign("journal")
        consumer.poll(timeout=5)


def _queue_push(at: ClientConfig) -> None:
    QueuePushConsumer(at, DOCTORS, "journal", lambda messages, context: None).start()


def _lite(at: ClientConfig) -> None:
    with LiteSimpleConsumer(at, DOCTORS, "journal", "ada") as consumer:
        consumer.receive()


def _key(at: ClientConfig) -> None:
    with Producer(at) as producer:
        producer.send(Message("journal", b"once", idempotency_key="1"))


def _list(at: ClientConfig) -> None:
    with Admin(at) as admin:
        admin.list_topics()


def _stack(at: ClientConfig) -> None:
    with Admin(at) as admin:
        admin.print_threads("c")


@pytest.mark.parametrize(
    ("call", "name", "way_out"),
    [
        (_pull, "QueryOffset", "SimpleConsumer or PushConsumer"),
        (_queue_push, "QueryOffset", "SimpleConsumer or PushConsumer"),
        (_lite, "LITE_SIMPLE_CONSUMER", "use LitePushConsumer"),
        (_key, "idempotency key", "leave the key out"),
        (_list, "ListTopics", "mqadmin"),
        (_stack, "PrintThreadStackTrace", "mqadmin"),
    ],
)
def test_what_only_popmq_has_is_refused_by_name(
    at: ClientConfig, call: Callable[[ClientConfig], None], name: str, way_out: str
) -> None:
    with pytest.raises(UnsupportedByServer, match=f"{name}.*{way_out}"):
        call(at)


# ---- RocketMQ 4 ----


@pytest.mark.parametrize("of", ["client.consumer.DefaultMQPushConsumer", "client.ClientConfig"])
def test_every_option_of_a_4x_consumer_is_in_the_table(of: str) -> None:
    """As the jar of the newest RocketMQ has them."""
    try:
        jars = rocketmq.classpath()
    except rocketmq.Missing as missing:
        do_without(str(missing))
    command = ["javap", "-p", "-cp", jars, f"org.apache.rocketmq.{of}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.strip() for line in said.splitlines() if line.endswith(";") and "(" not in line]
    fields = {line.rstrip(";").split()[-1] for line in lines if " static " not in line} - INNARDS
    assert len(fields) > 30
    assert fields - _options_of_4x(OPTIONS_OF_4X.read_text()) == set()


def _options_of_4x(page: str) -> set[str]:
    """The words in the first columns of the two tables of fields."""
    lines = page.splitlines()
    starts = [
        lines.index("| DefaultMQPushConsumer | `QueuePushConsumer` | `PushConsumer` |"),
        lines.index("| ClientConfig of 4.x | here |"),
    ]
    rows = [row for start in starts for row in takewhile(lambda line: line.startswith("|"), lines[start + 2 :])]
    return {word for row in rows for word in re.findall(r"\w+", row.split("|")[1])}
