"""What a pull finds in the store, and where it says to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from sqlalchemy import delete, update

from popserver.catalog import queue_offsets, topics
from popserver.database.schema import message, queue
from popserver.filters import Filter, tags
from popserver.filters import sql as filters_sql
from popserver.messages import seek
from popserver.model.errors import TopicNotFound
from popserver.model.names import dead_letter_topic
from popserver.pulling import read as pulling_read
from popserver.pulling.rules import BATCH_BYTES_MAX, Pulled, PullStatus
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.open_store import SECOND, OpenStore
from tests.support.plans import Plans
from tests.support.pulls import EVERYTHING, look, offsets, trim


@pytest.mark.row("B14")
@pytest.mark.parametrize(
    ("sent", "trimmed", "offset", "status", "next_offset"),
    [
        (10, 0, 10, PullStatus.NO_NEW_MSG, 10),
        (10, 0, 999, PullStatus.OFFSET_ILLEGAL, 10),
        (10, 5, 4, PullStatus.OFFSET_ILLEGAL, 5),
        (10, 5, -1, PullStatus.OFFSET_ILLEGAL, 5),
        (0, 0, 0, PullStatus.NO_NEW_MSG, 0),
        (0, 0, 7, PullStatus.OFFSET_ILLEGAL, 0),
        (10, 10, 0, PullStatus.OFFSET_ILLEGAL, 10),  # all of it was removed: where it ends
        (10, 10, 10, PullStatus.NO_NEW_MSG, 10),
        (10, 0, 0, PullStatus.NO_MATCHED_MSG, 10),
        (10, 0, 9, PullStatus.NO_MATCHED_MSG, 10),
        (10, 0, 1 << 62, PullStatus.OFFSET_ILLEGAL, 10),
    ],
)
def test_what_a_pull_that_gets_nothing_is_told(
    store: OpenStore, sent: int, trimmed: int, offset: int, status: PullStatus, next_offset: int
) -> None:
    topic = store.topic()
    if sent:
        store.send(topic, sent, tag="B")
    trim(store, topic, trimmed)
    pulled = look(store, topic, offset, wanted=tags.parse("A"))
    assert (pulled.status, pulled.next_offset, pulled.messages) == (status, next_offset, [])
    assert (pulled.min_offset, pulled.end_offset) == (trimmed, sent)


@pytest.mark.row("B12")
def test_a_hundred_messages_in_batches_of_32(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, 100)
    sizes, offset = [], 0
    while (pulled := look(store, topic, offset)).status is PullStatus.FOUND:
        assert pulled.next_offset > offset
        assert offsets(pulled) == list(range(offset, pulled.next_offset))
        sizes.append(len(pulled.messages))
        offset = pulled.next_offset
    assert sizes == [32, 32, 32, 4]


@pytest.mark.row("B12")
def test_a_batch_holds_so_many_bytes_and_at_least_one_message(store: OpenStore) -> None:
    topic = store.topic()
    half = BATCH_BYTES_MAX // 2
    store.send(topic, [a_message(body=b"x" * size) for size in (half, half, 1, 3 * half, 1)])
    batches, offset = [], 0
    while (pulled := look(store, topic, offset)).messages:
        assert pulled.next_offset > offset
        batches.append(offsets(pulled))
        offset = pulled.next_offset
    assert batches == [[0, 1], [2], [3], [4]]


def test_several_pulls_of_everything_cost_as_many_statements_as_one(store: OpenStore) -> None:
    """Also if the answer of each is just full."""
    topic = store.topic(queues=4)
    for number in range(4):
        store.send(topic, 4, queue=number, body=b"x")
    counts = []
    for queues in (topic.queues[:1], topic.queues):
        reads = [
            pulling_read.QueueRead(topic, each, 0, batch_size=3, wanted=EVERYTHING, max_bytes=3) for each in queues
        ]
        plans = Plans(store)
        with plans.caught():
            found = pulling_read.read_queues(store.conn, reads)
        assert [offsets(each) for each in found if isinstance(each, Pulled)] == [[0, 1, 2]] * len(queues)
        counts.append(plans.count)
    assert counts[0] == counts[1]


@pytest.mark.row("B15")
@pytest.mark.parametrize("wanted", [tags.parse("A"), filters_sql.parse("TAGS = 'A'")], ids=["tag", "sql"])
def test_the_next_offset_counts_what_was_passed_over(store: OpenStore, wanted: Filter) -> None:
    topic = store.topic()
    store.send(topic, [a_message(tag=each) for each in "BABBABBB"])
    first = look(store, topic, 0, wanted=wanted, batch_size=1)
    assert (offsets(first), first.next_offset) == ([1], 2)
    rest = look(store, topic, 2, wanted=wanted)
    assert (offsets(rest), rest.next_offset) == ([4], 8)


@pytest.mark.row("B8")
@pytest.mark.parametrize("wanted", [tags.parse("A"), filters_sql.parse("TAGS = 'A'")], ids=["tag", "sql"])
def test_a_thousand_unwanted_messages_are_passed_over_in_windows(
    store: OpenStore, wanted: Filter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling_read, "WINDOW_OFFSETS", 400)
    topic = store.topic()
    store.send(topic, 1_000, tag="B")
    reached = [0]
    while (pulled := look(store, topic, reached[-1], wanted=wanted)).status is PullStatus.NO_MATCHED_MSG:
        assert pulled.next_offset > reached[-1]
        reached.append(pulled.next_offset)
    assert reached == [0, 400, 800, 1_000]
    assert pulled.status is PullStatus.NO_NEW_MSG


@pytest.mark.row("M5")
def test_tags_of_one_hash_are_told_apart(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, [a_message(tag=each) for each in ("Aa", "BB", "Aa", "BB")])
    assert offsets(look(store, topic, wanted=tags.parse("Aa"))) == [0, 2]


def test_an_sql_filter_reads_the_properties(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, [a_message(properties={"table": str(number)}) for number in range(10)])
    pulled = look(store, topic, wanted=filters_sql.parse("table BETWEEN 3 AND 5"), batch_size=2)
    assert (offsets(pulled), pulled.next_offset) == ([3, 4], 5)


@pytest.mark.parametrize("wanted", ["*", "A"])
def test_holes_in_a_dead_letter_queue_end_no_loop(
    store: OpenStore, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling_read, "WINDOW_OFFSETS", 3)
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 12, tag="A")
    for held in store.receive(group, topic, 12):
        assert store.forward(group, held) is None
    letters = topics.find_topic(store.conn, dead_letter_topic(GROUP))
    assert letters is not None
    first = letters.queues[0].queue_id << 40
    store.conn.exec_driver_sql("DELETE FROM dead_letter WHERE dead_letter_id NOT IN (2, 12)")
    store.conn.exec_driver_sql(
        f"DELETE FROM message WHERE message_key >= {first} AND message_key NOT IN ({first + 1}, {first + 11})"
    )
    seen, offset, looks = [], 0, 0
    while (pulled := look(store, letters, offset, wanted=tags.parse(wanted))).status is not PullStatus.NO_NEW_MSG:
        assert pulled.next_offset > offset
        seen += offsets(pulled)
        offset, looks = pulled.next_offset, looks + 1
    assert (seen, offset) == ([1, 11], 12)
    assert looks <= 4


def test_a_topic_that_is_gone_is_named(store: OpenStore) -> None:
    topic = store.topic()
    store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
    with pytest.raises(TopicNotFound, match="'orders'"):
        look(store, topic)
    assert queue_offsets.ends_of_topic(store.conn, topic.topic_id) == []


def test_the_ends_of_all_queues(store: OpenStore) -> None:
    topic = store.topic(queues=3)
    for count, number in ((4, 0), (2, 2)):
        store.send(topic, count, queue=number)
    ends = queue_offsets.ends_of_topic(store.conn, topic.topic_id)
    assert [(each.number, each.min_offset, each.end_offset) for each in ends] == [(0, 0, 4), (1, 0, 0), (2, 0, 2)]


@pytest.mark.row("I3")
def test_an_offset_by_time(store: OpenStore) -> None:
    topic, start = store.topic(), store.now_ms
    at_ms = [start + seconds * SECOND for seconds in (0, 1, 1, 1, 4, 9)]
    for store.now_ms in at_ms:
        store.send(topic)
    place = topic.queues[0]
    found = [seek.offset_at(store.conn, topic, place, start + each) for each in (-1, 0, 1, 1_000, 1_001, 9_000, 9_001)]
    assert found == [0, 0, 1, 1, 4, 5, 6]
    trim(store, topic, 4)
    assert seek.offset_at(store.conn, topic, place, start) == 4


@pytest.mark.row("I3")
def test_an_offset_by_time_wherever_a_queue_begins_and_ends(store: OpenStore) -> None:
    """Of every length, so that no leap of the search goes too short or too far; and over a hole."""
    topic, start = store.topic(), store.now_ms

    def found(times: Iterable[int], oldest: int = 0) -> list[int]:
        store.conn.exec_driver_sql(f"UPDATE queue SET min_offset = {oldest}")
        return [seek.offset_at(store.conn, topic, topic.queues[0], start + each) for each in times]

    for count in range(18):
        for oldest in range(count + 1):
            assert found(range(-1, count + 1), oldest) == [
                min(max(oldest, each), count) for each in range(-1, count + 1)
            ]
        store.now_ms = start + count
        store.send(topic)
    store.conn.exec_driver_sql(f"DELETE FROM message WHERE stored_at_ms BETWEEN {start + 5} AND {start + 11}")
    assert found(range(18)) == [0, 1, 2, 3, 4, *[5] * 8, 13, 14, 15, 16, 17]


@pytest.mark.row("I3")
@pytest.mark.parametrize(
    "after",
    [lambda i: 10 * i, lambda i: i // 40, lambda i: max(0, 50 * (i - 380)), lambda i: min(i, 20), lambda i: i * i],
    ids=["evenly", "at a time", "late", "early", "ever slower"],
)
def test_an_offset_by_time_however_many_came_when(store: OpenStore, after: Callable[[int], int]) -> None:
    """Wherever the search looks first; and over holes."""
    topic, start, count = store.topic(), store.now_ms, 400
    for _ in range(4):
        store.send(topic, count // 4)
    times = [start + after(i) for i in range(count)]
    for i, at_ms in enumerate(times):
        store.conn.execute(update(message).values(stored_at_ms=at_ms).where(message.c.message_key % 2**40 == i))
    store.conn.execute(update(queue).values(newest_stored_at_ms=times[-1]))
    there = [*range(150), 200, *range(290, count)]
    store.conn.execute(delete(message).where((message.c.message_key % 2**40).not_in(there)))
    for at_ms in sorted({each + beside for each in times for beside in (-1, 0, 1)}):
        older = [offset for offset in there if times[offset] < at_ms]
        assert seek.offset_at(store.conn, topic, topic.queues[0], at_ms) == (older[-1] + 1 if older else 0)


def test_an_offset_by_time_where_the_newest_messages_were_removed(store: OpenStore) -> None:
    topic, start = store.topic(), store.now_ms
    for store.now_ms in range(start, start + 10):
        store.send(topic)
    store.conn.execute(delete(message).where(message.c.stored_at_ms >= start + 7))

    def found(after_ms: int) -> int:
        return seek.offset_at(store.conn, topic, topic.queues[0], start + after_ms)

    assert [found(after_ms) for after_ms in (0, 6, 7, 9, 10)] == [0, 6, 7, 7, 10]
    store.conn.execute(delete(message))
    assert found(5) == 10


def test_an_offset_by_time_in_an_empty_queue_is_its_end(store: OpenStore) -> None:
    topic = store.topic()
    assert seek.offset_at(store.conn, topic, topic.queues[0], store.now_ms) == 0
