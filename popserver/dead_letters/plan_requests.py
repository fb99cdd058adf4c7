"""What an operator asks of redrive plans.

A request locks the name of its plan from the start of the transaction: two servers that run one plan take turns, and
each message goes back once."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import text

from popserver.database.dialect import dialect_of
from popserver.dead_letters.rules import RedriveItem
from popserver.engine.transaction import LockOrder, Locks, Phase, Request, Transaction
from popserver.model.group import Group
from popserver.model.states import PlanState
from popserver.model.topic import Topic

# Any number, as long as every server takes the same; beside it a hash of the plan's name.
_LOCK_NAME = text(f"SELECT pg_advisory_xact_lock({0x706F71}, CAST(:plan_name AS integer))")


@dataclass(frozen=True, slots=True)
class NewPlan(Request[None]):
    """A plan that is to be made, unless there is one of that name. `selection` is kept as it is, a JSON object.

    Its `up_to_id` is the newest dead letter that is meant; the plan that was made first decides that.
    """

    phase: ClassVar = Phase.CREATE_PLAN
    plan_id: str
    group: Group
    state: PlanState
    reason: str
    selection: str
    target: Topic | None
    created_by: str

    def locks(self) -> Iterable[Locks]:
        return (Locks(LockOrder.PLANS, lock, (self.plan_id,)),)


@dataclass(frozen=True, slots=True)
class PlanStep(Request[None]):
    """What a look at a stretch of dead letters has found for a DRAFT: from `after_id` on up to `up_to_id`."""

    phase: ClassVar = Phase.RECORD_STEP
    plan_id: str
    after_id: int
    up_to_id: int
    ids: Sequence[int]
    is_last: bool

    def locks(self) -> Iterable[Locks]:
        return (Locks(LockOrder.PLANS, lock, (self.plan_id,)),)


class RedriveCounts(NamedTuple):
    """What one step came to."""

    redriven: int
    skipped: int


@dataclass(frozen=True, slots=True)
class RunPlan(Request[RedriveCounts]):
    """The next `limit` messages of a plan."""

    phase: ClassVar = Phase.RUN_PLAN
    plan_id: str
    limit: int

    def locks(self) -> Iterable[Locks]:
        return (Locks(LockOrder.PLANS, lock, (self.plan_id,)),)


@dataclass(frozen=True, slots=True)
class CancelPlan(Request[None]):
    phase: ClassVar = Phase.CANCEL_PLAN
    plan_id: str

    def locks(self) -> Iterable[Locks]:
        return (Locks(LockOrder.PLANS, lock, (self.plan_id,)),)


@dataclass(frozen=True, slots=True)
class RedriveNow(Request[RedriveCounts]):
    """Dead letters to be sent back under a plan's name, each named once; the plan is made where it is new."""

    phase: ClassVar = Phase.REDRIVE
    new: NewPlan
    orders: Sequence[RedriveItem]

    def locks(self) -> Iterable[Locks]:
        return self.new.locks()


def lock(tx: Transaction, plan_ids: Iterable[str]) -> None:
    """Nobody else changes these plans now, nor makes one of their names."""
    for name in sorted({zlib.crc32(each.encode()) - (1 << 31) for each in plan_ids}):
        dialect_of(tx.conn).lock(tx.conn, _LOCK_NAME, {"plan_name": name})
