"""The store against a model of message groups: whatever happens in whatever order, the two agree.

Nobody gets a message before its turn, none is lost, no group stays locked, and whoever waits is woken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from popserver.catalog import groups
from popserver.database.database import Database
from popserver.filters import Filter, TagFilter
from popserver.filters import sql as filters_sql
from popserver.maintenance import retention
from popserver.model.errors import InvalidReceiptHandle
from popserver.model.group import NewGroup
from popserver.model.handles import Receipt
from popserver.model.retry import Holder, RetryPolicy
from popserver.model.states import State
from popserver.model.topic import MessageType, message_key
from popserver.receiving import receive as receiving_receive
from popserver.receiving.batch import Receive, Received
from popserver.settling import release
from tests.fifo.model_in_order import Asked, Got, InOrder, ModelInOrder
from tests.support.builders import GROUP, a_message
from tests.support.emptied_database import emptied
from tests.support.open_store import HOUR, SECOND, OpenStore, a_receive, open_store, receipt_of

INTERVAL_MS = 10 * SECOND
FIFO_INTERVAL_MS = 3 * SECOND
HOLD_MS = 30 * SECOND
MAX_ATTEMPTS = 3
QUEUES = 2
# So many fruitless looks in a row are a wheel that turns in vain.
LOOKS_MAX = 50
FILTERS: list[Filter] = [TagFilter(), TagFilter(("A",)), filters_sql.parse("n > 1")]
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["g", "h", "i", None]), st.sampled_from(["A", "B", None]), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)
ASKED = st.tuples(
    st.sampled_from([1, 2, 3, 5, 32]),
    st.sampled_from([Holder.SIMPLE, Holder.PUSH]),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, None, "x", "y"]),
    st.booleans(),
)
DURATIONS_MS = st.sampled_from([0, SECOND // 2, 10 * SECOND, HOUR])
Opening = Callable[[], AbstractContextManager[OpenStore]]


def has_receipts(machine: RuleBasedStateMachine) -> bool:
    """A list of receipts can be drawn: Hypothesis sees by itself only that a single one can."""
    return bool(machine.bundle("receipts"))


class MessageGroupsAgainstModel(RuleBasedStateMachine):
    """One consumer group on one topic of two queues, some of whose messages are in message groups."""

    receipts = Bundle("receipts")

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._opening = opening()
        self.store = self._opening.__enter__()
        self.topic = self.store.topic(queues=QUEUES, accepts=(MessageType.NORMAL, MessageType.FIFO))
        policy = RetryPolicy(MAX_ATTEMPTS, (INTERVAL_MS,), FIFO_INTERVAL_MS)
        self.group = self.store.one(groups.create_group, groups.CreateGroup(NewGroup(GROUP, policy)))
        self.store.meet(self.group, self.topic)
        self.model = ModelInOrder(MAX_ATTEMPTS, INTERVAL_MS, FIFO_INTERVAL_MS)
        self.parked: set[Filter] = set()

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self._drain()
        finally:
            self._opening.__exit__(None, None, None)

    @rule(batch=MESSAGES, queue=st.integers(0, 1))
    def send(self, batch: list[tuple[str | None, str | None, int]], queue: int) -> None:
        sent = [
            a_message(
                message_group=name,
                tag=tag,
                properties={"n": str(number)},
                message_type=MessageType.NORMAL if name is None else MessageType.FIFO,
            )
            for name, tag, number in batch
        ]
        results = self.store.send(self.topic, sent, queue=queue)
        for each, result in zip(sent, results, strict=True):
            assert result.queue_number is not None
            key = message_key(self.topic.queues[result.queue_number].queue_id, result.offset)
            self.model.deliveries[key] = InOrder(
                message_group=each.message_group,
                tag=each.tag,
                properties=each.properties,
                stored_at_ms=self.store.now_ms,
            )

    @rule(
        target=receipts,
        several=st.lists(ASKED, min_size=1, max_size=3),
        wanted=st.sampled_from(FILTERS),
        rotation=st.integers(0, 3),
    )
    def receive(self, several: list[tuple[Any, ...]], wanted: Filter, rotation: int) -> object:
        asked = [
            Asked(size, wanted, holder, client_id, attempt_id, heads_only)
            for size, holder, client_id, attempt_id, heads_only in several
        ]
        return multiple(*(each.receipt for each in self._receive(asked, rotation)))

    @precondition(has_receipts)
    @rule(several=st.lists(receipts, min_size=1, max_size=4))
    def ack(self, several: list[Receipt]) -> None:
        several = [each for each in several if self._is_stored(each)]
        outcomes = self.store.ack(self.group, *several)
        # Those of one call count together, in whatever order they were named.
        good = [each for each in sorted(set(several)) if self.model.holds(each, self.store.now_ms)]
        assert all(self.model.ack(each, self.store.now_ms) for each in good)
        for receipt, outcome in zip(several, outcomes, strict=True):
            assert receipt in good or self.model.ack(receipt, self.store.now_ms) is (outcome is None)
            assert receipt not in good or outcome is None

    @rule(receipt=receipts)
    def ack_by_sql(self, receipt: Receipt) -> None:
        """What the SQL function of that name does, in the caller's own transaction."""
        if self._is_stored(receipt) and self.model.may_ack_by_sql(receipt, self.store.now_ms):
            self.store.conn.exec_driver_sql(
                f"UPDATE delivery SET visible_at_ms = 0, state = '{State.ACKED_IN_TRANSACTION}'"
                f" WHERE message_key = {receipt.message_key}"
            )
            self.model.ack_by_sql(receipt.message_key)

    @rule(receipt=receipts)
    def forward(self, receipt: Receipt) -> None:
        if not self._is_stored(receipt):
            return
        outcome = self.store.forward(self.group, receipt)
        assert self.model.forward(receipt, self.store.now_ms) is (outcome is None)

    @rule(target=receipts, receipt=receipts, duration_ms=DURATIONS_MS, give_back=st.booleans())
    def change(self, receipt: Receipt, duration_ms: int, give_back: bool) -> object:
        give_back = give_back and duration_ms == 0
        if not self._is_stored(receipt):
            return multiple()
        ok = self.model.change(receipt, duration_ms, self.store.now_ms, give_back=give_back)
        try:
            new = self.store.change(self.group, receipt, duration_ms, give_back=give_back)
        except InvalidReceiptHandle:
            assert not ok
            return multiple()
        assert ok
        self.model.changed(receipt, duration_ms, new, self.store.now_ms)
        return new

    @precondition(has_receipts)
    @rule(several=st.lists(receipts, min_size=1, max_size=3))
    def withdraw(self, several: list[Receipt]) -> None:
        several = [each for each in several if self._is_stored(each)]
        self.store.one(release.cancel_delivery, release.CancelDelivery(several))
        self.model.withdraw(several, self.store.now_ms)

    @rule(client_id=st.sampled_from(["a", "b"]))
    def orphan(self, client_id: str) -> None:
        self.store.orphan_client(client_id)
        self.model.orphan(client_id, self.store.now_ms)

    @rule(client_id=st.sampled_from(["a", "b"]))
    def adopt(self, client_id: str) -> None:
        until_ms = self.store.now_ms + HOUR
        self.store.adopt(client_id, until_ms)
        self.model.adopt(client_id, until_ms, self.store.now_ms)

    @rule(by_ms=st.sampled_from([1, SECOND, FIFO_INTERVAL_MS, 10 * SECOND, HOLD_MS, HOUR]))
    def let_time_pass(self, by_ms: int) -> None:
        self.store.now_ms += by_ms

    @rule()
    def end_due(self) -> None:
        self.store.end_due()
        self.model.end_due(self.store.now_ms)

    @rule(age_ms=st.sampled_from([1, 10 * SECOND, HOUR]))
    def retain(self, age_ms: int) -> None:
        self.store.one(retention.retain, retention.Retain(self.store.now_ms - age_ms))
        stored = {row.message_key for row in self.store.rows("SELECT message_key FROM message")}
        self.model.retained(set(self.model.deliveries) - stored, self.store.now_ms - age_ms)

    @invariant()
    def they_agree(self) -> None:
        self.store.check()
        self._check_sleepers()
        states = self._states()
        assert states == {key: each.state for key, each in self.model.deliveries.items()}
        counts = self.model.counts()
        if states:
            lag = self.store.lag(self.group)
            assert (lag.ready, lag.inflight, lag.waiting_retry) == (
                counts[State.READY],
                counts[State.INFLIGHT],
                counts[State.WAITING_RETRY],
            )

    def _receive(self, asked: list[Asked], rotation: int) -> list[Got]:
        """Several receives of one transaction, checked; what they got."""
        before = [self.model.held_by_attempt(each.attempt_id, self.store.now_ms) for each in asked]
        answers = self.store.do(receiving_receive.receive, *(self._request(each, rotation) for each in asked))
        received = [each for each in answers if isinstance(each, Received)]
        got = [[Got(receipt_of(each), each.attempt) for each in answer.deliveries] for answer in received]
        states, locked = self._states(), self.model.locked()
        passed_over = {
            key
            for key, each in self.model.deliveries.items()
            if each.state is State.READY and each.is_new and states[key] is State.COMMIT
        }
        for each, some, held in zip(asked, got, before, strict=True):
            if held:
                self.model.repeated(each, some, held, self.store.now_ms + _hold_ms(each))
            else:
                self.model.received(each, some, passed_over)
        self.model.pass_over(passed_over, asked[0].wanted, locked)
        if not all(answer.more or answer.deliveries for answer in received):
            self.parked.add(asked[0].wanted)
        return [each for some in got for each in some]

    def _request(self, asked: Asked, rotation: int) -> Receive:
        return a_receive(
            self.group,
            self.topic,
            asked.batch_size,
            wanted=asked.wanted,
            holder=asked.holder,
            client_id=asked.client_id,
            attempt_id=asked.attempt_id,
            heads_only=asked.heads_only,
            invisible_ms=_hold_ms(asked),
            rotation=rotation,
        )

    def _check_sleepers(self) -> None:
        """Whoever parked found nothing, and is woken as soon as there is something."""
        if self.topic.topic_id in self.store.rung:
            self.parked.clear()
        self.store.rung.clear()
        for wanted in self.parked:
            assert not self.model.grantable(wanted), "somebody sleeps beside it"

    def _is_stored(self, receipt: Receipt) -> bool:
        return receipt.message_key in self.model.deliveries

    def _states(self) -> dict[int, State]:
        query = "SELECT message_key, state FROM message_state WHERE consumer_group = :name AND topic = 'orders'"
        return {row.message_key: State(row.state) for row in self.store.rows(query, name=GROUP.name)}

    def _drain(self) -> None:
        """When everybody acks what they get, everything ends."""
        everything = Asked(5, TagFilter(), Holder.SIMPLE, "a", None, heads_only=False)
        fruitless = 0
        while fruitless < LOOKS_MAX:
            got = self._receive([everything], rotation=fruitless)
            assert all(outcome is None for outcome in self.store.ack(self.group, *(each.receipt for each in got)))
            for each in got:
                assert self.model.ack(each.receipt, self.store.now_ms)
            fruitless = 0 if got else fruitless + 1
            if not got and not self._is_waiting():
                break
            if not got:
                self.store.now_ms += HOUR
                self.store.end_due()
                self.model.end_due(self.store.now_ms)
        self.they_agree()
        assert {each.state for each in self.model.deliveries.values()} <= {State.COMMIT, State.DLQ}
        assert self.store.rows("SELECT * FROM delivery") == []
        assert self.store.rows("SELECT * FROM message_group_progress") == []

    def _is_waiting(self) -> bool:
        counts = self.model.counts()
        return bool(counts[State.READY] + counts[State.INFLIGHT] + counts[State.WAITING_RETRY])


def _hold_ms(asked: Asked) -> int:
    return HOUR if asked.holder is Holder.PUSH else HOLD_MS


def _check(opened: Callable[[], AbstractContextManager[OpenStore]], examples: int) -> None:
    machine: Any = partial(MessageGroupsAgainstModel, opened)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            report_multiple_bugs=False,
        ),
    )


@pytest.mark.row("K5")
@pytest.mark.row("K9")
@pytest.mark.user("U38")
def test_in_memory() -> None:
    _check(lambda: open_store("sqlite://"), 60)


@pytest.mark.row("K5")
def test_on_postgres(postgres_database: Database) -> None:
    _check(lambda: emptied(postgres_database), 10)
