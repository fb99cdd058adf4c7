"""One step of what is due: the event of each delivery, when it is READY or due again, and what the answer counts."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.catalog import groups
from popserver.delivery.queues_to_read import ReadyFrom
from popserver.model.group import Group, HistoryLevel
from popserver.model.handles import Receipt
from popserver.model.retry import FIFO_INTERVAL_MS, Holder
from popserver.model.states import Event, State
from popserver.model.topic import MessageType, Topic
from popserver.settling import expire
from popserver.settling.expire import DueFrom, EndDue, EndedHolds
from tests.support.builders import in_order
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore, receipt_of
from tests.support.send_back import hand_back, pull_group

HOLD_MS = 30 * SECOND
LADDER_MS = (7 * SECOND, 9 * SECOND)


@pytest.fixture
def topics(store: OpenStore) -> list[Topic]:
    return [store.topic(name, accepts=(MessageType.NORMAL, MessageType.FIFO)) for name in ("orders", "letters")]


def group_of(store: OpenStore, topics: list[Topic], name: str = "billing", max_attempts: int = 3) -> Group:
    wish: dict[str, Any] = {"max_attempts": max_attempts, "intervals_ms": LADDER_MS, "history": HistoryLevel.ALL}
    return store.group(name, meets=topics, **wish)


def held(store: OpenStore, group: Group, topic: Topic, **more: Any) -> list[Receipt]:
    return [receipt_of(each) for each in store.receive(group, topic, **({"invisible_ms": HOLD_MS} | more))]


def end_due(store: OpenStore, *, after_ms: int = HOLD_MS) -> EndedHolds:
    store.now_ms += after_ms
    return store.one(expire.end_due, EndDue())


def steps(store: OpenStore, group: Group) -> list[tuple[Any, ...]]:
    columns = "event, from_state, attempt, client_id, reason"
    rows = store.rows(f"SELECT {columns} FROM history WHERE group_id = {group.group_id} ORDER BY history_id")
    return [tuple(row) for row in rows if row.event != "RECEIVE"]


def test_the_answer_counts_what_is_ready_again_by_group_and_topic(store: OpenStore, topics: list[Topic]) -> None:
    one, other = group_of(store, topics, "one"), group_of(store, topics, "other")
    for topic, count in zip(topics, (3, 2), strict=True):
        store.send(topic, count)
        held(store, one, topic)
    held(store, other, topics[0], batch_size=1)
    held(store, other, topics[1], holder=Holder.PUSH)
    ended = end_due(store)
    assert dict(ended.requeued) == {
        (one.group_id, topics[0].topic_id): 3,
        (one.group_id, topics[1].topic_id): 2,
        (other.group_id, topics[0].topic_id): 1,
    }
    assert ended.next_due_ms == START_MS + HOLD_MS + LADDER_MS[0]
    assert store.rings == {each.topic_id for each in topics}
    assert dict(end_due(store, after_ms=LADDER_MS[0]).requeued) == {(other.group_id, topics[1].topic_id): 2}


@pytest.mark.parametrize("message_group", [None, "g"])
@pytest.mark.parametrize(
    ("holder", "max_attempts", "event", "state", "reason"),
    [
        (Holder.SIMPLE, 2, "RELEASE", State.READY, "the hold's time ended"),
        (Holder.PUSH, 2, "RETRY", State.WAITING_RETRY, "the hold's time ended"),
        (Holder.PUSH, 1, "EXHAUST", None, "the hold's time ended, and no attempt remains"),
        (Holder.SIMPLE, 1, "EXHAUST", None, "the hold's time ended, and no attempt remains"),
    ],
)
def test_each_kind_of_hold(
    store: OpenStore,
    topics: list[Topic],
    message_group: str | None,
    holder: Holder,
    max_attempts: int,
    event: str,
    state: State | None,
    reason: str,
) -> None:
    group, topic = group_of(store, topics, max_attempts=max_attempts), topics[0]
    store.send(topic, in_order("g") if message_group else 1)
    (receipt,) = held(store, group, topic, holder=holder, client_id="c7")
    if holder is Holder.PUSH:
        assert store.delivery_of(group, receipt.message_key).visible_at_ms == START_MS + HOLD_MS
    store.send(topic, in_order("g") if message_group else 1)
    end_due(store)
    assert steps(store, group) == [(event, "INFLIGHT", 1, "c7", reason)]
    row = store.delivery_of(group, receipt.message_key)
    if state is None:
        assert row is None
        (letter,) = store.rows("SELECT origin_key, origin_topic_id, attempt, reason FROM dead_letter")
        assert tuple(letter) == (receipt.message_key, topic.topic_id, 1, reason)
    else:
        interval_ms = 0 if state is State.READY else FIFO_INTERVAL_MS if message_group else LADDER_MS[0]
        assert (row.state, row.visible_at_ms, row.attempt) == (state, START_MS + HOLD_MS + interval_ms, 1)
    waits = state is State.WAITING_RETRY and message_group is not None
    assert bool(store.receive(group, topic)) is not waits, "what is behind it in its message group waits too"
    if state is State.WAITING_RETRY:
        end_due(store, after_ms=HOUR)
        assert ("BACKOFF_ELAPSED", "WAITING_RETRY", 1, "c7", "") in steps(store, group)


def test_the_end_of_an_interval_has_no_reason(store: OpenStore, topics: list[Topic]) -> None:
    group = group_of(store, topics)
    store.send(topics[0])
    held(store, group, topics[0], holder=Holder.PUSH)
    end_due(store, after_ms=HOUR)
    end_due(store, after_ms=HOUR)
    assert [(step[0], step[4]) for step in steps(store, group)][1:] == [("BACKOFF_ELAPSED", "")]


@pytest.mark.parametrize(("late_ms", "since_ms"), [(0, 0), (1_000, 0), (1_001, 1), (HOUR, HOUR - 1_000)])
def test_a_message_is_ready_since_its_hold_ended_or_since_a_moment_ago(
    store: OpenStore, topics: list[Topic], late_ms: int, since_ms: int
) -> None:
    assert ReadyFrom.slack_ms == 2_000, "twice that moment"
    group = group_of(store, topics)
    store.send(topics[0])
    (receipt,) = held(store, group, topics[0])
    end_due(store, after_ms=HOLD_MS + late_ms)
    assert store.delivery_of(group, receipt.message_key).visible_at_ms == START_MS + HOLD_MS + since_ms


def test_the_next_one_is_due_when_the_earliest_of_the_others_ends(store: OpenStore, topics: list[Topic]) -> None:
    group = group_of(store, topics)
    store.send(topics[0], 3)
    for invisible_ms in (HOLD_MS, MINUTE, HOUR):
        held(store, group, topics[0], batch_size=1, invisible_ms=invisible_ms)
    assert end_due(store, after_ms=0).next_due_ms == START_MS + HOLD_MS
    assert end_due(store).next_due_ms == START_MS + MINUTE
    store.send(topics[1])
    held(store, group, topics[1], holder=Holder.PUSH, invisible_ms=SECOND)
    assert end_due(store, after_ms=SECOND).next_due_ms == store.now_ms + LADDER_MS[0]


class TestGroupsThatWereDeleted:
    def test_no_dead_letter_makes_their_topics_again(self, store: OpenStore, topics: list[Topic]) -> None:
        group, stays = group_of(store, topics, max_attempts=1), group_of(store, topics, "stays", max_attempts=1)
        store.send(topics[0])
        (receipt,), _ = held(store, group, topics[0]), held(store, stays, topics[0])
        store.one(groups.delete_group, groups.DeleteGroup(group.name))
        end_due(store)
        assert store.delivery_of(group, receipt.message_key).state == State.READY
        assert [row.group_id for row in store.rows("SELECT group_id FROM dead_letter")] == [stays.group_id]
        assert store.rows("SELECT name FROM topic WHERE name LIKE '%billing'") == []

    def test_what_members_sent_back_is_removed(self, store: OpenStore, topics: list[Topic]) -> None:
        group, stays = pull_group(store), pull_group(store, "stays")
        store.send(topics[0])
        for each in (group, stays):
            assert hand_back(store, each, topics[0], delay_level=1) is False
        store.one(groups.delete_group, groups.DeleteGroup(group.name))
        end_due(store, after_ms=HOUR)
        assert store.rows("SELECT * FROM delivery") == []
        names = [row.name for row in store.rows("SELECT name FROM topic WHERE name LIKE '%RETRY%'")]
        assert names == ["%RETRY%stays"]


class TestAckedInATransaction:
    def ack(self, store: OpenStore, receipt: Receipt) -> None:
        """As `popmq_ack` does it."""
        store.conn.exec_driver_sql(
            f"UPDATE delivery SET state = '{State.ACKED_IN_TRANSACTION}', visible_at_ms = 0"
            f" WHERE group_id = {receipt.group_id} AND message_key = {receipt.message_key}"
        )

    @pytest.mark.parametrize("places", [(0,), (1,), (1, 2), (0, 1, 2), (2, 0)])
    def test_it_counts_in_the_order_of_the_message_group(
        self, store: OpenStore, topics: list[Topic], places: tuple[int, ...]
    ) -> None:
        group, topic = group_of(store, topics), topics[0]
        store.send(topic, in_order("g", 3))
        receipts = held(store, group, topic, invisible_ms=HOUR, client_id="c7")
        for each in places:
            self.ack(store, receipts[each])
        ended = end_due(store, after_ms=SECOND)
        first = next(at for at in range(4) if at not in places)
        assert [store.delivery_of(group, each.message_key) is None for each in receipts] == [
            at < first for at in range(3)
        ]
        told = [(step[0], step[3]) for step in steps(store, group)]
        expected = ["ACK" if at < first else "PROVISIONAL_ACK" for at in sorted(places)]
        assert sorted(told) == sorted((each, "c7") for each in expected)
        assert dict(ended.requeued) == {}

    def test_beside_others_that_are_due_much_later(self, store: OpenStore, topics: list[Topic]) -> None:
        """Searches begin where the last one ended, but such an ack is due at 0."""
        group, topic = group_of(store, topics), topics[0]
        store.send(topic, in_order("g", 1))
        (receipt,) = held(store, group, topic, invisible_ms=HOUR)
        for _ in range(3):
            end_due(store, after_ms=SECOND // 10)
        assert isinstance(store.memory.get(DueFrom), DueFrom)
        self.ack(store, receipt)
        end_due(store, after_ms=SECOND // 10)
        assert store.rows("SELECT * FROM delivery") == []


def test_deliveries_are_ended_in_the_order_of_groups_and_messages(store: OpenStore, topics: list[Topic]) -> None:
    group, other = group_of(store, topics), group_of(store, topics, "other")
    store.send(topics[0], 3)
    for each in (other, group):
        for invisible_ms in (3 * SECOND, 2 * SECOND, SECOND):
            held(store, each, topics[0], batch_size=1, invisible_ms=invisible_ms)
    end_due(store)
    told = store.rows("SELECT group_id, message_key FROM history WHERE event = 'RELEASE' ORDER BY history_id")
    assert told == sorted(told)
    assert len(told) == 6


def test_each_event_has_its_reason() -> None:
    assert expire.REASONS.keys() == {Event.RELEASE, Event.RETRY, Event.EXHAUST, Event.BACKOFF_ELAPSED}
