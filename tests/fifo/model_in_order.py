"""What a store must do with message groups, without a database: written from the rules and not from the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from popserver.filters import Filter, SqlFilter
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import State
from tests.support.store_model import ModelDelivery, ModelGroup

ENDED = {State.COMMIT, State.DLQ}


@dataclass
class InOrder(ModelDelivery):
    """A delivery of a message in (or, None, outside of) a message group. A `marked` one is acked provisionally."""

    message_group: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    stored_at_ms: int = 0
    is_new: bool = True  # never granted
    marked: bool = False
    acked_by_sql: bool = False  # by its consumer's own transaction; the server has not looked yet
    attempt_id: str | None = None


class Asked(NamedTuple):
    """One of several receives of one call."""

    batch_size: int
    wanted: Filter
    holder: Holder
    client_id: str
    attempt_id: str | None
    heads_only: bool


class Got(NamedTuple):
    """One message it got."""

    receipt: Receipt
    attempt: int


class ModelInOrder(ModelGroup):
    """A consumer group over one topic whose messages may be in message groups."""

    deliveries: dict[int, InOrder]  # type: ignore[assignment]

    def __init__(self, max_attempts: int, interval_ms: int, fifo_interval_ms: int) -> None:
        super().__init__(max_attempts, interval_ms)
        self.fifo_interval_ms = fifo_interval_ms

    def received(self, asked: Asked, got: Sequence[Got], passed_over: set[int]) -> None:
        """Check an answer, and follow it. `passed_over`: keys the store now calls committed."""
        assert len(got) <= asked.batch_size
        for several in self._by_group(each.receipt.message_key for each in got).values():
            self._check_run(asked, several, passed_over)
        for each in got:
            self.granted(each.receipt.message_key, each.receipt, asked.holder, asked.client_id)
            granted = self.deliveries[each.receipt.message_key]
            granted.is_new = granted.marked = False
            granted.attempt_id = asked.attempt_id
            assert granted.attempt == each.attempt <= self.max_attempts

    def repeated(self, asked: Asked, got: Sequence[Got], before: list[int], until_ms: int) -> None:
        """Check an answer to a receive that came before, and holds these keys."""
        assert [each.receipt.message_key for each in got] == before
        for each in got:
            held = self.deliveries[each.receipt.message_key]
            if held.holder is Holder.ORPHAN and held.ends_at_ms < until_ms:
                held.holder, held.client_id, held.ends_at_ms = asked.holder, asked.client_id, until_ms
            now = (each.receipt.hold_id, each.receipt.ends_at_ms, each.attempt)
            assert now == (held.hold_id, held.ends_at_ms, held.attempt)

    def held_by_attempt(self, attempt_id: str | None, now_ms: int) -> list[int]:
        return [
            key
            for key, each in sorted(self.deliveries.items())
            if attempt_id
            and each.attempt_id == attempt_id
            and each.state is State.INFLIGHT
            and each.ends_at_ms > now_ms
        ]

    def pass_over(self, keys: Iterable[int], wanted: Filter, locked: set[str]) -> None:
        """Messages a look has consumed: its filter refused them, and nothing of their groups was held before it."""
        for key in keys:
            each = self.deliveries[key]
            assert each.state is State.READY
            assert each.is_new, "what was granted once is not judged again"
            assert not matches(wanted, each), "a wanted message is lost"
            assert each.message_group not in locked, "judged before its turn"
            each.state = State.COMMIT

    def locked(self) -> set[str]:
        """The message groups of which something is held, waits or comes again."""
        return {each.message_group for each in self._started() if each.message_group is not None}

    def grantable(self, wanted: Filter) -> set[int]:
        """The first message of each group, and every ungrouped one, that may be granted now."""
        found = {
            key
            for key, each in self.deliveries.items()
            if each.message_group is None and each.state is State.READY and (not each.is_new or matches(wanted, each))
        }
        for run, new in self._groups().values():
            if run:
                found |= set(run[:1]) if self.deliveries[run[0]].state is State.READY else set()
            else:
                found |= set([key for key in new if matches(wanted, self.deliveries[key])][:1])
        return found

    def ack(self, receipt: Receipt, now_ms: int) -> bool:
        each = self.deliveries[receipt.message_key]
        is_acked = each.marked or each.acked_by_sql
        is_repeated = is_acked and each.hold_id == receipt.hold_id and now_ms < receipt.ends_at_ms
        if each.message_group is None or not self.holds(receipt, now_ms):
            return is_repeated or super().ack(receipt, now_ms)
        each.state, each.marked, each.replaced = State.READY, True, {}
        self.settle({each.message_group})
        return True

    def forward(self, receipt: Receipt, now_ms: int) -> bool:
        held = self.holds(receipt, now_ms)
        ok = super().forward(receipt, now_ms)
        if held:
            self._settle_after(receipt)
        return ok

    def change(self, old: Receipt, duration_ms: int, now_ms: int, *, give_back: bool) -> bool:
        held = self.holds(old, now_ms)
        ok = super().change(old, duration_ms, now_ms, give_back=give_back)
        if held and self.deliveries[old.message_key].state in {State.READY, State.DLQ}:
            self._settle_after(old)
        return ok

    def may_ack_by_sql(self, receipt: Receipt, now_ms: int) -> bool:
        each = self.deliveries[receipt.message_key]
        if each.message_group is None or not self.holds(receipt, now_ms):
            return False
        run, _ = self._groups()[each.message_group]
        before = [self.deliveries[key] for key in run if key < receipt.message_key]
        return all(other.marked or other.acked_by_sql for other in before)

    def ack_by_sql(self, key: int) -> None:
        self.deliveries[key].acked_by_sql = True
        self.deliveries[key].ends_at_ms = 0
        self.deliveries[key].replaced = {}

    def withdraw(self, receipts: Iterable[Receipt], now_ms: int) -> None:
        """Grants that nobody got."""
        held = [each for each in set(receipts) if self.holds(each, now_ms)]
        for receipt in held:
            each = self.deliveries[receipt.message_key]
            each.state, each.attempt, each.ends_at_ms = State.READY, each.attempt - 1, now_ms
            each.replaced = {}
        self.settle({self.deliveries[receipt.message_key].message_group for receipt in held})

    def wait_ms(self, key: int, duration_ms: int = 0) -> int:
        if self.deliveries[key].message_group is not None:
            return self.fifo_interval_ms
        return super().wait_ms(key, duration_ms)

    def end_due(self, now_ms: int) -> None:
        for each in self.deliveries.values():
            if each.acked_by_sql and each.state is State.INFLIGHT:
                each.state, each.marked = State.READY, True
        super().end_due(now_ms)
        self.settle(self.locked())

    def retained(self, removed: set[int], cutoff_ms: int) -> None:
        """Messages that are stored no more."""
        gone = [self.deliveries.pop(key) for key in removed]
        for each in gone:
            assert each.stored_at_ms < cutoff_ms
            assert each.state not in {State.INFLIGHT, State.WAITING_RETRY}, "somebody needs it"
        self.settle({each.message_group for each in gone if not each.is_new and each.state is State.READY})

    def settle(self, names: Collection[str | None]) -> None:
        """The first messages of these groups' runs have ended if they are acked."""
        for name, (run, _) in self._groups().items():
            if name not in names:
                continue
            acked = takewhile(lambda each: each.marked or each.acked_by_sql, (self.deliveries[key] for key in run))
            for each in list(acked):
                each.state, each.marked = State.COMMIT, False

    def _settle_after(self, receipt: Receipt) -> None:
        self.settle({self.deliveries[receipt.message_key].message_group})

    def _check_run(self, asked: Asked, keys: list[int], passed_over: set[int]) -> None:
        """Messages of one group that an answer holds: the right ones, in their order."""
        name = self.deliveries[keys[0]].message_group
        if name is None:
            for key in keys:
                assert not self.deliveries[key].is_new or matches(asked.wanted, self.deliveries[key])
            return
        assert keys == sorted(keys), "out of order"
        assert len(keys) == 1 or not asked.heads_only
        run, new = self._groups()[name]
        if run:
            again = list(takewhile(lambda key: self.deliveries[key].state is State.READY, run))
            again = [key for key in again if not self._is_spent(self.deliveries[key])]
            assert keys == again[: len(keys)], "a run comes again in its order, and nothing beyond it"
        else:
            wanted = [key for key in new if matches(asked.wanted, self.deliveries[key])]
            assert keys == wanted[: len(keys)], "first granted in stored order"
            refused = {key for key in new if key < keys[-1]} - set(wanted)
            assert refused <= passed_over

    def _is_spent(self, each: InOrder) -> bool:
        """Acked and without attempts: it need not come again."""
        return each.marked and each.attempt >= self.max_attempts

    def _started(self) -> list[InOrder]:
        return [each for each in self.deliveries.values() if not each.is_new and each.state not in ENDED]

    def _groups(self) -> dict[str, tuple[list[int], list[int]]]:
        """Of each message group, in order, the keys of its run and of what nobody has had yet."""
        groups: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for key, each in sorted(self.deliveries.items()):
            if each.message_group is not None and each.state not in ENDED:
                groups[each.message_group][each.is_new].append(key)
        return groups

    def _by_group(self, keys: Iterable[int]) -> dict[str | None, list[int]]:
        by_group: dict[str | None, list[int]] = defaultdict(list)
        for key in keys:
            by_group[self.deliveries[key].message_group].append(key)
        return by_group


def matches(wanted: Filter, each: InOrder) -> bool:
    if isinstance(wanted, SqlFilter):
        return wanted.matches(each.tag, each.properties or {})
    return wanted.wants_all or each.tag in wanted.tags
