"""Dead letters: listed, purged, and sent back by plan, at a pace, or one by one with repairs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from popclient.admin.answers import dead_letter_of, facts_of
from popclient.admin.pace import STEP_MAX, Pace
from popclient.admin.redrive_facts import (
    DeadLetter,
    DeadLetterPage,
    DeadLetterSelection,
    Redrive,
    RedriveOrder,
    RedrivePlan,
    RedriveStep,
)
from popclient.admin.requests import PAGE, new_plan_id, order_request, selection_request
from popclient.aio.admin.calls import Calls
from popclient.errors import NotFound
from popproto.v1 import admin_pb2 as wire

DRAFT: Final = "DRAFT"
DONE: Final = "DONE"
FINISHED: Final = frozenset({DONE, "CANCELLED"})


class DeadLetters(Calls):
    """The calls about dead letters."""

    async def list_dead_letters(
        self,
        of: str | DeadLetterSelection,
        *,
        after_id: int = 0,
        max_messages: int = PAGE,
        without_bodies: bool = False,
    ) -> DeadLetterPage:
        """One page, oldest first, of a group's dead letters or of those selected; those with an id above `after_id`."""
        request = wire.ListDeadLettersRequest(
            selection=selection_request(of, self._config.namespace),
            after_id=after_id,
            max=max_messages,
            without_bodies=without_bodies,
        )
        answer = await self._call(lambda link: link.admin.ListDeadLetters, request)
        return facts_of(DeadLetterPage, answer)

    async def dead_letters(
        self, of: str | DeadLetterSelection, *, after_id: int = 0, without_bodies: bool = False
    ) -> AsyncIterator[DeadLetter]:
        """All dead letters, oldest first, page by page. `without_bodies` is faster; bodies are then empty."""
        page_size = STEP_MAX if without_bodies else PAGE
        at: int | None = after_id
        while at is not None:
            page = await self.list_dead_letters(of, after_id=at, max_messages=page_size, without_bodies=without_bodies)
            for each in page.dead_letters:
                yield each
            at = page.next_after_id

    async def get_dead_letter(self, group: str, message_id: str) -> DeadLetter:
        """By the id of its message; the newest one, if there are several."""
        request = wire.GetDeadLetterRequest(group=self._named(group), message_id=message_id)
        answer = await self._call(lambda link: link.admin.GetDeadLetter, request)
        return dead_letter_of(answer.dead_letter)

    async def purge_dead_letters(
        self, of: str | DeadLetterSelection, *, told: Callable[[int], None] | None = None
    ) -> int:
        """Deletes dead letters with their copies; returns how many. Keeps those that are redriven and not done yet.

        Works in steps of at most 1,000, each one transaction, and calls `told` after each with the number deleted so
        far. Repeat it after a failure to continue.
        """
        selection = selection_request(of, self._config.namespace)
        purged, after_id = 0, 0
        while True:
            request = wire.PurgeDeadLettersRequest(selection=selection, after_id=after_id, max=STEP_MAX)
            answer = await self._call(lambda link: link.admin.PurgeDeadLetters, request)
            purged += answer.purged
            if told is not None:
                told(purged)
            if not answer.HasField("next_after_id"):
                return purged
            after_id = answer.next_after_id


class Redrives(Calls):
    """The calls that send dead letters back."""

    async def plan_redrive(
        self, of: str | DeadLetterSelection, *, reason: str = "", target: str | None = None, plan_id: str = ""
    ) -> RedrivePlan:
        """Plans which dead letters to send back, unchanged; `run_redrive` sends them.

        They go to the group alone, or with a `target` to that topic, for all its groups. The plan gets the given id, or
        a new one. A repeated call with its id goes on where a failure stopped it; a complete plan stays as it is.
        """
        request = wire.PlanRedriveRequest(
            plan_id=plan_id or new_plan_id(),
            selection=selection_request(of, self._config.namespace),
            reason=reason,
            target=self._named(target),
        )
        while True:
            answer = await self._call(lambda link: link.admin.PlanRedrive, request)
            if answer.plan.state != DRAFT:
                return facts_of(RedrivePlan, answer.plan)

    # sync: await pace.turn() => pace.await_turn()
    async def run_redrive(
        self, plan_id: str, *, rate: float | None = None, pace: Pace | None = None
    ) -> AsyncIterator[RedriveStep]:
        """An iterator that sends a plan's messages back while you iterate, and yields each step; alone it does nothing.

        rate: the most messages per second; None: no limit. Each step is one transaction. You may stop and go on later
        with the same id, and several processes may run one plan: each message goes back once.
        """
        pace = pace or Pace(rate)
        while True:
            await pace.turn()
            request = wire.RunRedriveRequest(plan_id=plan_id, max=pace.step)
            answer = await self._call(lambda link: link.admin.RunRedrive, request)
            pace.spent(answer.redriven)
            yield RedriveStep(facts_of(RedrivePlan, answer.plan), answer.redriven, answer.skipped)
            if answer.plan.state in FINISHED or not answer.plan.planned:
                return

    async def cancel_redrive(self, plan_id: str) -> RedrivePlan:
        """Cancels a plan: what it has not sent back yet stays a dead letter."""
        request = wire.CancelRedriveRequest(plan_id=plan_id)
        answer = await self._call(lambda link: link.admin.CancelRedrive, request)
        return facts_of(RedrivePlan, answer.plan)

    async def redrive_dead_letters(
        self,
        plan_id: str,
        group: str,
        orders: Iterable[RedriveOrder],
        *,
        target: str | None = None,
        reason: str = "",
    ) -> list[Redrive]:
        """Sends at most 1,000 dead letters back in one transaction, repaired or not; returns the outcomes in order.

        Creates the plan if it is new. Does not send again what the plan has sent back already, so you may repeat a call
        whose answer was lost.
        """
        request = wire.RedriveDeadLettersRequest(
            plan_id=plan_id,
            group=self._named(group),
            orders=map(order_request, orders),
            target=self._named(target),
            reason=reason,
        )
        answer = await self._call(lambda link: link.admin.RedriveDeadLetters, request)
        return [facts_of(Redrive, each) for each in answer.redrives]

    async def redrive_plans(self, group: str | None = None) -> list[RedrivePlan]:
        """The plans of one group or of all, newest first. Servers limit the list."""
        request = wire.ListRedrivePlansRequest(group=self._named(group))
        answer = await self._call(lambda link: link.admin.ListRedrivePlans, request)
        return [facts_of(RedrivePlan, each) for each in answer.plans]

    async def redrive_plan(self, plan_id: str) -> RedrivePlan:
        """One plan. Raises NotFound."""
        request = wire.ListRedrivePlansRequest(plan_id=plan_id)
        answer = await self._call(lambda link: link.admin.ListRedrivePlans, request)
        plans = answer.plans
        if not plans:
            raise NotFound(f"redrive plan '{plan_id}' does not exist; list them with: popmq dlq plans")
        return facts_of(RedrivePlan, plans[0])

    async def list_redrives(self, plan_id: str, *, after_id: int = 0, max_messages: int = STEP_MAX) -> list[Redrive]:
        """One page of a plan's messages; the last one's `dead_letter_id`, given as `after_id`, leads to the next."""
        request = wire.ListRedrivesRequest(plan_id=plan_id, after_id=after_id, max=max_messages)
        answer = await self._call(lambda link: link.admin.ListRedrives, request)
        return [facts_of(Redrive, each) for each in answer.redrives]

    async def redrives(self, plan_id: str) -> AsyncIterator[Redrive]:
        """All messages of a plan, by dead letter, page by page."""
        page = await self.list_redrives(plan_id)
        while page:
            for each in page:
                yield each
            page = await self.list_redrives(plan_id, after_id=page[-1].dead_letter_id)
