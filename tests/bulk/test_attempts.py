"""Receives that are known by their attempt ids: repeated, renewed, acked, run out, on either database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from popserver.bulk import attempts
from popserver.bulk.attempts import Answer, Attempt, AttemptAck, Renew
from popserver.engine.transaction import Transaction
from popserver.model.errors import InvalidReceiptHandle
from popserver.model.group import Group, HistoryLevel
from popserver.model.message import HeldMessage
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from tests.support.builders import a_message, in_order
from tests.support.open_store import SECOND, OpenStore, a_receive, ids

HOLD_MS = 30 * SECOND


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic], history=HistoryLevel.ALL)


class Asking:
    """The verbs for one group and topic; an answer is the offsets of what is held."""

    def __init__(self, store: OpenStore, group: Group, topic: Topic) -> None:
        self.store, self.group, self.topic = store, group, topic

    def attempt(self, attempt_id: str) -> Attempt:
        return Attempt(self.group, self.topic, attempt_id)

    def receive(self, attempt_id: str, count: int = 1_000, **more: Any) -> Answer:
        request = a_receive(self.group, self.topic, count, attempt_id=attempt_id, **more)
        return self.store.one(attempts.receive, attempts.ReceiveAttempt(request))

    def held(self, attempt_id: str) -> list[HeldMessage]:
        return attempts.held_by(self.store.conn, self.attempt(attempt_id), self.store.now_ms)

    def renew(self, attempt_id: str, invisible_ms: int = HOLD_MS) -> int:
        return self.store.one(attempts.renew, Renew(self.attempt(attempt_id), invisible_ms))

    def ack(self, attempt_id: str) -> AttemptAck:
        return self.store.one(attempts.ack, attempts.AckAttempt(self.attempt(attempt_id)))


@pytest.fixture
def asking(store: OpenStore, group: Group, topic: Topic) -> Asking:
    return Asking(store, group, topic)


def states(store: OpenStore, group: Group) -> list[State]:
    return list(store.states(group).values())


class TestReceive:
    def test_a_repetition_gets_the_same_and_nothing_new(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 3)
        first = asking.receive("a")
        assert [each.attempt for each in first.held] == [1, 1, 1]
        store.send(asking.topic, 2)
        before = store.digest()
        assert asking.receive("a") == first
        assert asking.held("a") == first.held
        assert store.digest() == before, "a repetition is a read"
        assert len(asking.receive("b").held) == 2

    def test_only_so_many(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 5)
        assert [len(asking.receive(name, 2).held) for name in "abcd"] == [2, 2, 1, 0]

    def test_nothing_there_is_the_end(self, asking: Asking) -> None:
        assert asking.receive("a") == Answer([], is_final=True)

    def test_two_callers_of_one_attempt_get_the_same(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 4)
        request = a_receive(asking.group, asking.topic, 2, attempt_id="a")
        one, other = store.do(
            attempts.receive,
            attempts.ReceiveAttempt(request),
            attempts.ReceiveAttempt(replace(request, client_id="c2")),
        )
        assert isinstance(one, Answer)
        assert (one, len(one.held)) == (other, 2)

    def test_a_receive_by_the_standard_finds_the_same(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 2)
        asking.receive("a")
        again = store.receive(asking.group, asking.topic, attempt_id="a")
        assert [each.stored.message_key for each in again] == [each.message_key for each in asking.held("a")]

    def test_what_a_push_consumer_holds_is_not_its(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic)
        store.receive(asking.group, asking.topic, holder=Holder.PUSH, attempt_id="a")
        assert (asking.held("a"), asking.renew("a"), asking.ack("a")) == ([], 0, AttemptAck(0, is_all=True))

    def test_a_filter_passes_over_what_it_does_not_want(self, store: OpenStore, asking: Asking) -> None:
        from popserver.filters import sql as filters_sql
        from popserver.filters import tags

        store.send(asking.topic, [a_message(tag=name, properties={"p": name}) for name in ("x", "y", "x", "y")])
        assert len(asking.receive("a", wanted=tags.parse("x")).held) == 2
        store.send(asking.topic, [a_message(tag=name, properties={"p": name}) for name in ("x", "y", "x", "y")])
        assert len(asking.receive("b", wanted=filters_sql.parse("p = 'y'")).held) == 2

    def test_no_more_bodies_than_one_answer_carries(
        self, store: OpenStore, asking: Asking, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attempts, "RECEIVE_BYTES_MAX", 100)
        sizes = [60, 30, 20, 300, 50, 50]
        sent = store.send(asking.topic, [a_message(body=b"x" * size) for size in sizes])
        found = [[each.message_key for each in asking.receive(name).held] for name in "abcd"]
        offsets = [[key & 0xFF for key in keys] for keys in found]
        assert offsets == [[0, 1], [2], [3], [4, 5]]
        assert all(each.attempt == 1 for name in "abcd" for each in asking.held(name)), "given back unused"
        assert len(sent) == 6

    def test_in_order_though_some_are_too_much(
        self, store: OpenStore, asking: Asking, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attempts, "RECEIVE_BYTES_MAX", 100)
        store.send(asking.topic, [each for _ in range(3) for name in "gh" for each in in_order(name, body=b"x" * 40)])
        came: list[list[int]] = []
        while held := asking.receive(f"a{len(came)}").held:
            came.append([each.message_key & 0xFF for each in held])
            asking.ack(f"a{len(came) - 1}")
        everything = [offset for several in came for offset in several]
        assert sorted(everything) == list(range(6))
        assert [offset for offset in everything if offset % 2 == 0] == [0, 2, 4]
        assert [offset for offset in everything if offset % 2] == [1, 3, 5]

    def test_another_server_that_takes_for_the_same_attempt_is_waited_for(
        self, store: OpenStore, asking: Asking
    ) -> None:
        if store.database.is_sqlite:
            pytest.skip("SQLite has one server")
        store.send(asking.topic, 4)
        other = OpenStore(store.database)
        request = a_receive(asking.group, asking.topic, 2, attempt_id="a")
        store.database.begin(other.conn)
        tx = Transaction.at(other.conn, other.now_ms)
        (theirs,) = attempts.receive(tx, [attempts.ReceiveAttempt(request)])
        assert isinstance(theirs, Answer)
        assert asking.receive("a", 2) == Answer([], is_final=False), "not two others beside theirs"
        tx.finish()
        other.conn.exec_driver_sql("COMMIT")
        other.conn.close()
        assert asking.receive("a", 2).held == theirs.held


class TestRenew:
    def test_it_keeps_them_and_they_are_found_again(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 3)
        held = asking.receive("a").held
        for _ in range(3):
            store.end_due(after_ms=20 * SECOND)
            assert asking.renew("a") == 3
            assert store.due_ms == store.now_ms + HOLD_MS
        assert asking.held("a") == asking.receive("a").held == held
        assert states(store, asking.group) == [State.INFLIGHT] * 3

    def test_every_handle_from_before_is_dead(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic)
        asking.receive("a")
        (old,) = store.receive(asking.group, asking.topic, attempt_id="a")
        asking.renew("a")
        (refusal,) = store.ack(asking.group, old)
        assert isinstance(refusal, InvalidReceiptHandle)
        (new,) = store.receive(asking.group, asking.topic, attempt_id="a")
        assert store.ack(asking.group, new) == [None]

    def test_it_may_shorten(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic)
        asking.receive("a")
        assert asking.renew("a", SECOND) == 1
        store.end_due(after_ms=SECOND)
        assert asking.held("a") == []
        assert [each.attempt for each in asking.receive("b").held] == [2]

    def test_what_ran_out_is_not_renewed(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 2)
        asking.receive("a")
        store.now_ms += HOLD_MS
        before = store.digest()
        assert asking.renew("a") == 0, "its time is over, though nobody has looked yet"
        assert store.digest() == before

    def test_it_stands_in_the_history(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic)
        asking.receive("a")
        asking.renew("a")
        asking.ack("a")
        assert store.history(asking.group) == [
            ("RECEIVE", "READY", "INFLIGHT", 1),
            ("CHANGE_INVISIBLE", "INFLIGHT", "INFLIGHT", 1),
            ("ACK", "INFLIGHT", "COMMIT", 1),
        ]


class TestAck:
    def test_it_commits_all_and_no_other(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 5)
        asking.receive("a", 3)
        asking.receive("b", 1)
        assert asking.ack("a") == AttemptAck(3, is_all=True)
        assert states(store, asking.group) == [State.COMMIT] * 3 + [State.INFLIGHT, State.READY]

    def test_repeated_it_acks_nothing_and_is_no_error(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 2)
        asking.receive("a")
        asking.ack("a")
        before = store.digest()
        assert asking.ack("a") == AttemptAck(0, is_all=True)
        assert store.digest() == before
        assert asking.ack("never heard of") == AttemptAck(0, is_all=True)

    def test_what_ran_out_is_not_acked_and_another_gets_it(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, 2)
        first = asking.receive("a").held
        store.now_ms += HOLD_MS
        assert asking.ack("a") == AttemptAck(0, is_all=True)
        store.end_due()
        second = asking.receive("b").held
        assert [each.message_key for each in second] == [each.message_key for each in first]
        assert [each.attempt for each in second] == [2, 2]
        assert asking.held("a") == []
        assert asking.ack("a") == AttemptAck(0, is_all=True)
        assert states(store, asking.group) == [State.INFLIGHT] * 2, "the other one's holds are the other one's"

    def test_a_message_group_goes_on_after_it(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, in_order("g", 3))
        asking.receive("a", 2)
        assert asking.receive("b").held == [], "its group is locked"
        assert asking.ack("a") == AttemptAck(2, is_all=True)
        assert asking.topic.topic_id in store.rings
        assert len(asking.receive("b").held) == 1

    def test_behind_one_that_ran_out_it_is_provisional(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, in_order("g", 3))
        asking.receive("a")
        first, *_ = store.receive(asking.group, asking.topic, attempt_id="a")
        store.change(asking.group, first, SECOND)
        store.end_due(after_ms=SECOND)
        assert asking.ack("a") == AttemptAck(2, is_all=True)
        assert states(store, asking.group) == [State.READY] * 3
        again = store.receive(asking.group, asking.topic, 1)
        assert ids(again) == [first.stored.message.message_id]
        store.ack(asking.group, *again)
        assert states(store, asking.group) == [State.COMMIT] * 3

    def test_a_message_that_its_consumer_acks_in_a_transaction_of_his_own_is_not_waited_for(
        self, store: OpenStore, asking: Asking
    ) -> None:
        if store.database.is_sqlite:
            pytest.skip("SQLite has one writer")
        store.send(asking.topic, 3)
        held = asking.receive("a").held
        other = store.database.connect_writer()
        store.database.begin(other)
        lock = "SELECT 1 FROM delivery WHERE message_key = %s FOR UPDATE"
        other.exec_driver_sql(lock, (held[1].message_key,))
        assert asking.renew("a") == 2
        assert asking.ack("a") == AttemptAck(2, is_all=False)
        other.exec_driver_sql("ROLLBACK")
        other.close()
        assert asking.ack("a") == AttemptAck(1, is_all=True)
        assert states(store, asking.group) == [State.COMMIT] * 3

    def test_many_at_once(self, store: OpenStore, asking: Asking) -> None:
        for _ in range(4):
            store.send(asking.topic, 300)
        assert len(asking.receive("a", 1_000).held) == 1_000
        assert asking.renew("a") == 1_000
        assert asking.ack("a") == AttemptAck(1_000, is_all=True)
        assert len(asking.receive("b", 1_000).held) == 200

    def test_several_attempts_in_one_transaction(self, store: OpenStore, asking: Asking) -> None:
        store.send(asking.topic, [*in_order("g", 2), a_message(), a_message()])
        names = [name for name in "abc" if asking.receive(name, 2).held]
        done: Sequence[Any] = store.do(attempts.ack, *(attempts.AckAttempt(asking.attempt(name)) for name in names))
        assert sum(each.messages for each in done) == 4
        assert states(store, asking.group) == [State.COMMIT] * 4
