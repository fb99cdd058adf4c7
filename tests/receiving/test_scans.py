"""What the scan reads of new messages on the store: how many, how far, and what it leaves to a later search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from popserver.catalog.progress import QueueToScan
from popserver.filters import Filter, sql, tags
from popserver.messages.by_key import DEFERRED, SMALL_BODY_BYTES
from popserver.model.group import Group
from popserver.model.topic import Topic, offset_of
from popserver.receiving import receive, scan
from tests.support.builders import in_order, messages_of
from tests.support.open_store import OpenStore, a_receive
from tests.support.progress import ORDERED, offsets_of

LARGE = bytes(SMALL_BODY_BYTES + 1)
EVERYTHING, TAGGED, JUDGED = tags.EVERYTHING, tags.parse("A || B || C"), sql.parse("a = '1'")


class Scanned(NamedTuple):
    """The offsets of the messages found, whether messages may be left, and the group's progress in each queue."""

    found: list[int]
    left_over: bool
    progress: list[int]
    bodies: list[Any]


def scanned(
    store: OpenStore,
    group: Group,
    topic: Topic,
    limit: int = 32,
    wanted: Filter = EVERYTHING,
    *,
    beside_open_groups: bool = False,
    changed: Callable[[QueueToScan], QueueToScan] = lambda queue: queue,
) -> Scanned:
    """Read new messages, then leave all as it was. `changed` changes what the scan knows of a queue."""
    request = a_receive(group, topic, limit, wanted=wanted)
    judged = store.survey(request, enough=1_000).judged if wanted is JUDGED else request.judged
    with store.rolled_back() as tx:
        batch = receive.receive_batch_of([request])._replace(judged=judged)
        queues = [changed(each) for each in scan.queues_of(tx.conn, batch)]
        found, left_over = scan.read_on(tx, batch, queues, limit, beside_open_groups=beside_open_groups)
        reached = store.rows("SELECT next_offset FROM progress ORDER BY queue_id")
        return Scanned(
            [offset_of(each.row.message_key) for each in found],
            left_over,
            [row.next_offset for row in reached],
            [each.row.body for each in found],
        )


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(queues=2)


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


@pytest.fixture
def ordered(store: OpenStore) -> Topic:
    return store.topic("ordered", queues=1, accepts=ORDERED)


def fill(store: OpenStore, topic: Topic, *counts: int, **more: Any) -> None:
    """So many messages in each queue."""
    for number, count in enumerate(counts):
        store.send(topic, messages_of(count, topic.name, **more), queue=number)


class TestHowFar:
    def test_it_reads_the_queues_until_it_has_enough(self, store: OpenStore, topic: Topic, group: Group) -> None:
        fill(store, topic, 3, 3)
        assert scanned(store, group, topic, 3)[:3] == ([0, 1, 2], True, [3, 0])
        assert scanned(store, group, topic, 4)[:3] == ([0, 1, 2, 0], True, [3, 1])
        assert scanned(store, group, topic, 6)[:3] == ([0, 1, 2, 0, 1, 2], False, [3, 3])

    def test_a_queue_that_is_read_leaves_nothing_over(self, store: OpenStore, topic: Topic, group: Group) -> None:
        fill(store, topic, 3, 3)
        assert len(store.receive(group, topic, 3)) == 3
        found = scanned(store, group, topic, 3, changed=lambda queue: queue._replace(next_offset=3))
        assert found[:3] == ([], False, [3, 0])

    def test_it_goes_on_after_a_queue_that_is_read(self, store: OpenStore, topic: Topic, group: Group) -> None:
        fill(store, topic, 3, 3)
        with store.rolled_back() as tx:
            batch = receive.receive_batch_of([a_receive(group, topic)])
            first, second = scan.queues_of(tx.conn, batch)
            queues = [first._replace(next_offset=3), second]
            found, left_over = scan.read_on(tx, batch, queues, 32, beside_open_groups=False)
            assert ([offset_of(each.row.message_key) for each in found], left_over) == ([0, 1, 2], False)
            found, left_over = scan.read_on(tx, batch, queues[::-1], 3, beside_open_groups=False)
            assert (len(found), left_over) == (3, False)

    def test_offsets_without_messages_are_passed(self, store: OpenStore, topic: Topic, group: Group) -> None:
        """Messages that somebody removed by hand."""
        fill(store, topic, 2, 2)
        found = scanned(store, group, topic, changed=lambda queue: queue._replace(end_offset=9))
        assert found[:3] == ([0, 1, 0, 1], False, [9, 9])
        store.conn.exec_driver_sql("DELETE FROM message")
        assert scanned(store, group, topic)[:3] == ([], False, [2, 2])


class TestWithAFilter:
    """Each offset counts, in all queues together, and each queue costs as much as the filter has tags."""

    @pytest.mark.parametrize(
        ("wanted", "window", "progress"),
        [
            *((TAGGED, *each) for each in ((0, [1, 0]), (4, [5, 0]), (10, [11, 0]))),
            *((TAGGED, *each) for each in ((15, [12, 1]), (16, [12, 2]), (17, [12, 3]))),
            *((JUDGED, *each) for each in ((12, [12, 0]), (13, [12, 1]), (14, [12, 2]))),
        ],
    )
    def test_it_reads_as_far_as_the_window(
        self,
        store: OpenStore,
        topic: Topic,
        group: Group,
        monkeypatch: pytest.MonkeyPatch,
        wanted: Filter,
        window: int,
        progress: list[int],
    ) -> None:
        fill(store, topic, 12, 12)
        assert len(store.receive(group, topic, 1)) == 1
        monkeypatch.setattr(scan, "_FIRST_WINDOW", window)
        # 11 offsets of the first queue, and 3 tags or 1 condition.
        assert scanned(store, group, topic, wanted=wanted)[:3] == ([], True, progress)

    def test_of_sql_it_finds_no_more_than_it_may(self, store: OpenStore, topic: Topic, group: Group) -> None:
        fill(store, topic, 9, 0, properties={"a": "1"}, body=LARGE)
        found = scanned(store, group, topic, 2, JUDGED)
        assert found == ([0, 1], True, [2, 0], [DEFERRED] * 2)

    def test_of_sql_in_message_groups_it_finds_no_more_than_it_may(self, store: OpenStore, ordered: Topic) -> None:
        group = store.group(meets=[ordered])
        store.send(ordered, [each._replace(properties={"a": "1"}) for each in in_order("g", 9)])
        assert scanned(store, group, ordered, 2, JUDGED)[:3] == ([0, 1], True, [2])


class TestBesideMessageGroups:
    @pytest.mark.parametrize(("limit", "reached"), [(4, 33), (18, 37)])
    def test_it_does_not_read_far(self, store: OpenStore, ordered: Topic, limit: int, reached: int) -> None:
        group = store.group(meets=[ordered])
        store.send(ordered, in_order("held", 1))
        assert len(store.receive(group, ordered)) == 1
        store.send(ordered, in_order("held", 39))
        assert scanned(store, group, ordered, limit, beside_open_groups=True)[:3] == ([], True, [reached])
        assert scanned(store, group, ordered, limit)[:3] == ([], False, [40])

    def test_the_window_is_for_all_queues(self, store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        wide = store.topic("wide", queues=2, accepts=ORDERED)
        group = store.group(meets=[wide])
        fill(store, wide, 5, 5)
        monkeypatch.setattr(scan, "_FIRST_WINDOW", 7)
        # 5 offsets, and the cost of a filter without tags.
        assert scanned(store, group, wide)[:3] == ([0, 1, 2, 3, 4, 0, 1], True, [5, 2])

    def test_a_topic_that_accepted_none_until_now_is_looked_at(self, store: OpenStore, topic: Topic) -> None:
        """The topic's types are cached, and may have changed."""
        group = store.group(meets=[topic])
        store.send(topic, in_order("g", 3))
        assert len(store.receive(group, topic, 1)) == 1
        assert store.receive(group, topic) == []

    def test_a_position_is_added_for_what_was_passed_only(self, store: OpenStore, ordered: Topic) -> None:
        group = store.group(meets=[ordered])
        store.send(ordered, [*in_order("a", 1), *in_order("b", 1)])
        assert len(store.receive(group, ordered)) == 2
        store.send(ordered, [*in_order("a", 1), *in_order("free", 1), *in_order("b", 1)])
        assert offsets_of(store.receive(group, ordered, 1)) == [3]
        positions = store.rows("SELECT message_group, next_offset FROM message_group_progress")
        assert [tuple(row) for row in positions] == [("a", 2)]
