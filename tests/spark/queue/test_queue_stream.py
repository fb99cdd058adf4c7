"""Topics by offsets, as a stream; its progress beside that of other consumers."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient import SimpleConsumer
from popclient.admin import Admin
from popclient.errors import NotFound
from popclient.spark.link import ServerLink, link_to
from popclient.spark.queue.options import parse
from popclient.spark.streams import ReadMaxRows
from tests.spark.queue.seen import COUNT, QUEUES, Clock, Seen, next_offset, numbers, of


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
        "group": "reports",
        "lag": 600,
    }
    again = seen.stream()  # in a new process, which Spark has not asked for offsets yet
    assert again.reportLatestOffset() == source.reportLatestOffset() | {"lag": COUNT}
    again.partitions(start, middle)
    assert again.reportLatestOffset()["lag"] == 600
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
    ask = ServerLink.ask
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "popclient.spark"):

        def failing(this: ServerLink, work: Any, patience: float | None = None) -> Any:
            if patience is not None:
                raise NotFound("no such group")
            return ask(this, work, patience)

        patch.setattr(ServerLink, "ask", failing)
        assert link is link_to(parse(seen.options()).server, "reports")
        end = next_offset(source, middle)
    assert "the progress of group reports is committed later" in caplog.text
    next_offset(source, end)
    assert sum(each.ready for each in admin.list_lag("reports")) == 0
