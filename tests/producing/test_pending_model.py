"""Every sent message is exactly once pending or in a queue, until it is taken back: the store against a dictionary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from popserver.engine.transaction import RepeatedId
from popserver.messages.stored import Append, append
from popserver.model.errors import InvalidTransactionId, MessageNotFound, PopError, TooLate
from popserver.model.handles import is_transaction_of
from popserver.model.message import Message, SendResult, id_to_bytes
from popserver.model.states import PendingKind
from popserver.model.topic import MessageType
from popserver.producing import pending
from popserver.producing.rules import CheckPolicy, Resolution
from tests.support.builders import a_message
from tests.support.open_store import SECOND, open_store
from tests.support.pending_store import a_delayed, a_half, decide, enter_due, ids_in, pend, recall, take_checks

POLICY = CheckPolicy(first_after_ms=6 * SECOND, interval_ms=30 * SECOND, checks_max=2)


@dataclass
class Waiting:
    """A message that is pending, as the rules have it."""

    kind: PendingKind
    due_at_ms: int
    transaction_id: str = ""
    checks: int = 0


class PendingAgainstModel(RuleBasedStateMachine):
    """One topic of two queues."""

    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self._opening = open_store("sqlite://")
        self.store = self._opening.__enter__()
        self.topic = self.store.topic(queues=2)
        self.waiting: dict[str, Waiting] = {}
        self.stored: set[str] = set()
        self.results: dict[str, SendResult] = {}

    def teardown(self) -> None:
        self._opening.__exit__(None, None, None)

    @rule(target=sent, delays_s=st.lists(st.integers(1, 40), min_size=1, max_size=3), halves=st.integers(0, 2))
    def send_later(self, delays_s: list[int], halves: int) -> object:
        batch = [a_delayed(self.store, delay_s * SECOND) for delay_s in delays_s]
        batch += [a_half() for _ in range(halves)]
        for message, result in zip(batch, pend(self.store, self.topic, *batch), strict=True):
            self._note(message, result)
        return multiple(*batch)

    @rule(target=sent)
    def send_now(self) -> Message:
        message = a_message()
        self.store.send(self.topic, [message])
        self.stored.add(message.message_id)
        return message

    @rule(message=sent)
    def send_again(self, message: Message) -> None:
        """The same id, whatever has become of the first one."""
        was_known = message.message_id in self.stored or message.message_id in self.waiting
        if (
            message.message_type is MessageType.NORMAL
            or (message.deliver_at_ms or self.store.now_ms + 1) <= self.store.now_ms
        ):
            self._append(message)
            if not was_known:
                self.stored.add(message.message_id)
            return
        (result,) = pend(self.store, self.topic, message)
        if not was_known:
            self._note(message, result)
        elif message.message_id in self.waiting:
            assert result == self.results[message.message_id]

    @rule(message=sent)
    def send_again_as_another_kind(self, message: Message) -> None:
        other = message._replace(message_type=MessageType.NORMAL, deliver_at_ms=None)
        if message.message_id in self.stored or message.message_id in self.waiting:
            self._append(other)

    @rule(message=sent)
    def take_back(self, message: Message) -> None:
        if message.deliver_at_ms is None:
            return
        outcome = recall(self.store, self.topic, message)
        row = self.waiting.get(message.message_id)
        if row is not None and row.due_at_ms == message.deliver_at_ms:
            assert outcome is None
            del self.waiting[message.message_id]
        else:
            assert isinstance(outcome, TooLate if message.message_id in self.stored else MessageNotFound)

    @rule(message=sent)
    def cancel(self, message: Message) -> None:
        cancelled = self.store.one(pending.cancel_pending, pending.CancelPending(self.topic, [message.message_id]))
        assert cancelled == ([message.message_id] if self.waiting.pop(message.message_id, None) else [])

    @rule(message=sent, resolution=st.sampled_from(list(Resolution)), is_right=st.booleans())
    def decide(self, message: Message, resolution: Resolution, is_right: bool) -> None:
        result = self.results.get(message.message_id) or SendResult(message.message_id, 0, 0, "x")
        given = result.transaction_id if is_right else "wrong"
        outcome = decide(self.store, self.topic, result, resolution, transaction_id=given)
        row = self.waiting.get(message.message_id)
        if row is None:
            is_stored = message.message_id in self.stored
            may_be = is_transaction_of(given, self.topic.topic_id, id_to_bytes(message.message_id))
            assert (outcome is True) is (may_be and is_stored == (resolution is Resolution.COMMIT))
        elif row.kind is PendingKind.HALF and row.transaction_id == given:
            assert outcome is True
            del self.waiting[message.message_id]
            if resolution is Resolution.COMMIT:
                self.stored.add(message.message_id)
        else:
            assert isinstance(outcome, InvalidTransactionId)

    @rule(by_ms=st.sampled_from([1, SECOND, 6 * SECOND, 30 * SECOND]))
    def let_time_pass(self, by_ms: int) -> None:
        self.store.now_ms += by_ms

    @rule()
    def let_in_what_is_due(self) -> None:
        entered = enter_due(self.store)
        due = [
            message_id
            for message_id, row in self.waiting.items()
            if row.kind is PendingKind.DELAY and row.due_at_ms <= self.store.now_ms
        ]
        assert entered == len(due)
        for message_id in due:
            del self.waiting[message_id]
            self.stored.add(message_id)

    @rule()
    def ask(self) -> None:
        taken = take_checks(self.store, self.topic, policy=POLICY)
        due = {
            message_id: row
            for message_id, row in self.waiting.items()
            if row.kind is PendingKind.HALF and row.due_at_ms <= self.store.now_ms
        }
        assert {each.stored.message.message_id for each in taken.checks} == {
            message_id for message_id, row in due.items() if row.checks < POLICY.checks_max
        }
        assert {each.message_id for each in taken.discarded} == {
            message_id for message_id, row in due.items() if row.checks >= POLICY.checks_max
        }
        for message_id, row in due.items():
            if row.checks >= POLICY.checks_max:
                del self.waiting[message_id]
            else:
                row.checks, row.due_at_ms = row.checks + 1, self.store.now_ms + POLICY.interval_ms

    @invariant()
    def each_is_once_in_either(self) -> None:
        assert sorted(ids_in(self.store, "pending")) == sorted(self.waiting)
        assert sorted(ids_in(self.store, "message")) == sorted(self.stored)
        assert not self.stored & set(self.waiting)

    def _note(self, message: Message, result: SendResult) -> None:
        self.results[message.message_id] = result
        if message.message_type is MessageType.TRANSACTION:
            due_at_ms = self.store.now_ms + POLICY.first_after_ms
            self.waiting[message.message_id] = Waiting(PendingKind.HALF, due_at_ms, result.transaction_id)
        else:
            assert message.deliver_at_ms is not None
            self.waiting[message.message_id] = Waiting(PendingKind.DELAY, message.deliver_at_ms)

    def _append(self, message: Message) -> Any:
        """As the writer does: at once, and looking first where that meets a repeated id."""
        request = Append(self.topic, [message])
        try:
            outcome: PopError | list[SendResult] = self.store.do(append, request)[0]
        except Exception as error:  # noqa: BLE001 - of the database's own or ours, whichever saw it first
            assert isinstance(error, RepeatedId) or "message_id" in str(error)
            outcome = self.store.do(append, request, careful=True)[0]
        assert isinstance(outcome, list)
        return outcome


class TestPendingAgainstModel(PendingAgainstModel.TestCase):  # type: ignore[valid-type]
    settings = settings(max_examples=60, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])
