"""Topics by offsets, in a batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")


from popclient import FilterExpression, Message, Producer
from popclient.admin import Admin
from popclient.errors import NotFound
from popclient.spark.queue import reading
from popclient.spark.queue.ends import QueueEnds, created
from popclient.spark.queue.options import parse
from tests.spark.queue.seen import COUNT, QUEUES, Seen, numbers

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedClock


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
            "lite_topic": None,
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
def test_lite_topics_have_their_column(seen: Seen, admin: Admin) -> None:
    admin.create_topic("sessions", queue_count=QUEUES, accept_message_types=["LITE"])
    with Producer(seen.endpoint) as producer:
        sent = [Message("sessions", f"{number}", lite_topic=f"user-{number % 7}") for number in range(40)]
        producer.send_many(sent).raise_for_failures()
    rows = seen.read(topic="sessions")
    assert {row["body"]: row["lite_topic"] for row in rows} == {
        str(each.body).encode(): each.lite_topic for each in sent
    }
    assert {(row["message_type"], row["message_group"]) for row in rows} == {("LITE", None)}


def test_a_long_range_is_pulled_in_pieces(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BULK_MAX", 70)
    seen.send()
    assert numbers(seen.read()) == list(range(COUNT))
    assert seen.read(filterExpression="nobody") == []


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


@pytest.mark.usefixtures("way")
def test_no_message_at_or_beyond_the_end_is_read_when_a_filter_passes_over_some(seen: Seen) -> None:
    """The server looks for as many as are asked for, so it may find wanted ones beyond the end of the range."""
    seen.send()
    ends = {"0": 31, "1": 30, "2": 1, "3": 0}
    rows = seen.read(filterExpression="UA", endingOffsets=json.dumps({"flights": ends}))
    everything = seen.read(filterExpression="UA")
    inside = [row["message_id"] for row in everything if row["queue_offset"] < ends[str(row["queue_id"])]]
    assert sorted(row["message_id"] for row in rows) == sorted(inside)
    assert 0 < len(inside) < 61


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
    every, few = QueueEnds(parse(seen.options())), QueueEnds(parse(seen.options()))
    few._may_administrate = False
    ends = every.ends(["flights"])
    assert len(created(ends)) == 1
    assert {queue: each._replace(created_at_ms=None) for queue, each in ends.items()} == few.ends(["flights"])


def test_a_filter_is_that_of_the_clients(seen: Seen) -> None:
    assert parse(seen.options(filterExpression="a > 1", filterType="sql")).expression == FilterExpression.sql("a > 1")


def test_a_batch_without_a_group(seen: Seen, way: str) -> None:
    seen.send(100)
    assert numbers(seen.read(consumerGroup=None)) == list(range(100))
    with pytest.raises(ValueError, match="option consumerGroup is missing"):
        seen.stream(consumerGroup=None)


def test_a_topic_that_is_not_there_is_named_with_the_way_to_make_it(seen: Seen) -> None:
    with pytest.raises(NotFound, match="topic 'hotels' does not exist; create it with: popmq topic create hotels"):
        seen.read(topic="hotels")
