"""Holds without a holder: each request has its own outcome, and touches only what it names."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from popserver.database import schema
from popserver.model.group import Group, HistoryLevel
from popserver.model.handles import Receipt
from popserver.model.retry import ORPHAN_DELAY_MS, Holder
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from popserver.settling import release
from popserver.settling.release import AbandonHolds, CancelDelivery, ExtendClientHolds
from tests.support.builders import in_order
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore, receipt_of


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    store.topic("another")
    return store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))


@pytest.fixture
def groups(store: OpenStore, topic: Topic) -> list[Group]:
    return [store.group(name, meets=[topic], history=HistoryLevel.ALL) for name in ("a", "b")]


def held(store: OpenStore, group: Group, topic: Topic, **more: Any) -> list[Receipt]:
    wish: dict[str, Any] = {"holder": Holder.PUSH, "invisible_ms": HOUR} | more
    return [receipt_of(each) for each in store.receive(group, topic, **wish)]


def row(store: OpenStore, receipt: Receipt) -> Any:
    columns = "state, attempt, hold_id, visible_at_ms, holder, client_id, uncounted"
    query = f"SELECT {columns} FROM delivery WHERE group_id = :group AND message_key = :key"
    return store.rows(query, group=receipt.group_id, key=receipt.message_key)[0]


def told(store: OpenStore, group: Group, event: str) -> list[tuple[Any, ...]]:
    query = (
        "SELECT at_ms, message_key, from_state, to_state, attempt, client_id, reason FROM history"
        f" WHERE group_id = {group.group_id} AND event = '{event}' ORDER BY message_key"
    )
    return [tuple(each) for each in store.rows(query)]


class TestCancel:
    def test_all_of_each_group_are_ready_and_their_attempts_do_not_count(
        self, store: OpenStore, topic: Topic, groups: list[Group]
    ) -> None:
        store.send(topic, 2)
        store.send(topic, in_order("g", 2))
        of = [held(store, each, topic, client_id=f"of-{each.name.name}") for each in groups]
        store.now_ms += 5
        assert store.one(release.cancel_delivery, CancelDelivery([*of[1], *of[0]])) is None
        assert store.rings == {topic.topic_id}
        for group, receipts in zip(groups, of, strict=True):
            assert len(receipts) == 4
            for each in receipts:
                found = row(store, each)
                assert (found.state, found.attempt, found.uncounted) == (State.READY, 0, 1)
                assert (found.hold_id, found.visible_at_ms) == (0, store.now_ms)
            assert told(store, group, "GIVE_BACK") == [
                (store.now_ms, each.message_key, "INFLIGHT", "READY", 1, f"of-{group.name.name}", "")
                for each in sorted(receipts)
            ]
        again = store.receive(groups[0], topic)
        assert len([*again, *store.receive(groups[0], topic)]) == 4

    @pytest.mark.parametrize("message_group", [None, "g"])
    def test_it_wakes_the_topic(
        self, store: OpenStore, topic: Topic, groups: list[Group], message_group: str | None
    ) -> None:
        store.send(topic, in_order("g") if message_group else 1)
        store.one(release.cancel_delivery, CancelDelivery(held(store, groups[0], topic)))
        assert store.rings == {topic.topic_id}
        assert len(store.receive(groups[0], topic)) == 1

    def test_what_is_held_before_it_in_its_message_group_keeps_it_waiting(
        self, store: OpenStore, topic: Topic, groups: list[Group]
    ) -> None:
        store.send(topic, in_order("g", 2))
        first, second = held(store, groups[0], topic)
        store.one(release.cancel_delivery, CancelDelivery([second]))
        assert store.rings == set()
        assert store.receive(groups[0], topic) == []
        assert store.ack(groups[0], first) == [None]
        assert len(store.receive(groups[0], topic)) == 1

    def test_the_holds_of_others_stay(self, store: OpenStore, topic: Topic, groups: list[Group]) -> None:
        store.send(topic, 2)
        mine, theirs = (held(store, each, topic) for each in groups)
        before = [row(store, each) for each in (mine[1], *theirs)]
        stale = theirs[0]._replace(hold_id=theirs[0].hold_id ^ 1)
        outcomes = store.do(release.cancel_delivery, CancelDelivery(mine[:1]), CancelDelivery([stale]))
        assert outcomes == [None, None]
        assert [row(store, each) for each in (mine[1], *theirs)] == before
        assert row(store, mine[0]).state == State.READY

    def test_holds_of_a_group_that_is_gone_are_left_to_their_end(
        self, store: OpenStore, topic: Topic, groups: list[Group]
    ) -> None:
        store.send(topic)
        mine, theirs = (held(store, each, topic) for each in groups)
        store.conn.execute(delete(schema.consumer_group).where(schema.consumer_group.c.group_id == groups[0].group_id))
        store.conn.commit()
        assert store.one(release.cancel_delivery, CancelDelivery([*mine, *theirs])) is None
        assert row(store, theirs[0]).state == State.READY
        assert row(store, mine[0]).state == State.INFLIGHT
        store.conn.exec_driver_sql(f"DELETE FROM delivery WHERE group_id = {groups[0].group_id}")
        store.conn.exec_driver_sql(f"DELETE FROM progress WHERE group_id = {groups[0].group_id}")
        store.conn.commit()


class TestAbandon:
    @pytest.mark.parametrize("by", ["client", "receipts"])
    def test_holds_end_a_second_later(self, store: OpenStore, topic: Topic, groups: list[Group], by: str) -> None:
        store.send(topic, 2)
        mine, other = held(store, groups[0], topic, client_id="gone")
        store.change(groups[0], other, 0, give_back=True)
        (theirs,) = held(store, groups[1], topic, client_id="here")[:1]
        before = row(store, theirs)
        request = AbandonHolds(client_id="gone") if by == "client" else AbandonHolds(receipts=[mine])
        store.now_ms += 7
        assert store.one(release.abandon_holds, request) is None
        ends_at_ms = START_MS + 7 + ORPHAN_DELAY_MS
        found = row(store, mine)
        client_id = "gone" if by == "client" else ""
        assert tuple(found) == (
            State.INFLIGHT, 1, mine.hold_id, ends_at_ms, Holder.ORPHAN, client_id, 0
        )  # fmt: skip
        assert store.due_ms == ends_at_ms
        assert row(store, theirs) == before
        assert row(store, other).state == State.READY

    def test_of_several_requests_each_is_done(self, store: OpenStore, topic: Topic, groups: list[Group]) -> None:
        store.send(topic, 3)
        receipts = [held(store, groups[0], topic, batch_size=1, client_id=each)[0] for each in ("a", "b", "c")]
        requests = [AbandonHolds(client_id="a"), AbandonHolds(receipts=receipts[2:]), AbandonHolds(client_id="b")]
        assert store.do(release.abandon_holds, *requests) == [None] * 3
        assert [row(store, each).visible_at_ms for each in receipts] == [START_MS + SECOND] * 3

    def test_a_stale_receipt_ends_nothing(self, store: OpenStore, topic: Topic, groups: list[Group]) -> None:
        store.send(topic)
        (mine,), (theirs,) = (held(store, each, topic) for each in groups)
        before = [row(store, each) for each in (mine, theirs)]
        stale = [mine._replace(hold_id=mine.hold_id ^ 1), theirs._replace(group_id=99)]
        assert store.one(release.abandon_holds, AbandonHolds(receipts=stale)) is None
        assert [row(store, each) for each in (mine, theirs)] == before

    @pytest.mark.parametrize("holder", [Holder.PUSH, Holder.SIMPLE])
    def test_a_hold_that_ends_earlier_anyhow_stays(
        self, store: OpenStore, topic: Topic, groups: list[Group], holder: Holder
    ) -> None:
        store.send(topic)
        (mine,) = held(store, groups[0], topic, holder=holder, invisible_ms=SECOND, client_id="gone")
        before = row(store, mine)
        requests = AbandonHolds(client_id="gone"), AbandonHolds(receipts=[mine])
        assert store.do(release.abandon_holds, *requests) == [None, None]
        assert row(store, mine) == before


class TestExtend:
    def test_what_was_abandoned_and_has_not_ended(self, store: OpenStore, topic: Topic, groups: list[Group]) -> None:
        store.send(topic, 4)
        ids = ("back", "back", "other")
        mine, acked, others = (held(store, groups[0], topic, batch_size=1, client_id=each)[0] for each in ids)
        (theirs,) = held(store, groups[1], topic, batch_size=1, client_id="back")
        for client_id in ("back", "other"):
            store.orphan_client(client_id)
        store.ack(groups[0], acked)
        (kept,) = held(store, groups[0], topic, batch_size=1, client_id="back", invisible_ms=MINUTE)
        until_ms = store.now_ms + HOUR
        assert store.do(release.extend_client_holds, ExtendClientHolds("back", until_ms)) == [None]
        for each in (mine, theirs):
            found = row(store, each)
            assert (found.state, found.holder, found.client_id) == (State.INFLIGHT, Holder.PUSH, "back")
            assert (found.hold_id, found.visible_at_ms) == (each.hold_id, until_ms)
        assert row(store, others).visible_at_ms == START_MS + SECOND
        assert row(store, kept).visible_at_ms == START_MS + MINUTE, "it was not abandoned"

    def test_each_client_that_came_back(self, store: OpenStore, topic: Topic, groups: list[Group]) -> None:
        store.send(topic, 2)
        receipts = [held(store, groups[0], topic, batch_size=1, client_id=each)[0] for each in "ab"]
        for each in "ab":
            store.orphan_client(each)
        until = [store.now_ms + HOUR, store.now_ms + MINUTE]
        requests = [ExtendClientHolds(each, at) for each, at in zip("ab", until, strict=True)]
        assert store.do(release.extend_client_holds, *requests) == [None, None]
        assert [row(store, each).visible_at_ms for each in receipts] == until
