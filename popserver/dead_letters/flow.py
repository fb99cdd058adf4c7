"""An operator's actions on dead letters: list them, purge them, redrive them by a plan.

Long work runs in steps of at most 1,000 dead letters. Each step is its own transaction, with other requests in
between. After an interruption the work continues where it stopped.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

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
from popserver.engine.writer import Writer
from popserver.filters import sql as filters_sql
from popserver.model.errors import BadRequest, IllegalMessageId
from popserver.model.group import Group
from popserver.model.names import Resource, check_group, check_topic, check_topic_to_send
from popserver.model.states import PlanState

PAGE_DEFAULT = 32
STEP_MAX = 1_000
PLANS_MAX = 1_000  # in one answer
STEPS_OF_A_CALL = 100  # steps of recording a plan in one call, so that the call ends before its deadline

log = structlog.get_logger("popserver.redrives")


class RedriveResult(NamedTuple):
    """The outcome of one step of a plan, and the plan after it."""

    plan: PlanFacts
    redriven: int
    skipped: int


class Redrives:
    """An operator's actions on dead letters. Every refusal is a `PopError` and changes nothing."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer

    async def dead_letters(self, of: LetterSelection, after_id: int, limit: int, *, bodies: bool) -> DeadLetters:
        """A page of the selected dead letters, oldest first, with ids above `after_id`; `limit` 0 means 32."""
        _check(of)
        page = _page(limit, PAGE_DEFAULT)
        return await self._reader.read(lambda conn: letters.list_dead_letters(conn, of, after_id, page, bodies=bodies))

    async def dead_letter(self, group: Resource, message_id: str) -> DeadLetter:
        check_group(group)
        if not message_id.strip():
            raise IllegalMessageId("the message id is blank; name the one that the send or the receive reported")
        return await self._reader.read(lambda conn: letters.find_dead_letter(conn, group, message_id))

    async def purge(self, of: LetterSelection, after_id: int, limit: int) -> tuple[int, int | None]:
        """Remove one step of the selected dead letters; `limit` 0 means 1,000.

        Returns how many were removed, and the id after which to continue (None: done).
        """
        _check(of)
        group, page = await self._reader.read(
            partial(selecting.page_of, of=of, after_id=after_id, limit=_page(limit, STEP_MAX))
        )
        purged = 0
        if page.ids:
            purged = await self._writer.submit_again(PurgeLetters(group, page.ids))
            log.info("dead letters purged", group=str(group.name), count=purged)
        return purged, page.next_after_id

    async def plan(
        self, plan_id: str, of: LetterSelection, reason: str, target_name: Resource | None, created_by: str
    ) -> PlanFacts:
        """Record a plan, or continue to record a DRAFT.

        The plan covers the dead letters that exist when it begins. After 100,000 dead letters the call returns a DRAFT,
        and the caller repeats it. An empty `plan_id` gets a new id.
        """
        plan_id = plan_id or _new_plan_id()
        _check(of)
        _check_plan(plan_id, reason, target_name)
        if of.only.redriven_too:
            raise BadRequest("a plan redrives dead letters that are not redriven yet; leave redriven_too out")
        found = await self._reader.read(partial(selecting.plan_start, of=of, target_name=target_name))
        new = NewPlan(
            plan_id, found.group, PlanState.DRAFT, reason, _as_text(found.selection), found.target, created_by
        )
        await self._writer.submit_again(new)
        for _ in range(STEPS_OF_A_CALL):
            plan = await self._facts(plan_id)
            if plan.state is not PlanState.DRAFT:
                break
            await self._record_step(plan, found.group)
        return await self._facts(plan_id)

    async def run(self, plan_id: str, limit: int) -> RedriveResult:
        """Redrive the next messages of a plan in one transaction; `limit` 0 means 1,000."""
        check_plan_id(plan_id)
        done = await self._writer.submit_again(RunPlan(plan_id, _page(limit, STEP_MAX)))
        return RedriveResult(await self._facts(plan_id), done.redriven, done.skipped)

    async def cancel(self, plan_id: str) -> PlanFacts:
        """Cancel a plan: messages that it has not redriven yet stay dead letters."""
        check_plan_id(plan_id)
        await self._writer.submit_again(CancelPlan(plan_id))
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
        """Redrive the named dead letters, with or without repairs, in one transaction.

        Returns the plan, and the outcome of each dead letter in the order of the request.
        """
        check_group(group_name)
        _check_plan(plan_id, reason, target_name)
        _check_orders(orders)
        group = await self._reader.read(lambda conn: facts.group(conn, group_name))
        target = await self._reader.read(lambda conn: selecting.find_target(conn, target_name))
        new = NewPlan(plan_id, group, PlanState.RUNNING, reason, "{}", target, created_by)
        await self._writer.submit_again(RedriveNow(new, orders))
        ids = [each.dead_letter_id for each in orders]
        return await self._reader.read(lambda conn: plan_facts.redrives_of(conn, plan_id, ids))

    async def plans(self, group_name: Resource | None, plan_id: str | None) -> list[PlanFacts]:
        """The newest 1,000 plans of one group or of all; with `plan_id` the plan with this id, if it exists."""
        if group_name is not None:
            check_group(group_name)
        if plan_id is not None:
            check_plan_id(plan_id)
        return await self._reader.read(lambda conn: plan_facts.plans(conn, group_name, plan_id, PLANS_MAX))

    async def redrives(self, plan_id: str, after_id: int, limit: int) -> list[RedriveFacts]:
        """A page of a plan's messages, sorted by the ids of their dead letters; `limit` 0 means 32."""
        check_plan_id(plan_id)
        page = _page(limit, PAGE_DEFAULT)
        await self._facts(plan_id)
        return await self._reader.read(lambda conn: plan_facts.redrives(conn, plan_id, after_id, page))

    async def _record_step(self, plan: PlanFacts, group: Group) -> None:
        """Record one step of a DRAFT: the matching messages among the next dead letters."""
        selection, up_to_id = _from_text(plan.selection)
        after_id = plan.planned_up_to
        page = await self._reader.read(
            lambda conn: selecting.page_of_letters(conn, group, selection, after_id, STEP_MAX)
        )
        ids = [each for each in page.ids if each <= up_to_id]
        next_id = page.next_after_id
        is_last = next_id is None or next_id >= up_to_id
        step = PlanStep(plan.plan_id, after_id, up_to_id if next_id is None else next_id, ids, is_last)
        await self._writer.submit_again(step)

    async def _facts(self, plan_id: str) -> PlanFacts:
        found = await self._reader.read(lambda conn: plan_facts.plan(conn, plan_id))
        if found is None:
            raise no_such_plan(plan_id)
        return found


def _as_text(meant: tuple[Selection, int]) -> str:
    selection, up_to_id = meant
    return json.dumps({**selection._asdict(), "up_to_id": up_to_id}, ensure_ascii=False)


def _from_text(text: str) -> tuple[Selection, int]:
    fields = json.loads(text)
    up_to_id = int(fields.pop("up_to_id"))
    return Selection(**{**fields, "ids": tuple(fields["ids"])}), up_to_id


def _check(of: LetterSelection) -> None:
    check_group(of.group)
    only = of.only
    if of.topic is not None:
        check_topic(of.topic)
    if only.where:
        filters_sql.parse(only.where)
    if len(only.ids) > ITEMS_MAX:
        raise BadRequest(f"one selection names at most {ITEMS_MAX} ids, not {len(only.ids)}; use several")
    if only.dead_from_ms is not None and only.dead_until_ms is not None and only.dead_from_ms >= only.dead_until_ms:
        raise BadRequest(
            f"dead_until, {_moment(only.dead_until_ms)}, is not after dead_from, {_moment(only.dead_from_ms)}; no dead"
            " letter can match"
        )


def _check_plan(plan_id: str, reason: str, target: Resource | None) -> None:
    check_plan_id(plan_id)
    check_reason(reason)
    if target is not None:
        check_topic_to_send(target)


def _check_orders(orders: Sequence[RedriveItem]) -> None:
    if len(orders) > ITEMS_MAX:
        raise BadRequest(f"one request redrives at most {ITEMS_MAX} dead letters, not {len(orders)}; use several")
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
        raise BadRequest(f"the limit is {limit}; allowed: 1 to {STEP_MAX} entries in one request")
    return limit or default


def _new_plan_id() -> str:
    return f"plan-{secrets.token_hex(8)}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(sep=" ", timespec="milliseconds")
