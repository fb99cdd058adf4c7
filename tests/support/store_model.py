"""What a store must do, without a database: a few dictionaries, written from the rules and not from the code."""

from __future__ import annotations

from dataclasses import dataclass, field

from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import State

ORPHAN_DELAY_MS = 1_000


@dataclass
class ModelDelivery:
    """One message in one group. `ends_at_ms`: of the hold, or of the wait."""

    state: State = State.READY
    attempt: int = 0
    ends_at_ms: int = 0
    hold_id: int | None = None
    holder: Holder = Holder.SIMPLE
    client_id: str = ""
    replaced: dict[tuple[int, int], Receipt] = field(default_factory=dict)  # (old hold, duration) → the answer given


class ModelGroup:
    """A group of the given policy over one topic; times are milliseconds."""

    def __init__(self, max_attempts: int, interval_ms: int) -> None:
        self.max_attempts = max_attempts
        self.interval_ms = interval_ms
        self.deliveries: dict[int, ModelDelivery] = {}

    def counts(self) -> dict[State, int]:
        listed = [each.state for each in self.deliveries.values()]
        return {state: listed.count(state) for state in State}

    def granted(self, key: int, receipt: Receipt, holder: Holder, client_id: str) -> ModelDelivery:
        each = self.deliveries[key]
        assert each.state is State.READY, f"granted while {each.state}"
        each.state, each.attempt, each.replaced = State.INFLIGHT, each.attempt + 1, {}
        each.hold_id, each.ends_at_ms, each.holder, each.client_id = (
            receipt.hold_id,
            receipt.ends_at_ms,
            holder,
            client_id,
        )
        return each

    def holds(self, receipt: Receipt, now_ms: int) -> bool:
        each = self.deliveries[receipt.message_key]
        return each.state is State.INFLIGHT and each.hold_id == receipt.hold_id and now_ms < each.ends_at_ms

    def ack(self, receipt: Receipt, now_ms: int) -> bool:
        """Whether the answer is OK."""
        each = self.deliveries[receipt.message_key]
        if self.holds(receipt, now_ms):
            each.state = State.COMMIT
            return True
        return each.state is State.COMMIT and now_ms < receipt.ends_at_ms

    def forward(self, receipt: Receipt, now_ms: int) -> bool:
        each = self.deliveries[receipt.message_key]
        if self.holds(receipt, now_ms):
            each.state = State.DLQ
            return True
        return each.state in {State.COMMIT, State.DLQ}

    def change(self, old: Receipt, duration_ms: int, now_ms: int, *, give_back: bool) -> bool:
        """Whether the answer is OK; `changed` says with which receipt."""
        each = self.deliveries[old.message_key]
        if not self.holds(old, now_ms):
            return each.state not in {State.COMMIT, State.DLQ} and (old.hold_id, duration_ms) in each.replaced
        if give_back:
            each.state, each.attempt, each.ends_at_ms = State.READY, each.attempt - 1, now_ms
        elif each.holder is Holder.SIMPLE:
            each.ends_at_ms = now_ms + duration_ms
        elif each.attempt < self.max_attempts:
            each.state, each.ends_at_ms = State.WAITING_RETRY, now_ms + self.wait_ms(old.message_key, duration_ms)
        else:
            each.state = State.DLQ
        return True

    def wait_ms(self, _key: int, duration_ms: int = 0) -> int:
        """How long a failed message waits; `duration_ms` is what its consumer asks for."""
        return duration_ms or self.interval_ms

    def changed(self, old: Receipt, duration_ms: int, new: Receipt, now_ms: int) -> None:
        each = self.deliveries[old.message_key]
        if each.state is State.DLQ:
            assert new == old, "a message that died of it answers with the handle it was given"
            return
        first = each.replaced.get((old.hold_id, duration_ms), new)
        if first.ends_at_ms <= now_ms:  # it has ended, and the row may say since when the message is READY instead
            first = first._replace(ends_at_ms=new.ends_at_ms)
        assert new == first, "repeated, the same answer"
        each.hold_id, each.replaced = new.hold_id, {(old.hold_id, duration_ms): new}

    def orphan(self, client_id: str, now_ms: int) -> None:
        for each in self.deliveries.values():
            mine = each.state is State.INFLIGHT and each.holder is Holder.PUSH and each.client_id == client_id
            if mine and each.ends_at_ms > now_ms + ORPHAN_DELAY_MS:
                each.holder, each.ends_at_ms = Holder.ORPHAN, now_ms + ORPHAN_DELAY_MS

    def adopt(self, client_id: str, until_ms: int, now_ms: int) -> None:
        for each in self.deliveries.values():
            mine = each.state is State.INFLIGHT and each.holder is Holder.ORPHAN and each.client_id == client_id
            if mine and each.ends_at_ms > now_ms:
                each.holder, each.ends_at_ms = Holder.PUSH, until_ms

    def end_due(self, now_ms: int) -> None:
        for key, each in self.deliveries.items():
            if each.state is State.INFLIGHT and each.ends_at_ms <= now_ms:
                self._end_hold(key, each)
            if each.state is State.WAITING_RETRY and each.ends_at_ms <= now_ms:
                each.state = State.READY

    def _end_hold(self, key: int, each: ModelDelivery) -> None:
        if each.attempt >= self.max_attempts:
            each.state = State.DLQ
        elif each.holder is Holder.PUSH:
            each.state, each.ends_at_ms = State.WAITING_RETRY, each.ends_at_ms + self.wait_ms(key)
        else:
            each.state = State.READY
