"""A stream on Spark 4.0 and 4.1, called as these call it: the latest offset is asked without a start."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.cloudpickle import dumps

from popclient.admin import Admin
from popclient.spark.queue.reading import DataLoss
from popclient.spark.streams import OlderStream
from tests.spark.queue.seen import QUEUES, Clock, Seen, numbers, of

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedClock


def rows(seen: Seen, stream: OlderStream, start: dict[str, object], end: dict[str, object]) -> list[int]:
    return numbers(seen.rows(stream, stream.partitions(start, end)))


def test_a_query_and_its_restart(seen: Seen) -> None:
    seen.send(100)
    first = OlderStream(seen.stream())
    start = first.initialOffset()
    end = first.latestOffset()
    assert rows(seen, first, start, end) == list(range(100))
    assert first.latestOffset() == end
    executor = pickle.loads(dumps(OlderStream(seen.stream())))
    assert numbers(seen.rows(executor, first.partitions(start, end))) == list(range(100))
    seen.send(50, first=100)
    second = OlderStream(seen.stream())
    assert second.partitions(end, end) == [], "so a restart begins"
    later = second.latestOffset()
    assert rows(seen, second, end, later) == list(range(100, 150))
    repeated = OlderStream(seen.stream())
    assert repeated.partitions(later, later) == []
    assert rows(seen, repeated, end, later) == list(range(100, 150))


def test_the_query_may_ask_for_the_end_first(seen: Seen) -> None:
    """As with availableNow: the initial offset is asked later, and was fixed then."""
    seen.send(100)
    stream = OlderStream(seen.stream())
    end = stream.latestOffset()
    seen.send(50, first=100)
    assert rows(seen, stream, stream.initialOffset(), end) == list(range(100))
    late = OlderStream(seen.stream(startingOffsets="latest"))
    assert of(late.latestOffset()) == of(late.initialOffset()) == 150


def test_the_group_shows_what_spark_has_committed(seen: Seen, admin: Admin) -> None:
    def lag() -> int:
        return sum(each.ready for each in admin.list_lag("reports"))

    seen.send(100)
    stream = OlderStream(seen.stream())
    start, end = stream.initialOffset(), stream.latestOffset()
    stream.partitions(start, end)
    assert lag() == 100, "the batch may fail"
    assert stream.latestOffset() == end
    assert lag() == 0


def test_an_idle_query_pauses(seen: Seen) -> None:
    clock = Clock()
    stream = OlderStream(seen.stream(clock=clock))
    for _ in range(7):
        stream.latestOffset()
    assert clock.slept == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0])


def test_queues_that_are_new(seen: Seen, admin: Admin) -> None:
    seen.send(100)
    stream = OlderStream(seen.stream(topic=None, topicsPattern=".*s"))
    start, end = stream.initialOffset(), stream.latestOffset()
    assert rows(seen, stream, start, end) == list(range(100))
    seen.send(10, topic="hotels", first=100)
    restarted = OlderStream(seen.stream(topic=None, topicsPattern=".*s"))
    restarted.partitions(end, end)
    assert rows(seen, restarted, end, restarted.latestOffset()) == list(range(100, 110))


def test_messages_that_were_removed_while_the_query_was_down(seen: Seen, pop_clock: EmbeddedClock) -> None:
    strict = OlderStream(seen.stream())
    start = strict.initialOffset()
    seen.send(200)
    pop_clock.advance("48h")
    seen.send(100, first=200)
    pop_clock.advance("25h")
    strict.partitions(start, start)
    with pytest.raises(DataLoss, match="were removed before they were read"):
        strict.latestOffset()
    lenient = OlderStream(seen.stream(failOnDataLoss="false"))
    lenient.partitions(start, start)
    assert rows(seen, lenient, start, lenient.latestOffset()) == list(range(200, 300))


def test_a_topic_that_was_recreated_while_the_query_was_down(
    seen: Seen, admin: Admin, pop_clock: EmbeddedClock
) -> None:
    seen.send(100)
    end = OlderStream(seen.stream()).latestOffset()
    admin.delete_topic("flights")
    pop_clock.advance("1s")
    admin.create_topic("flights", queue_count=QUEUES)
    seen.send(150)
    stream = OlderStream(seen.stream())
    stream.partitions(end, end)
    with pytest.raises(DataLoss, match="was recreated"):
        stream.latestOffset()
