"""Messages that were removed before they were read: never passed over in silence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")


from popclient.admin import Admin
from popclient.errors import NotFound, UnsupportedByServer
from popclient.message import MessageQueue
from popclient.spark import bulk
from popclient.spark.link import ServerLink
from popclient.spark.queue.offsets import Range
from popclient.spark.queue.options import parse
from popclient.spark.queue.reading import DataLoss, RangeReader, Ranges
from popserver import embedded
from tests.spark.queue.seen import QUEUES, Seen, next_offset, numbers

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedClock


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
    with pytest.raises(DataLoss, match="was recreated"):
        seen.rows(source, source.partitions(start, end))
    with pytest.raises(DataLoss, match="was recreated"):
        next_offset(source, end)
    lenient = seen.stream(failOnDataLoss="false")
    assert numbers(seen.rows(lenient, lenient.partitions(end, next_offset(lenient, end)))) == list(range(8))


def topic_recreated(admin: Admin, clock: EmbeddedClock) -> None:
    admin.delete_topic("flights")
    clock.advance("1s")
    admin.create_topic("flights", queue_count=QUEUES)


@pytest.mark.parametrize("count", [100, 150])
def test_a_topic_that_was_made_anew_and_is_as_long_by_now(
    seen: Seen, admin: Admin, pop_clock: EmbeddedClock, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    seen.send(100)
    strict, lenient = seen.stream(), seen.stream(failOnDataLoss="false")
    end = next_offset(strict, strict.initialOffset())
    next_offset(strict, end)
    topic_recreated(admin, pop_clock)
    seen.send(count)
    with pytest.raises(DataLoss, match=r"topic flights, queue \d: offset \d+ was next, and the topic was recreated"):
        next_offset(strict, end)
    with caplog.at_level(logging.WARNING, "popclient.spark"):
        later = next_offset(lenient, end)
    assert "was recreated" in caplog.text
    assert numbers(seen.rows(lenient, lenient.partitions(end, later))) == list(range(count))
    assert admin.list_lag("reports") == [], "the group has done nothing of this topic"
    assert next_offset(lenient, later) == later


def test_a_checkpoint_that_does_not_know_its_topic_yet_learns_it(
    seen: Seen, admin: Admin, pop_clock: EmbeddedClock
) -> None:
    seen.send(100)
    source = seen.stream()
    end = next_offset(source, source.initialOffset())
    unknown = {name: value for name, value in end.items() if name != "created"}
    learned = next_offset(source, unknown)
    assert learned == end
    assert list(source.partitions(unknown, learned)) == []
    source._queue_ends._may_administrate = False
    assert next_offset(source, learned) == learned, "and keeps it without the right to ask"
    seen.send(10, first=100)
    later = next_offset(source, learned)
    assert later["created"] == end["created"]
    topic_recreated(admin, pop_clock)
    seen.send(200)
    with pytest.raises(DataLoss, match="was recreated"):
        next_offset(seen.stream(), later)


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
    monkeypatch.setattr(ServerLink, "offers", lambda _link, _capability: True)
    monkeypatch.setattr(bulk, "pull", gone)
    assert numbers(seen.read()) == list(range(100))
