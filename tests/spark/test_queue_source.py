"""Mode `queue` as Spark calls it, against a broker in this process whose clock the test moves; no Spark is started."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from popclient import FilterExpression, Message, Producer, SimpleConsumer
from popclient._queue.message_queue import MessageQueue
from popclient.admin import Admin
from popclient.errors import NotFound, UnsupportedByServer
from popclient.spark import bulk
from popclient.spark.link import Link, link_to
from popclient.spark.message_columns import schema_of
from popclient.spark.queue.batch import QueueReader
from popclient.spark.queue.offsets import Range
from popclient.spark.queue.options import parse
from popclient.spark.queue.places import Places
from popclient.spark.queue.reading import DataLoss, RangeReader, Ranges
from popclient.spark.queue.stream import QueueStream
from popserver import embedded

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedBroker, EmbeddedClock

QUEUES = 4
COUNT = 1_000
ALL = ReadAllAvailable()


@pytest.fixture
def admin(pop_server: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(pop_server.endpoint) as admin:
        admin.create_topic("flights", queue_count=QUEUES)
        yield admin


@pytest.fixture(params=["in bulk", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How messages reach the reader: as columns, or as from a server that has not got them."""
    if request.param == "one by one":
        monkeypatch.setattr(Link, "offers", lambda _link, _capability: False)
    return str(request.param)


class Seen:
    """What a test's source says and reads."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def send(self, count: int = COUNT, topic: str = "flights", first: int = 0) -> None:
        with Producer(self.endpoint) as producer:
            for start in range(first, first + count, 50):  # requests of a few, so that each queue gets some
                some = range(start, min(start + 50, first + count))
                producer.send_many(flight(topic, number) for number in some).raise_for_failures()

    def options(self, **more: Any) -> dict[str, str]:
        given = {"endpoints": self.endpoint, "consumerGroup": "reports", "topic": "flights", **more}
        return {name: str(value) for name, value in given.items() if value is not None}

    def schema(self, wanted: str = "", **more: Any) -> StructType:
        return struct_of(wanted or schema_of(parse(self.options(**more)).columns))

    def batch(self, wanted: str = "", **more: Any) -> QueueReader:
        return QueueReader(parse(self.options(**more)), self.schema(wanted, **more))

    def stream(self, **more: Any) -> QueueStream:
        clock = more.pop("clock", None) or Clock()
        options = parse(self.options(**more))
        return QueueStream(options, self.schema(**more), clock.now, clock.sleep)

    def rows(self, source: QueueReader | QueueStream, parts: Iterable[InputPartition]) -> list[dict[str, Any]]:
        return [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]

    def read(self, wanted: str = "", **more: Any) -> list[dict[str, Any]]:
        source = self.batch(wanted, **more)
        return self.rows(source, source.partitions())


_PAIR = StructType().add("key", StringType()).add("value", BinaryType())
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "array<string>": ArrayType(StringType()),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(_PAIR),
}


def struct_of(ddl: str) -> StructType:
    """Without Spark's own parser, which needs a JVM."""
    struct = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        struct.add(name, _TYPES[kind])
    return struct


class Clock:
    """A monotonic clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


def flight(topic: str, number: int) -> Message:
    if number % 10 == 0:
        return Message(topic, f"flight {number}")
    properties = {"origin": ("JFK", "LGA")[number % 2], "distance": str(number)}
    return Message(
        topic, f"flight {number}", tag=("UA", "DL", "B6")[number % 3], keys=(f"{number}", "ü"), properties=properties
    )


@pytest.fixture
def seen(pop_server: EmbeddedBroker, admin: Admin) -> Seen:
    return Seen(pop_server.endpoint)


def numbers(rows: Iterable[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"].decode().removeprefix("flight ")) for row in rows)


def next_offset(source: QueueStream, start: dict[str, Any], limit: Any = ALL) -> dict[str, Any]:
    return source.latestOffset(start, limit)


def of(offset: dict[str, Any]) -> int:
    return sum(offset["q"].values())


# ---- A batch ----


@pytest.mark.usefixtures("way")
def test_every_message_once_with_all_that_it_says(seen: Seen, admin: Admin) -> None:
    seen.send()
    rows = seen.read()
    assert numbers(rows) == list(range(COUNT))
    peeked = {each.message_id: each for each in admin.peek_messages("flights", max_messages=1_000)}
    for row in rows:
        if (message := peeked.get(row["message_id"])) is None:
            continue
        properties = dict(row.pop("properties"))
        assert properties == message.properties
        assert row == {
            "message_id": message.message_id,
            "topic": "flights",
            "tag": message.tag,
            "keys": list(message.keys),
            "message_group": None,
            "message_type": "NORMAL",
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "body": message.body,
            "born_timestamp": message.born_timestamp.replace(
                microsecond=message.born_timestamp.microsecond // 1000 * 1000
            ),
            "store_timestamp": message.store_timestamp,
            "delivery_timestamp": None,
            "delivery_attempt": 1,
        }


@pytest.mark.usefixtures("way")
def test_filters(seen: Seen) -> None:
    seen.send()
    tagged = seen.read(filterExpression="UA || B6")
    assert numbers(tagged) == [n for n in range(COUNT) if n % 10 and n % 3 in (0, 2)]
    far = seen.read(filterExpression="distance > 900 AND origin = 'JFK'", filterType="SQL92")
    assert numbers(far) == [n for n in range(901, COUNT) if n % 10 and n % 2 == 0]
    assert seen.read(filterExpression="nobody") == []


@pytest.mark.usefixtures("way")
def test_a_schema_of_ones_own_reads_fewer_columns(seen: Seen) -> None:
    seen.send(10)
    rows = seen.read("queue_offset bigint, tag string")
    assert [set(row) for row in rows] == [{"queue_offset", "tag"}] * 10


@pytest.mark.parametrize(
    ("wanted", "said"), [("colour string", "a message has message_id"), ("tag binary", "tag' is string")]
)
def test_a_schema_that_does_not_fit_is_refused(seen: Seen, wanted: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        seen.batch(wanted)


@pytest.mark.usefixtures("way")
def test_columns_as_kafka_has_them(seen: Seen) -> None:
    seen.send(20)
    with Producer(seen.endpoint) as producer:
        producer.send("kafkaesque", "20", message_group="gate 7")
    (row,) = seen.read(topic="kafkaesque", columns="kafka", includeHeaders="true")
    assert (row["key"], row["value"], row["topic"]) == (b"gate 7", b"20", "kafkaesque")
    rows = {row["value"].decode(): row for row in seen.read(columns="kafka", includeHeaders="true")}
    assert set(rows["flight 0"]) == {
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    }
    assert rows["flight 0"]["key"] is None
    assert rows["flight 7"]["key"] == b"7"
    assert {each["key"]: each["value"] for each in rows["flight 7"]["headers"]} == {"origin": b"LGA", "distance": b"7"}
    assert rows["flight 7"]["timestampType"] == 1


@pytest.mark.usefixtures("way")
def test_bounds_by_offset(seen: Seen, admin: Admin) -> None:
    seen.send()
    ends = {each.id: each.max_offset for each in admin.get_topic("flights").queues}
    rows = seen.read(startingOffsets='{"flights": {"0": 5, "1": -1}}', endingOffsets='{"flights": {"0": 9, "2": -2}}')
    offsets = {queue: [row["queue_offset"] for row in rows if row["queue_id"] == queue] for queue in range(QUEUES)}
    assert sorted(offsets[0]) == [5, 6, 7, 8]
    assert offsets[1] == offsets[2] == []
    assert sorted(offsets[3]) == list(range(ends[3]))


def test_bounds_by_time(seen: Seen, pop_clock: EmbeddedClock) -> None:
    seen.send(100)
    pop_clock.advance("1h")
    seen.send(50, first=100)
    pop_clock.advance("1h")
    noon = seen.read("store_timestamp timestamp")
    later = max(row["store_timestamp"] for row in noon)
    assert numbers(seen.read(startingTimestamp=later.isoformat())) == list(range(100, 150))
    assert numbers(seen.read(endingTimestamp=later.isoformat())) == list(range(100))
    assert seen.read(startingTimestamp=9_000_000_000_000_000) == []


def test_offsets_that_are_not_there_are_refused(seen: Seen) -> None:
    seen.send(10)
    with pytest.raises(ValueError, match=r"no queue flights:9; topic flights has 0, 1, 2, 3"):
        seen.read(startingOffsets='{"flights": {"9": 1}}')
    with pytest.raises(ValueError, match=r"no queue hotels:0; the topics that are read are flights"):
        seen.read(startingOffsets='{"hotels": {"0": 1}}')
    with pytest.raises(ValueError, match=r"offset 999 of queue flights:0 is beyond its end"):
        seen.read(startingOffsets='{"flights": {"0": 999}}')
    with pytest.raises(NotFound, match="nobody"):
        seen.read(topic="nobody")


def test_a_batch_is_what_was_there_when_it_was_planned(seen: Seen) -> None:
    seen.send(100)
    source = seen.batch()
    parts = source.partitions()
    seen.send(100, first=100)
    assert numbers(seen.rows(source, parts)) == numbers(seen.rows(source, parts)) == list(range(100))


def test_several_topics_by_name_and_by_pattern(seen: Seen) -> None:
    seen.send(10)
    seen.send(10, topic="hotels", first=10)
    seen.send(10, topic="planes", first=20)
    assert numbers(seen.read(topic="flights,hotels")) == list(range(20))
    assert numbers(seen.read(topic=None, topicsPattern="(flight|plane)s")) == [*range(10), *range(20, 30)]
    assert seen.read(topic=None, topicsPattern="nothing.*") == []


def test_who_may_not_administrate_learns_the_same(seen: Seen) -> None:
    seen.send()
    every, few = Places(parse(seen.options())), Places(parse(seen.options()))
    few._may_administrate = False
    assert every.ends(["flights"]) == few.ends(["flights"])


# ---- What is not there any more ----


def removed(seen: Seen, clock: EmbeddedClock) -> None:
    """The first 200 messages go, the 100 after them stay."""
    seen.send(200)
    clock.advance("48h")
    seen.send(100, first=200)
    clock.advance("25h")


@pytest.mark.usefixtures("way")
def test_removed_offsets_fail_the_query_and_are_named(seen: Seen, pop_clock: EmbeddedClock) -> None:
    removed(seen, pop_clock)
    reader = RangeReader(parse(seen.options()), seen.schema())
    with pytest.raises(
        DataLoss,
        match=r"topic flights, queue 0: offsets 0 to \d+ were removed.* begins at \d+; set option failOnDataLoss",
    ):
        list(reader.read(Ranges([Range(MessageQueue("flights", 0), 0, 60)])))


@pytest.mark.usefixtures("way")
def test_or_are_passed_over_with_a_warning(
    seen: Seen, pop_clock: EmbeddedClock, caplog: pytest.LogCaptureFixture
) -> None:
    removed(seen, pop_clock)
    everything = '{"flights": {"0": 0, "1": 0, "2": 0, "3": 0}}'
    with caplog.at_level(logging.WARNING, "popclient.spark"):
        assert numbers(seen.read(startingOffsets=everything, failOnDataLoss="false")) == list(range(200, 300))
    assert "were removed" in caplog.text
    with pytest.raises(DataLoss, match="were removed"):
        seen.read(startingOffsets=everything)


def test_a_stream_that_fell_behind_retention(
    seen: Seen, pop_clock: EmbeddedClock, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = seen.stream(), seen.stream(failOnDataLoss="false")
    start = strict.initialOffset()
    removed(seen, pop_clock)
    with pytest.raises(DataLoss, match=r"topic flights, queue \d: offsets 0 to \d+ were removed before they were read"):
        next_offset(strict, start)
    with caplog.at_level(logging.WARNING, "popclient.spark"):
        end = next_offset(lenient, start)
    assert "were removed before they were read" in caplog.text
    assert numbers(seen.rows(strict, strict.partitions(start, end))) == list(range(200, 300))
    assert next_offset(lenient, end) == end


@pytest.mark.usefixtures("way")
def test_a_topic_that_was_made_anew(seen: Seen, admin: Admin) -> None:
    seen.send()
    source = seen.stream()
    start = source.initialOffset()
    end = next_offset(source, start)
    admin.delete_topic("flights")
    admin.create_topic("flights", queue_count=QUEUES)
    seen.send(8)
    with pytest.raises(DataLoss, match="was made anew"):
        seen.rows(source, source.partitions(start, end))
    with pytest.raises(DataLoss, match="was made anew"):
        next_offset(source, end)
    lenient = seen.stream(failOnDataLoss="false")
    assert numbers(seen.rows(lenient, lenient.partitions(end, next_offset(lenient, end)))) == list(range(8))


@pytest.mark.usefixtures("way")
def test_a_topic_that_is_gone() -> None:
    with embedded(auto_create=False) as broker, Admin(broker.endpoint) as admin:
        admin.create_topic("flights", queue_count=QUEUES)
        admin.create_group("reports")
        seen = Seen(broker.endpoint)
        seen.send(100)
        source, lenient = seen.batch(), seen.batch(failOnDataLoss="false")
        parts = source.partitions()
        admin.delete_topic("flights")
        with pytest.raises(DataLoss, match=r"queue 0: offsets 0 to \d+ are gone with their topic"):
            seen.rows(source, parts)
        assert seen.rows(lenient, parts) == []


def test_a_group_that_is_not_there_is_no_lost_topic() -> None:
    with embedded(auto_create=False) as broker, Admin(broker.endpoint) as admin:
        admin.create_topic("flights", queue_count=QUEUES)
        seen = Seen(broker.endpoint)
        seen.send(100)
        source = seen.stream(failOnDataLoss="false")
        with pytest.raises(NotFound, match="consumer group 'reports' does not exist"):
            next_offset(source, source.initialOffset())


def test_an_older_server_that_takes_the_place_of_one_with_bulk(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> Iterator[bulk.Chunk]:
        raise UnsupportedByServer("gRPC unimplemented: method not found")
        yield

    seen.send(100)
    monkeypatch.setattr(Link, "offers", lambda _link, _capability: True)
    monkeypatch.setattr(bulk, "pull", gone)
    assert numbers(seen.read()) == list(range(100))


# ---- A stream ----


@pytest.mark.row("O5")
@pytest.mark.usefixtures("way")
def test_a_batch_of_a_stream_can_be_read_again_from_its_two_offsets(seen: Seen) -> None:
    seen.send()
    source = seen.stream()
    start = source.initialOffset()
    middle = next_offset(source, start, ReadMaxRows(400))
    end = next_offset(source, middle, ReadMaxRows(5_000))
    assert (of(middle), of(end)) == (400, COUNT)
    first = numbers(seen.rows(source, source.partitions(start, middle)))
    again = seen.stream()  # a process that remembers nothing
    assert numbers(seen.rows(again, again.partitions(start, middle))) == first
    rest = numbers(seen.rows(again, again.partitions(middle, end)))
    assert sorted(first + rest) == list(range(COUNT))
    assert list(again.partitions(end, end)) == []


def test_a_limited_batch_takes_from_every_queue(seen: Seen, admin: Admin) -> None:
    seen.send()
    source = seen.stream()
    taken = next_offset(source, source.initialOffset(), ReadMaxRows(100))["q"]
    there = {f"flights/{each.id}": each.max_offset for each in admin.get_topic("flights").queues}
    assert sum(taken.values()) == 100
    assert all(abs(taken[queue] - there[queue] / COUNT * 100) <= 2 for queue in there)


def test_where_a_stream_begins(seen: Seen) -> None:
    seen.send(100)
    assert of(seen.stream().initialOffset()) == 0
    latest = seen.stream(startingOffsets="latest")
    assert of(latest.initialOffset()) == 100
    seen.send(10, first=100)
    assert of(latest.initialOffset()) == 100, "Spark asks twice, and must hear the same"
    start = latest.initialOffset()
    assert numbers(seen.rows(latest, latest.partitions(start, next_offset(latest, start)))) == list(range(100, 110))


def test_what_is_for_the_other_way_of_reading_is_refused(seen: Seen) -> None:
    with pytest.raises(ValueError, match=r"maxOffsetsPerTrigger=5 is for spark\.readStream"):
        seen.batch(maxOffsetsPerTrigger=5)
    with pytest.raises(ValueError, match=r"endingTimestamp is for spark\.read;"):
        seen.stream(endingOffsets="earliest")


def test_new_queues_and_new_topics_are_read_from_their_beginning(seen: Seen, admin: Admin) -> None:
    clock = Clock()
    seen.send(100)
    source = seen.stream(topic=None, topicsPattern="flights|f.*2", startingOffsets="latest", clock=clock)
    start = source.initialOffset()
    admin.update_topic("flights", queue_count=2 * QUEUES)
    seen.send(200, first=100)
    seen.send(50, first=300, topic="flights2")
    clock.at += 60
    end = next_offset(source, start)
    assert len(end["q"]) > len(start["q"])
    assert numbers(seen.rows(source, source.partitions(start, end))) == list(range(100, 350))


def test_what_is_available_now_is_what_was_there_at_the_beginning(seen: Seen) -> None:
    seen.send(100)
    source = seen.stream(startingOffsets="earliest")
    source.prepareForTriggerAvailableNow()
    start = source.initialOffset()
    seen.send(100, first=100)
    middle = next_offset(source, start, ReadMaxRows(60))
    end = next_offset(source, middle, ReadMaxRows(60))
    assert (of(middle), of(end)) == (60, 100)
    assert next_offset(source, end, ReadMaxRows(60)) == end
    latest = seen.stream(startingOffsets="latest")
    latest.prepareForTriggerAvailableNow()
    seen.send(10, first=200)
    assert next_offset(latest, latest.initialOffset()) == latest.initialOffset()


def test_an_idle_stream_asks_about_once_a_second(seen: Seen) -> None:
    clock = Clock()
    seen.send(10)
    source = seen.stream(clock=clock)
    end = next_offset(source, source.initialOffset())
    assert clock.slept == [], "what there is comes at once"
    looks = 0
    while clock.at < 60:
        assert next_offset(source, end) == end
        looks += 1
    assert looks <= 66
    seen.send(10, first=10)
    assert of(next_offset(source, end)) == 20


def test_a_checkpoint_of_another_source_is_refused(seen: Seen) -> None:
    with pytest.raises(ValueError, match="checkpointLocation of its own"):
        next_offset(seen.stream(), {"seq": 3})


# ---- Beside other consumers ----


@pytest.mark.user("U39")
@pytest.mark.row("O5")
def test_the_group_shows_what_spark_has_committed(seen: Seen, admin: Admin) -> None:
    seen.send()
    source = seen.stream()
    start = source.initialOffset()
    middle = next_offset(source, start, ReadMaxRows(400))
    assert source.reportLatestOffset() == {
        "v": 1,
        "q": {f"flights/{each.id}": each.max_offset for each in admin.get_topic("flights").queues},
        "lag": 600,
    }
    assert sum(each.ready for each in admin.list_lag("reports")) == COUNT, "planned is not done"
    next_offset(source, middle)
    assert sum(each.ready for each in admin.list_lag("reports")) == 600
    (lag,) = admin.get_group("reports").lag
    assert (lag.ready, lag.inflight) == (600, 0)


def test_a_group_that_consumes_by_messages_cannot_keep_a_streams_progress(seen: Seen) -> None:
    seen.send(10)
    with SimpleConsumer(seen.endpoint, "reports", "flights", await_duration=1) as consumer:
        consumer.ack(consumer.receive(1))
    source = seen.stream()
    with pytest.raises(
        ValueError, match=r"option consumerGroup='reports' cannot keep .* mode POP.* a group of its own"
    ):
        next_offset(source, source.initialOffset())
    assert len(seen.read()) == 10, "a batch keeps no progress"


def test_an_operator_moves_the_group_but_not_the_stream(seen: Seen, admin: Admin) -> None:
    seen.send()
    source = seen.stream()
    start = source.initialOffset()
    middle = next_offset(source, start, ReadMaxRows(400))
    end = next_offset(source, middle, ReadMaxRows(400))
    admin.reset_offsets("reports", "flights", "BEGINNING")
    assert sum(each.ready for each in admin.list_lag("reports")) == COUNT
    last = next_offset(source, end)  # told on the old count of resets, and refused
    assert of(last) == COUNT
    next_offset(source, last)
    assert sum(each.ready for each in admin.list_lag("reports")) == 0


def test_progress_that_cannot_be_shown_is_logged(
    seen: Seen, admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen.send(100)
    source = seen.stream()
    middle = next_offset(source, source.initialOffset(), ReadMaxRows(40))
    link = link_to(parse(seen.options()).server, "reports")
    ask = Link.ask
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "popclient.spark"):

        def failing(this: Link, work: Any, patience: float | None = None) -> Any:
            if patience is not None:
                raise NotFound("no such group")
            return ask(this, work, patience)

        patch.setattr(Link, "ask", failing)
        assert link is link_to(parse(seen.options()).server, "reports")
        end = next_offset(source, middle)
    assert "the progress of group reports is shown later" in caplog.text
    next_offset(source, end)
    assert sum(each.ready for each in admin.list_lag("reports")) == 0


def test_a_filter_is_that_of_the_clients(seen: Seen) -> None:
    assert parse(seen.options(filterExpression="a > 1", filterType="sql")).expression == FilterExpression.sql("a > 1")
