"""Rows of the history: what a step says, in which order steps are read, and which rows go."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.catalog import groups
from popserver.delivery import history
from popserver.delivery.history import FORCED_SKIP, HistoryStep, Moved, as_moved, record
from popserver.engine.transaction import Transaction
from popserver.model.group import Group, HistoryLevel
from popserver.model.names import Resource
from popserver.model.states import Event, State
from popserver.model.topic import Topic, message_key
from popserver.progress import skip as progress_skip
from popserver.progress.skip import Skip
from tests.support.open_store import START_MS, OpenStore, receipt_of
from tests.support.redrive import redrive_all

KEPT = Moved(7, State.ACKED_IN_TRANSACTION, 3, "c1")
OTHER = Moved(8, State.INFLIGHT, 4, "")


@pytest.fixture
def group(store: OpenStore) -> Group:
    store.group("another")
    return store.group(Resource("eu", "billing"), history=HistoryLevel.ALL)


@pytest.fixture
def tx(store: OpenStore, group: Group) -> Transaction:
    return Transaction.at(store.conn, START_MS + 5)


def rows(store: OpenStore) -> list[tuple[Any, ...]]:
    columns = "at_ms, group_id, message_key, event, from_state, to_state, attempt, client_id, reason"
    return [tuple(each) for each in store.rows(f"SELECT {columns} FROM history ORDER BY history_id")]


def test_one_row_for_each_delivery(store: OpenStore, tx: Transaction, group: Group) -> None:
    record(tx, group, Event.PROVISIONAL_ACK, iter([KEPT, OTHER]), "because")
    record(tx, group, Event.ACK, [])
    record(tx, group, Event.ACK, [OTHER])
    begin = (START_MS + 5, group.group_id)
    assert rows(store) == [
        (*begin, 7, "PROVISIONAL_ACK", "INFLIGHT", "READY", 3, "c1", "because"),
        (*begin, 8, "PROVISIONAL_ACK", "INFLIGHT", "READY", 4, "", "because"),
        (*begin, 8, "ACK", "INFLIGHT", "COMMIT", 4, "", ""),
    ], "states are shown as users see them"


@pytest.mark.parametrize("level", HistoryLevel)
def test_only_steps_that_the_group_keeps(store: OpenStore, tx: Transaction, group: Group, level: HistoryLevel) -> None:
    for event in Event:
        record(tx, group._replace(history=level), event, [OTHER])
    assert [row[3] for row in rows(store)] == [event for event in Event if event in level.kept]
    store.conn.exec_driver_sql("DELETE FROM history")
    for event in Event:
        record(tx, group._replace(history=level), event, [OTHER], always=True)
    assert [row[3] for row in rows(store)] == [*Event]


def test_a_delivery_as_it_was(store: OpenStore) -> None:
    class Row:
        message_key, state, attempt, client_id = 7, "READY", 2, "c1"

    moved = as_moved(Row())
    assert moved == Moved(7, State.READY, 2, "c1")
    assert isinstance(moved.from_state, State)


class TestSteps:
    def test_of_one_message_in_all_groups(self, store: OpenStore, tx: Transaction, group: Group) -> None:
        other, gone = store.group("other", history=HistoryLevel.ALL), store.group("gone", history=HistoryLevel.ALL)
        record(tx, other, Event.ACK, [OTHER], "one")
        record(tx, group, Event.RETRY, [OTHER, OTHER._replace(message_key=9)])
        record(tx, gone, Event.RETRY, [OTHER])
        record(tx, group, Event.SKIP, [KEPT._replace(message_key=6)])
        store.one(groups.delete_group, groups.DeleteGroup(gone.name))
        at_ms = START_MS + 5
        expected = [
            HistoryStep(at_ms, other.name, "ACK", "INFLIGHT", "COMMIT", 4, "", "one"),
            HistoryStep(at_ms, group.name, "RETRY", "INFLIGHT", "WAITING_RETRY", 4, "", ""),
            HistoryStep(at_ms, group.name, "SKIP", "INFLIGHT", "COMMIT", 3, "c1", ""),
        ]
        assert history.steps(store.conn, [8, 6]) == expected
        assert history.steps(store.conn, {6}) == expected[2:]
        assert history.steps(store.conn, []) == []

    def test_the_first_thousand(self, store: OpenStore, tx: Transaction, group: Group) -> None:
        record(tx, group, Event.ACK, [OTHER._replace(attempt=number) for number in range(1_001)])
        assert [each.attempt for each in history.steps(store.conn, [8])] == [*range(1_000)]


class TestExpiry:
    def test_the_oldest_rows_before_the_time(self, store: OpenStore, group: Group) -> None:
        for number in range(6):
            record(Transaction.at(store.conn, START_MS + number), group, Event.ACK, [OTHER])
        assert history.expire(store.conn, START_MS, 100) == 0
        assert history.expire(store.conn, START_MS + 4, 2) == 2
        assert [row[0] for row in rows(store)] == [START_MS + at for at in (2, 3, 4, 5)]
        assert history.expire(store.conn, START_MS + 4, 100) == 2
        assert [row[0] for row in rows(store)] == [START_MS + at for at in (4, 5)]

    def test_only_the_first_rows_are_looked_at(self, store: OpenStore, group: Group) -> None:
        """A row that was written later has no earlier time, unless a clock was wrong."""
        for at_ms in (9, 1):
            record(Transaction.at(store.conn, at_ms), group, Event.ACK, [OTHER])
        assert history.expire(store.conn, 5, 1) == 0
        assert history.expire(store.conn, 5, 2) == 1
        assert [row[0] for row in rows(store)] == [9]

    def test_the_first_rows_are_those_that_were_written_first(self, store: OpenStore, group: Group) -> None:
        with store.without_indexes() as tx:
            for key in (1, 2, 3):
                record(tx, group, Event.ACK, [OTHER._replace(message_key=key)])
            store.conn.exec_driver_sql("UPDATE history SET attempt = 9 WHERE message_key = 1")
            assert history.expire(tx.conn, tx.now_ms + 1, 1) == 1
            assert [row[2] for row in rows(store)] == [2, 3]

    def test_with_their_messages(self, store: OpenStore, tx: Transaction, group: Group) -> None:
        record(tx, group, Event.ACK, [OTHER._replace(message_key=key) for key in (3, 4, 5, 5, 6, 7)])
        assert history.forget_messages(store.conn, 4, 6) == 3
        assert [row[2] for row in rows(store)] == [3, 6, 7]
        assert history.forget_messages(store.conn, 4, 6) == 0


class TestSkippedWhileHeld:
    @pytest.fixture
    def topic(self, store: OpenStore) -> Topic:
        return store.topic()

    def skip(self, store: OpenStore, group: Group, topic: Topic, key: int) -> None:
        store.now_ms += 3
        assert store.one(progress_skip.skip, Skip(group, topic.topic_id, key, force=True)).is_done

    def when(self, store: OpenStore, group: Group, key: int, first_key: int | None = None) -> int | None:
        first_key = key if first_key is None else first_key
        return history.skipped_while_held_ms(store.conn, group.group_id, key, first_key)

    def test_the_last_event_says_so(self, store: OpenStore, topic: Topic, group: Group) -> None:
        other = store.group("other", meets=[topic], history=HistoryLevel.ALL)
        store.meet(group, topic)
        store.send(topic, 2)
        key = message_key(topic.queues[0].queue_id, 0)
        for each in (group, other):
            assert len(store.receive(each, topic)) == 2
        assert self.when(store, group, key) is None
        self.skip(store, group, topic, key)
        assert self.when(store, group, key) == store.now_ms
        assert self.when(store, group, key + 1) is None
        assert self.when(store, other, key) is None
        record(Transaction.at(store.conn, START_MS), group, Event.RESET, [OTHER._replace(message_key=key)], "later")
        assert self.when(store, group, key) is None

    def test_a_skip_by_another_reason_is_none(self, store: OpenStore, group: Group) -> None:
        tx = Transaction.at(store.conn, START_MS)
        record(tx, group, Event.SKIP, [OTHER], FORCED_SKIP)
        assert self.when(store, group, 8) == START_MS
        record(tx, group, Event.SKIP, [OTHER], progress_skip.REASON)
        assert self.when(store, group, 8) is None

    @pytest.mark.parametrize("has_target", [False, True])
    def test_at_the_key_that_the_message_was_redriven_to(
        self, store: OpenStore, topic: Topic, group: Group, has_target: bool
    ) -> None:
        """But not in another topic, where it is another message."""
        store.meet(group, topic)
        store.send(topic)
        (held,) = store.receive(group, topic)
        store.forward(group, held)
        target = store.topic("target") if has_target else None
        redrive_all(store, group, target=target)
        place = target or topic
        store.meet(group, place)
        (again,) = store.receive(group, place)
        first_key, key = receipt_of(held).message_key, receipt_of(again).message_key
        assert self.when(store, group, first_key) is None
        self.skip(store, group, place, key)
        assert self.when(store, group, first_key) == (None if has_target else store.now_ms)
        assert self.when(store, group, key, key if has_target else first_key) == store.now_ms
