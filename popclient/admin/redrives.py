"""Dead letters sent back: planned, run at a pace, or one by one with repairs; and the record of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from popclient.admin.answers import redrive_of, redrive_plan_of
from popclient.admin.calls import Calls
from popclient.admin.dead_letters import selection_wire
from popclient.admin.pace import STEP_MAX, Pace
from popclient.admin.redrive_facts import (
    DeadLetterSelection,
    Redrive,
    RedriveOrder,
    RedrivePlan,
    RedriveStep,
    Repair,
)
from popclient.errors import NotFound
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb

DRAFT: Final = "DRAFT"
DONE: Final = "DONE"
FINISHED: Final = frozenset({DONE, "CANCELLED"})


class Redrives(Calls):
    """The calls that send dead letters back."""

    def plan_redrive(
        self, of: str | DeadLetterSelection, *, reason: str = "", target: str | None = None, plan_id: str = ""
    ) -> RedrivePlan:
        """Writes down what is to go back, unchanged; nothing moves before `run_redrive`.

        To the group alone, or with a `target` to that topic, for all its groups. The plan gets the id given, else a new
        one. Repeated with its id, it goes on where a failure stopped it; a plan that is complete stays as it is.
        """
        request = wire.PlanRedriveRequest(
            plan_id=plan_id or new_plan_id(),
            selection=selection_wire(of, self._config.namespace),
            reason=reason,
            target=self._target(target),
        )
        while True:
            answer = self._call(lambda link: link.admin.PlanRedrive, request)
            if answer.plan.state != DRAFT:
                return redrive_plan_of(answer.plan)

    def run_redrive(
        self, plan_id: str, *, rate: float | None = None, pace: Pace | None = None
    ) -> Iterator[RedriveStep]:
        """Sends a plan's messages back as it is iterated, at most `rate` a second, and tells of each step.

        Each step is one transaction. Whoever stops may go on later, with the same id, and several may run one plan:
        each message goes back once.
        """
        pace = pace or Pace(rate)
        while True:
            pace.await_turn()
            request = wire.RunRedriveRequest(plan_id=plan_id, max=pace.step)
            answer = self._call(lambda link: link.admin.RunRedrive, request)
            pace.spent(answer.redriven)
            yield RedriveStep(redrive_plan_of(answer.plan), answer.redriven, answer.skipped)
            if answer.plan.state in FINISHED or not answer.plan.planned:
                return

    def cancel_redrive(self, plan_id: str) -> RedrivePlan:
        """What the plan has not sent back yet stays a dead letter."""
        request = wire.CancelRedriveRequest(plan_id=plan_id)
        return redrive_plan_of(self._call(lambda link: link.admin.CancelRedrive, request).plan)

    def redrive_dead_letters(
        self,
        plan_id: str,
        group: str,
        orders: Iterable[RedriveOrder],
        *,
        target: str | None = None,
        reason: str = "",
    ) -> list[Redrive]:
        """Sends at most 1,000 dead letters back in one transaction, repaired or not; what became of each, in order.

        The plan is made where it is new. What it has sent back already it does not send again, so that a call whose
        answer was lost may be repeated.
        """
        request = wire.RedriveDeadLettersRequest(
            plan_id=plan_id,
            group=self._named(group),
            orders=map(_order_wire, orders),
            target=self._target(target),
            reason=reason,
        )
        return [redrive_of(each) for each in self._call(lambda link: link.admin.RedriveDeadLetters, request).redrives]

    def redrive_plans(self, group: str | None = None) -> list[RedrivePlan]:
        """Newest first, of one group or of all. Servers bound the list."""
        request = wire.ListRedrivePlansRequest(group=None if group is None else self._named(group))
        return [redrive_plan_of(each) for each in self._call(lambda link: link.admin.ListRedrivePlans, request).plans]

    def redrive_plan(self, plan_id: str) -> RedrivePlan:
        """Raises `NotFound` for one there is not."""
        request = wire.ListRedrivePlansRequest(plan_id=plan_id)
        plans = self._call(lambda link: link.admin.ListRedrivePlans, request).plans
        if not plans:
            raise NotFound(f"redrive plan '{plan_id}' does not exist; list them with: popmq dlq plans")
        return redrive_plan_of(plans[0])

    def list_redrives(self, plan_id: str, *, after_id: int = 0, max_messages: int = STEP_MAX) -> list[Redrive]:
        """One page of a plan's messages; the last one's `dead_letter_id`, given as `after_id`, leads to the next."""
        request = wire.ListRedrivesRequest(plan_id=plan_id, after_id=after_id, max=max_messages)
        return [redrive_of(each) for each in self._call(lambda link: link.admin.ListRedrives, request).redrives]

    def redrives(self, plan_id: str) -> Iterator[Redrive]:
        """All messages of a plan, by dead letter, page by page."""
        page = self.list_redrives(plan_id)
        while page:
            yield from page
            page = self.list_redrives(plan_id, after_id=page[-1].dead_letter_id)

    def _target(self, topic: str | None) -> pb.Resource | None:
        return None if topic is None else self._named(topic)


def new_plan_id() -> str:
    """`20261120T140211-9f3a5c`: by this machine's clock, to the second, and 24 random bits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def _order_wire(order: RedriveOrder) -> wire.RedriveOrder:
    return wire.RedriveOrder(
        dead_letter_id=order.dead_letter_id,
        repair=None if order.repair is None else _repair_wire(order.repair),
        reason=order.reason,
    )


def _repair_wire(repair: Repair) -> wire.Repair:
    return wire.Repair(
        body=repair.body.encode() if isinstance(repair.body, str) else repair.body,
        tag=repair.tag,
        keys=None if repair.keys is None else wire.Words(words=repair.keys),
        properties=None if repair.properties is None else wire.Pairs(pairs=repair.properties),
    )
