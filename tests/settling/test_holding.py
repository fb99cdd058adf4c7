"""What a holder may do with what it holds, and what a handle is worth when it is not the newest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from popserver.model.errors import InvalidReceiptHandle
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import Topic
from popserver.settling import ack
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore, receipt_of

HOLD_MS = 30 * SECOND


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic()


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic], max_attempts=2)


def hold(store: OpenStore, group: Group, topic: Topic, *, invisible_ms: int = HOLD_MS, **more: Any) -> Delivery:
    """One message, held."""
    store.send(topic)
    (held,) = store.receive(group, topic, invisible_ms=invisible_ms, **more)
    return held


def refused(outcomes: Sequence[object]) -> list[bool]:
    return [isinstance(each, InvalidReceiptHandle) for each in outcomes]


class TestAck:
    def test_it_commits_and_leaves_no_row(self, store: OpenStore, group: Group, topic: Topic) -> None:
        held = hold(store, group, topic)
        assert store.ack(group, held) == [None]
        assert store.state(group, held.stored.message.message_id) is State.COMMIT
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 0

    def test_twice_is_fine(self, store: OpenStore, group: Group, topic: Topic) -> None:
        held = hold(store, group, topic)
        store.ack(group, held)
        before = store.digest()
        assert store.ack(group, held) == [None]
        assert store.digest() == before

    def test_twice_in_one_request_and_in_one_transaction(self, store: OpenStore, group: Group, topic: Topic) -> None:
        receipt = receipt_of(hold(store, group, topic))
        wishes = [ack.Ack(group, [receipt, receipt]), ack.Ack(group, [receipt])]
        assert list(store.do(ack.ack, *wishes)) == [[None, None], [None]]

    def test_outcomes_stand_in_the_order_of_the_request(self, store: OpenStore, group: Group, topic: Topic) -> None:
        store.send(topic, 4)
        held = [receipt_of(each) for each in store.receive(group, topic)]
        wrong = [each._replace(hold_id=each.hold_id ^ 1) for each in held]
        outcomes = store.ack(group, held[3], wrong[0], held[1], wrong[2])
        assert refused(outcomes) == [False, True, False, True]
        assert list(store.states(group).values()) == [State.INFLIGHT, State.COMMIT, State.INFLIGHT, State.COMMIT]

    def test_requests_of_several_groups_in_one_transaction(self, store: OpenStore, group: Group, topic: Topic) -> None:
        other = store.group("other", meets=[topic])
        mine, theirs = hold(store, group, topic), store.receive(other, topic)[0]
        outcomes: Sequence[Any] = store.do(
            ack.ack,
            ack.Ack(other, [receipt_of(theirs)]),
            ack.Ack(group, [receipt_of(mine)]),
            ack.Ack(other, [receipt_of(theirs)._replace(hold_id=7)]),
        )
        assert [refused(each) for each in outcomes] == [[False], [False], [False]], (
            "the last one's message is committed"
        )
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 0

    def test_another_groups_hold_is_not_touched(self, store: OpenStore, group: Group, topic: Topic) -> None:
        other = store.group("other", meets=[topic])
        mine = receipt_of(hold(store, group, topic))
        store.receive(other, topic)
        assert refused(store.ack(other, mine._replace(group_id=other.group_id))) == [True]
        assert set(store.states(other).values()) == {State.INFLIGHT}

    def test_more_than_a_step(self, store: OpenStore, group: Group, topic: Topic) -> None:
        store.send(topic, 1_001)
        held = store.receive(group, topic, 1_001)
        assert store.ack(group, *held) == [None] * 1_001
        assert store.one_value("SELECT COUNT(*) FROM delivery") == 0

    @pytest.mark.row("K7")
    @pytest.mark.parametrize(("after_ms", "ok"), [(HOLD_MS - 1, True), (HOLD_MS, False), (HOLD_MS + 1, False)])
    def test_at_the_holds_end(self, store: OpenStore, group: Group, topic: Topic, after_ms: int, ok: bool) -> None:
        held = hold(store, group, topic)
        store.now_ms += after_ms
        (outcome,) = store.ack(group, held)
        if ok:
            assert outcome is None
        else:
            assert str(outcome).startswith(
                f"the receipt handle is no longer valid: its time ended {after_ms - HOLD_MS} ms ago; the message is"
                " INFLIGHT in group 'billing'"
            )

    @pytest.mark.row("K7")
    def test_after_another_was_granted(self, store: OpenStore, group: Group, topic: Topic) -> None:
        first = hold(store, group, topic)
        store.end_due(after_ms=HOLD_MS)
        (second,) = store.receive(group, topic)
        before = store.digest()
        (outcome,) = store.ack(group, first)
        assert "a newer hold of attempt 2 has replaced it" in str(outcome)
        assert store.digest() == before
        assert store.ack(group, second) == [None]

    def test_a_committed_message_forgives_only_until_the_handles_own_end(
        self, store: OpenStore, group: Group, topic: Topic
    ) -> None:
        held = hold(store, group, topic)
        store.ack(group, held)
        store.now_ms += HOLD_MS - 1
        assert store.ack(group, held) == [None]
        store.now_ms += 1
        assert "the message is COMMIT in group 'billing'" in str(store.ack(group, held)[0])


class TestChangeInvisible:
    @pytest.mark.row("L10")
    @pytest.mark.row("O3")
    def test_the_window_starts_anew_and_the_old_handle_dies(self, store: OpenStore, group: Group, topic: Topic) -> None:
        h1 = hold(store, group, topic)
        store.now_ms += 10 * SECOND
        h2 = store.change(group, h1, MINUTE)
        assert h2.ends_at_ms == START_MS + 10 * SECOND + MINUTE
        assert refused(store.ack(group, h1)) == [True]
        row = store.delivery_of(group, h2.message_key)
        assert (row.state, row.attempt, row.visible_at_ms) == (State.INFLIGHT, 1, h2.ends_at_ms)
        store.now_ms = h2.ends_at_ms - 1
        assert store.end_due() == 0
        assert store.ack(group, h2) == [None]

    def test_a_chain_of_the_same_duration_gives_a_new_handle_each_time(
        self, store: OpenStore, group: Group, topic: Topic
    ) -> None:
        chain = [receipt_of(hold(store, group, topic))]
        for _ in range(4):
            store.now_ms += SECOND
            chain.append(store.change(group, chain[-1], HOLD_MS))
        assert len({each.hold_id for each in chain}) == 5
        for old in chain[:-1]:
            assert refused(store.ack(group, old)) == [True]
        assert store.ack(group, chain[-1]) == [None]

    def test_repeated_because_the_answer_was_lost(self, store: OpenStore, group: Group, topic: Topic) -> None:
        h1 = hold(store, group, topic)
        h2 = store.change(group, h1, MINUTE)
        store.now_ms += SECOND
        before = store.digest()
        assert store.change(group, h1, MINUTE) == h2
        assert store.digest() == before
        with pytest.raises(InvalidReceiptHandle):
            store.change(group, h1, MINUTE + 1)
        h3 = store.change(group, h2, MINUTE)
        with pytest.raises(InvalidReceiptHandle):
            store.change(group, h1, MINUTE)
        assert store.ack(group, h3) == [None]

    def test_repeated_after_the_message_was_acked_in_a_users_transaction(
        self, store: OpenStore, group: Group, topic: Topic
    ) -> None:
        h1 = hold(store, group, topic)
        h2 = store.change(group, h1, MINUTE)
        store.conn.exec_driver_sql(
            f"UPDATE delivery SET visible_at_ms = 0, state = '{State.ACKED_IN_TRANSACTION}'"
            f" WHERE message_key = {h2.message_key}"
        )
        with pytest.raises(InvalidReceiptHandle):
            store.change(group, h1, MINUTE)

    def test_shorter(self, store: OpenStore, group: Group, topic: Topic) -> None:
        h2 = store.change(group, hold(store, group, topic), SECOND)
        assert store.due_ms == START_MS + SECOND
        assert store.end_due(after_ms=SECOND) == 1
        assert [each.attempt for each in store.receive(group, topic)] == [2]
        assert refused(store.ack(group, h2)) == [True]

    def test_to_nothing(self, store: OpenStore, group: Group, topic: Topic) -> None:
        store.change(group, hold(store, group, topic), 0)
        assert store.due_ms == START_MS
        assert store.end_due() == 1
        assert [each.attempt for each in store.receive(group, topic)] == [2]

    def test_of_an_expired_hold(self, store: OpenStore, group: Group, topic: Topic) -> None:
        h1 = hold(store, group, topic)
        store.now_ms += HOLD_MS
        before = store.digest()
        with pytest.raises(InvalidReceiptHandle, match="its time ended 0 ms ago"):
            store.change(group, h1, MINUTE)
        assert store.digest() == before

    def test_of_a_committed_message(self, store: OpenStore, group: Group, topic: Topic) -> None:
        h1 = hold(store, group, topic)
        store.ack(group, h1)
        with pytest.raises(InvalidReceiptHandle, match="acked already"):
            store.change(group, h1, MINUTE)

    @pytest.mark.row("L2")
    @pytest.mark.row("L14")
    def test_a_simple_consumer_extends_even_its_last_attempt(
        self, store: OpenStore, group: Group, topic: Topic
    ) -> None:
        hold(store, group, topic)
        store.end_due(after_ms=HOLD_MS)
        (last,) = store.receive(group, topic)
        assert last.attempt == group.retry.max_attempts
        store.change(group, last, MINUTE)
        assert set(store.states(group).values()) == {State.INFLIGHT}


class TestAPushConsumersFailure:
    @pytest.mark.row("L14")
    @pytest.mark.row("L18")
    def test_the_message_waits_from_the_moment_it_failed(self, store: OpenStore, group: Group, topic: Topic) -> None:
        held = hold(store, group, topic, holder=Holder.PUSH, invisible_ms=3 * HOUR)
        store.now_ms += 4 * SECOND
        waiting = store.change(group, held, 10 * SECOND)
        row = store.delivery_of(group, waiting.message_key)
        assert (row.state, row.attempt, row.visible_at_ms) == (State.WAITING_RETRY, 1, START_MS + 14 * SECOND)
        assert store.due_ms == START_MS + 14 * SECOND
        store.now_ms = START_MS + 14 * SECOND - 1
        assert (store.end_due(), store.receive(group, topic)) == (0, [])
        assert store.end_due(after_ms=1) == 1
        assert store.rings == {topic.topic_id}
        assert [each.attempt for each in store.receive(group, topic)] == [2]

    def test_a_failure_that_names_no_time_climbs_the_ladder(self, store: OpenStore, group: Group, topic: Topic) -> None:
        held = hold(store, group, topic, holder=Holder.PUSH)
        assert store.change(group, held, 0).ends_at_ms == START_MS + group.retry.intervals_ms[0]

    def test_what_waits_is_nobodys(self, store: OpenStore, group: Group, topic: Topic) -> None:
        waiting = store.change(group, hold(store, group, topic, holder=Holder.PUSH), 10 * SECOND)
        before = store.digest()
        assert refused(store.ack(group, waiting)) == [True]
        with pytest.raises(InvalidReceiptHandle):
            store.change(group, waiting, SECOND)
        assert isinstance(store.forward(group, waiting), InvalidReceiptHandle)
        assert store.digest() == before

    @pytest.mark.row("L12")
    def test_at_the_last_attempt_it_is_dead(self, store: OpenStore, group: Group, topic: Topic) -> None:
        first = hold(store, group, topic, holder=Holder.PUSH)
        store.change(group, first, SECOND)
        store.end_due(after_ms=SECOND)
        (last,) = store.receive(group, topic, holder=Holder.PUSH)
        assert store.change(group, last, SECOND) == receipt_of(last), "the handle it was given"
        assert set(store.states(group).values()) == {State.DLQ}
        assert store.end_due(after_ms=HOUR) == 0


class TestGivingBack:
    @pytest.mark.parametrize("holder", [Holder.SIMPLE, Holder.PUSH])
    def test_at_once_and_without_burning_an_attempt(
        self, store: OpenStore, group: Group, topic: Topic, holder: Holder
    ) -> None:
        held = hold(store, group, topic, holder=holder)
        back = store.change(group, held, 0, give_back=True)
        assert store.rings == {topic.topic_id}
        assert store.delivery_of(group, back.message_key).state == State.READY
        assert [each.attempt for each in store.receive(group, topic)] == [1]
        assert refused(store.ack(group, back)) == [True]

    def test_even_the_last_attempt_comes_back(self, store: OpenStore, group: Group, topic: Topic) -> None:
        hold(store, group, topic)
        store.end_due(after_ms=HOLD_MS)
        for _ in range(3):
            (last,) = store.receive(group, topic, holder=Holder.PUSH)
            assert last.attempt == group.retry.max_attempts
            store.change(group, last, 0, give_back=True)

    def test_repeated(self, store: OpenStore, group: Group, topic: Topic) -> None:
        held = hold(store, group, topic)
        back = store.change(group, held, 0, give_back=True)
        assert store.change(group, held, 0, give_back=True) == back
        store.receive(group, topic)
        with pytest.raises(InvalidReceiptHandle):
            store.change(group, held, 0, give_back=True)


def test_a_receipt_of_a_message_never_granted(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic)
    made_up = Receipt(group.group_id, topic.queues[0].queue_id << 40, 1, START_MS + HOUR)
    assert "the message is READY" in str(store.ack(group, made_up)[0])
    beyond = made_up._replace(message_key=made_up.message_key + 99)
    assert refused(store.ack(group, beyond)) == [True]
    assert set(store.states(group).values()) == {State.READY}
