"""What an operator does with dead letters: looks at them, removes them, sends them back by a plan.

Long work goes in steps of at most 1,000, each a transaction of its own with other requests in between; whoever is
interrupted goes on where he stopped.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from popserver.catalog import facts
from popserver.dead_letters import letters, plan_facts, selecting
from popserver.dead_letters.letters import DeadLetter, DeadLetters
from popserver.dead_letters.plan_facts import PlanFacts, RedriveFacts
from popserver.dead_letters.plan_requests import CancelPlan, NewPlan, PlanStep, RedriveNow, RunPlan
from popserver.dead_letters.plans import no_such_plan
from popserver.dead_letters.purge import PurgeLetters
from popserver.dead_letters.rules import (
    ITEMS_MAX,
    LetterSelection,
    RedriveItem,
    Selection,
    check_plan_id,
    check_reason,
    check_repair,
)
from popserver.engine.reader import Reader
from popserver.engine.transaction import Request
from popserver.engine.writer import Writer
from popserver.filters import sql as filters_sql
from popserver.model.errors import BadRequest, IllegalMessageId, TooManyRequests
from popserver.model.group import Group
from popserver.model.names import Resource, check_group, check_topic, check_topic_to_send
from popserver.model.states import PlanState

# The door speaks of what was found without knowing the store.
__all__ = ["DeadLetter", "DeadLetters", "PlanFacts", "RedriveFacts", "RedriveResult", "Redrives"]

PAGE_DEFAULT = 32
STEP_MAX = 1_000
PLANS_MAX = 1_000  # in one answer
STEPS_OF_A_CALL = 100  # of writing a plan down: a call does not take for ever
TRIES = 5  # of a step that another server stands in the way of
PAUSE_S = 0.02

S = TypeVar("S")

log = structlog.get_logger("popserver.redrives")


class RedriveResult(NamedTuple):
    """What one step of a plan came to, and the plan after it."""

    plan: PlanFacts
    redriven: int
    skipped: int


class Redrives:
    """An operator's verbs over one broker. Every refusal is a `PopError`, and changes nothing."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer

    async def dead_letters(self, of: LetterSelection, after_id: int, limit: int, *, bodies: bool) -> DeadLetters:
        """A page of those selected, oldest first, after the one with the id `after_id`; `limit` 0 is 32."""
        _check(of)
        page = _page(limit, PAGE_DEFAULT)
        return await self._reader.read(lambda conn: letters.list_dead_letters(conn, of, after_id, page, bodies=bodies))

    async def dead_letter(self, group: Resource, message_id: str) -> DeadLetter:
        check_group(group)
        if not message_id.strip():
            raise IllegalMessageId("the message id is blank; name the one that the send or the receive reported")
        return await self._reader.read(lambda conn: letters.find_dead_letter(conn, group, message_id))

    async def purge(self, of: LetterSelection, after_id: int, limit: int) -> tuple[int, int | None]:
        """Remove a step of those selected; how many went, and after which id to go on; `limit` 0 is 1,000."""
        _check(of)
        group, page = await self._reader.read(
            partial(selecting.page_of, of=of, after_id=after_id, limit=_page(limit, STEP_MAX))
        )
        purged = 0
        if page.ids:
            purged = await self._do(PurgeLetters(group, page.ids))
            log.info("dead letters purged", group=str(group.name), count=purged)
        return purged, page.next_after_id

    async def plan(
        self, plan_id: str, of: LetterSelection, reason: str, target_name: Resource | None, created_by: str
    ) -> PlanFacts:
        """Write a plan down, or go on with a DRAFT; after 100,000 dead letters it is a DRAFT still, to be asked again.

        It takes what is dead when it begins. An empty `plan_id` gets a new one.
        """
        plan_id = plan_id or _new_plan_id()
        _check(of)
        _check_plan(plan_id, reason, target_name)
        if of.redriven_too:
            raise BadRequest("a plan sends back what is dead; leave redriven_too out")
        found = await self._reader.read(partial(selecting.plan_start, of=of, target_name=target_name))
        new = NewPlan(
            plan_id, found.group, PlanState.DRAFT, reason, _as_text(found.selection), found.target, created_by
        )
        await self._do(new)
        for _ in range(STEPS_OF_A_CALL):
            plan = await self._facts(plan_id)
            if plan.state is not PlanState.DRAFT:
                break
            await self._write_down(plan, found.group)
        return await self._facts(plan_id)

    async def run(self, plan_id: str, limit: int) -> RedriveResult:
        """The next messages of a plan, in one transaction; `limit` 0 is 1,000."""
        check_plan_id(plan_id)
        done = await self._do(RunPlan(plan_id, _page(limit, STEP_MAX)))
        return RedriveResult(await self._facts(plan_id), done.redriven, done.skipped)

    async def cancel(self, plan_id: str) -> PlanFacts:
        """What has not gone back yet by the plan stays dead."""
        check_plan_id(plan_id)
        await self._do(CancelPlan(plan_id))
        return await self._facts(plan_id)

    async def redrive(
        self,
        plan_id: str,
        group_name: Resource,
        orders: Sequence[RedriveItem],
        reason: str,
        target_name: Resource | None,
        created_by: str,
    ) -> list[RedriveFacts]:
        """Send back what is named, all in one transaction, repaired or not; what became of each, in that order."""
        check_group(group_name)
        _check_plan(plan_id, reason, target_name)
        _check_orders(orders)
        group = await self._reader.read(lambda conn: facts.group(conn, group_name))
        target = await self._reader.read(lambda conn: selecting.find_target(conn, target_name))
        new = NewPlan(plan_id, group, PlanState.RUNNING, reason, "{}", target, created_by)
        await self._do(RedriveNow(new, orders))
        ids = [each.dead_letter_id for each in orders]
        return await self._reader.read(lambda conn: plan_facts.redrives_of(conn, plan_id, ids))

    async def plans(self, group_name: Resource | None, plan_id: str | None) -> list[PlanFacts]:
        """The newest 1,000 plans, of one group or of all, or (`plan_id` not None) that of one id, if there is one."""
        if group_name is not None:
            check_group(group_name)
        if plan_id is not None:
            check_plan_id(plan_id)
        return await self._reader.read(lambda conn: plan_facts.plans(conn, group_name, plan_id, PLANS_MAX))

    async def redrives(self, plan_id: str, after_id: int, limit: int) -> list[RedriveFacts]:
        """A page of a plan's messages, by the ids of their dead letters; `limit` 0 is 32."""
        check_plan_id(plan_id)
        page = _page(limit, PAGE_DEFAULT)
        await self._facts(plan_id)
        return await self._reader.read(lambda conn: plan_facts.redrives(conn, plan_id, after_id, page))

    async def _write_down(self, plan: PlanFacts, group: Group) -> None:
        """One step of a DRAFT: what the next stretch of dead letters has for it."""
        selection, up_to_id = _from_text(plan.selection)
        after_id = plan.planned_up_to
        page = await self._reader.read(
            lambda conn: selecting.page_of_letters(conn, group, selection, after_id, STEP_MAX)
        )
        ids = [each for each in page.ids if each <= up_to_id]
        next_id = page.next_after_id
        is_last = next_id is None or next_id >= up_to_id
        stretch = PlanStep(plan.plan_id, after_id, up_to_id if next_id is None else next_id, ids, is_last)
        await self._do(stretch)

    async def _facts(self, plan_id: str) -> PlanFacts:
        found = await self._reader.read(lambda conn: plan_facts.plan(conn, plan_id))
        if found is None:
            raise no_such_plan(plan_id)
        return found

    async def _do(self, request: Request[S]) -> S:
        """Submit a step; again where another server's transaction stands in its way for a moment."""
        for tries_left in reversed(range(TRIES)):
            try:
                return await self._writer.submit(request)
            except TooManyRequests:
                if not tries_left:
                    raise
                await asyncio.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")


def _as_text(meant: tuple[Selection, int]) -> str:
    selection, up_to_id = meant
    return json.dumps({**selection._asdict(), "up_to_id": up_to_id}, ensure_ascii=False)


def _from_text(text: str) -> tuple[Selection, int]:
    fields = json.loads(text)
    up_to_id = int(fields.pop("up_to_id"))
    return Selection(**{**fields, "ids": tuple(fields["ids"])}), up_to_id


def _check(of: LetterSelection) -> None:
    check_group(of.group)
    if of.topic is not None:
        check_topic(of.topic)
    if of.where:
        filters_sql.parse(of.where)
    if len(of.ids) > ITEMS_MAX:
        raise BadRequest(f"one selection names at most {ITEMS_MAX} ids, not {len(of.ids)}; use several")
    if of.dead_from_ms is not None and of.dead_until_ms is not None and of.dead_from_ms >= of.dead_until_ms:
        raise BadRequest(
            f"dead_until, {_moment(of.dead_until_ms)}, is not after dead_from, {_moment(of.dead_from_ms)}; nothing"
            " died in between"
        )


def _check_plan(plan_id: str, reason: str, target: Resource | None) -> None:
    check_plan_id(plan_id)
    check_reason(reason)
    if target is not None:
        check_topic_to_send(target)


def _check_orders(orders: Sequence[RedriveItem]) -> None:
    if not 1 <= len(orders) <= ITEMS_MAX:
        raise BadRequest(f"one request redrives 1 to {ITEMS_MAX} dead letters, not {len(orders)}; use several")
    seen: set[int] = set()
    for each in orders:
        if each.dead_letter_id in seen:
            raise BadRequest(f"dead letter {each.dead_letter_id} is named twice; name each once")
        seen.add(each.dead_letter_id)
        check_reason(each.reason)
        if each.repair is not None:
            check_repair(each.dead_letter_id, each.repair)


def _page(limit: int, default: int) -> int:
    if not 0 <= limit <= STEP_MAX:
        raise BadRequest(f"one request takes 1 to {STEP_MAX} entries, not {limit}; ask for the rest in further ones")
    return limit or default


def _new_plan_id() -> str:
    return f"plan-{secrets.token_hex(8)}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")
