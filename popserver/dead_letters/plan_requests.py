"""Requests for redrive plans.

A request locks its plan's id at the start of the transaction. So two servers that run the same plan take turns, and
each message is redriven once.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

from sqlalchemy import text

from popserver.database.dialect import dialect_of
from popserver.dead_letters.rules import RedriveItem
from popserver.engine.transaction import LockOrder, Locks, Phase, Request, Transaction
from popserver.model.group import Group
from popserver.model.states import PlanState
from popserver.model.topic import Topic

# An arbitrary number, the same for all servers, with a hash of the plan's id.
_LOCK_NAME = text(f"SELECT pg_advisory_xact_lock({0x706F71}, CAST(:plan_name AS integer))")


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _OfPlan(Request[R]):
    plan_id: str

    def locks(self) -> Iterable[Locks]:
        return (Locks(LockOrder.PLANS, lock, (self.plan_id,)),)


@dataclass(frozen=True, slots=True)
class NewPlan(_OfPlan[None]):
    """Make a plan, unless one with this id exists. `selection` is a JSON object, stored unchanged.

    Its `up_to_id` is the newest dead letter that the plan covers; for an existing plan the stored one counts.
    """

    phase: ClassVar = Phase.CREATE_PLAN
    group: Group
    state: PlanState
    reason: str
    selection: str
    target: Topic | None
    created_by: str


@dataclass(frozen=True, slots=True)
class PlanStep(_OfPlan[None]):
    """The matches for a DRAFT among the dead letters after `after_id` up to `up_to_id`."""

    phase: ClassVar = Phase.RECORD_STEP
    after_id: int
    up_to_id: int
    ids: Sequence[int]
    is_last: bool


class RedriveCounts(NamedTuple):
    """The outcome of one step."""

    redriven: int
    skipped: int


@dataclass(frozen=True, slots=True)
class RunPlan(_OfPlan[RedriveCounts]):
    """Redrive the next `limit` messages of a plan."""

    phase: ClassVar = Phase.RUN_PLAN
    limit: int


@dataclass(frozen=True, slots=True)
class CancelPlan(_OfPlan[None]):
    phase: ClassVar = Phase.CANCEL_PLAN


@dataclass(frozen=True, slots=True)
class RedriveNow(Request[RedriveCounts]):
    """Redrive the named dead letters (each once) under a plan's id. The plan is made if it does not exist."""

    phase: ClassVar = Phase.REDRIVE
    new: NewPlan
    orders: Sequence[RedriveItem]

    def locks(self) -> Iterable[Locks]:
        return self.new.locks()


def lock(tx: Transaction, plan_ids: Iterable[str]) -> None:
    """Lock these plan ids: other transactions that change these plans, or make plans with these ids, wait."""
    for name in sorted({zlib.crc32(each.encode()) - (1 << 31) for each in plan_ids}):
        dialect_of(tx.conn).lock(tx.conn, _LOCK_NAME, {"plan_name": name})
