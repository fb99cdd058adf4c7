"""The dead-letter calls of popmq.v1.Admin: list, purge, redrive."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as wire
from popserver.access import rights
from popserver.dead_letters.flow import Redrives
from popserver.dead_letters.letters import DeadLetter
from popserver.dead_letters.plan_facts import PlanFacts, RedriveFacts
from popserver.dead_letters.rules import LetterSelection, RedriveItem, Repair, Selection
from popserver.model.names import Resource
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method


class DeadLetterMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, redrives: Redrives) -> None:
        self._redrives = redrives
        self.methods: dict[str, AnyMethod] = {
            "ListDeadLetters": Method(self.list_dead_letters, rights.admin),
            "GetDeadLetter": Method(self.get_dead_letter, rights.admin),
            "PurgeDeadLetters": Method(self.purge_dead_letters, rights.admin),
            "PlanRedrive": Method(self.plan_redrive, rights.admin),
            "RunRedrive": Method(self.run_redrive, rights.admin),
            "CancelRedrive": Method(self.cancel_redrive, rights.admin),
            "RedriveDeadLetters": Method(self.redrive_dead_letters, rights.admin),
            "ListRedrivePlans": Method(self.list_redrive_plans, rights.admin),
            "ListRedrives": Method(self.list_redrives, rights.admin),
        }

    async def list_dead_letters(
        self, request: wire.ListDeadLettersRequest, caller: Caller
    ) -> wire.ListDeadLettersResponse:
        selected = _selected(request.selection, caller)
        bodies = not request.without_bodies
        found = await self._redrives.dead_letters(selected, request.after_id, request.max, bodies=bodies)
        return wire.ListDeadLettersResponse(
            status=status.OK,
            dead_letters=(_dead_letter(each, has_body=bodies) for each in found.letters),
            next_after_id=found.next_after_id,
        )

    async def get_dead_letter(self, request: wire.GetDeadLetterRequest, caller: Caller) -> wire.GetDeadLetterResponse:
        group = caller.resource(request.group)
        found = await self._redrives.dead_letter(group, request.message_id)
        return wire.GetDeadLetterResponse(status=status.OK, dead_letter=_dead_letter(found))

    async def purge_dead_letters(
        self, request: wire.PurgeDeadLettersRequest, caller: Caller
    ) -> wire.PurgeDeadLettersResponse:
        selected = _selected(request.selection, caller)
        purged, next_after_id = await self._redrives.purge(selected, request.after_id, request.max)
        return wire.PurgeDeadLettersResponse(status=status.OK, purged=purged, next_after_id=next_after_id)

    async def plan_redrive(self, request: wire.PlanRedriveRequest, caller: Caller) -> wire.PlanRedriveResponse:
        selected, target = _selected(request.selection, caller), _target(request, caller)
        plan = await self._redrives.plan(request.plan_id, selected, request.reason, target, caller.user)
        return wire.PlanRedriveResponse(status=status.OK, plan=_plan(plan))

    async def run_redrive(self, request: wire.RunRedriveRequest, _caller: Caller) -> wire.RunRedriveResponse:
        done = await self._redrives.run(request.plan_id, request.max)
        return wire.RunRedriveResponse(
            status=status.OK, plan=_plan(done.plan), redriven=done.redriven, skipped=done.skipped
        )

    async def cancel_redrive(self, request: wire.CancelRedriveRequest, _caller: Caller) -> wire.CancelRedriveResponse:
        return wire.CancelRedriveResponse(status=status.OK, plan=_plan(await self._redrives.cancel(request.plan_id)))

    async def redrive_dead_letters(
        self, request: wire.RedriveDeadLettersRequest, caller: Caller
    ) -> wire.RedriveDeadLettersResponse:
        done = await self._redrives.redrive(
            request.plan_id,
            caller.resource(request.group),
            [_order(each) for each in request.orders],
            request.reason,
            _target(request, caller),
            caller.user,
        )
        return wire.RedriveDeadLettersResponse(status=status.OK, redrives=map(_redrive, done))

    async def list_redrive_plans(
        self, request: wire.ListRedrivePlansRequest, caller: Caller
    ) -> wire.ListRedrivePlansResponse:
        group = caller.resource(request.group) if request.HasField("group") else None
        plan_id = request.plan_id if request.HasField("plan_id") else None
        found = await self._redrives.plans(group, plan_id)
        return wire.ListRedrivePlansResponse(status=status.OK, plans=map(_plan, found))

    async def list_redrives(self, request: wire.ListRedrivesRequest, _caller: Caller) -> wire.ListRedrivesResponse:
        found = await self._redrives.redrives(request.plan_id, request.after_id, request.max)
        return wire.ListRedrivesResponse(status=status.OK, redrives=map(_redrive, found))


def _selected(of: wire.DeadLetterSelection, caller: Caller) -> LetterSelection:
    only = Selection(
        None,
        convert.time_ms(of.dead_from, "dead_from") if of.HasField("dead_from") else None,
        convert.time_ms(of.dead_until, "dead_until") if of.HasField("dead_until") else None,
        of.where,
        tuple(dict.fromkeys(of.ids)),
        of.redriven_too,
    )
    topic = caller.resource(of.topic) if of.HasField("topic") else None
    return LetterSelection(caller.resource(of.group), topic, only)


def _target(request: wire.PlanRedriveRequest | wire.RedriveDeadLettersRequest, caller: Caller) -> Resource | None:
    return caller.resource(request.target) if request.HasField("target") else None


def _order(order: wire.RedriveOrder) -> RedriveItem:
    return RedriveItem(order.dead_letter_id, order.reason, _repair(order.repair) if order.HasField("repair") else None)


def _repair(repair: wire.Repair) -> Repair | None:
    """The repair; None if it changes nothing."""
    if not repair.ListFields():
        return None
    return Repair(
        repair.body if repair.HasField("body") else None,
        repair.tag if repair.HasField("tag") else None,
        tuple(repair.keys.words) if repair.HasField("keys") else None,
        dict(repair.properties.pairs) if repair.HasField("properties") else None,
    )


def _dead_letter(found: DeadLetter, *, has_body: bool = True) -> wire.DeadLetter:
    return wire.DeadLetter(
        id=found.dead_letter_id,
        message=None if found.stored is None else convert.found_message(found.stored, has_body=has_body),
        group=convert.as_resource(found.group),
        topic=None if found.topic is None else convert.as_resource(found.topic),
        origin_message_id="" if found.stored is None else found.stored.message.message_id,
        delivery_attempt=found.attempt,
        reason=found.reason,
        dead_at=convert.timestamp(found.dead_at_ms),
        redrive_state=found.redrive_state,
        queue_id=found.queue_number,
        queue_offset=found.queue_offset,
        plan_id=found.plan_id,
    )


def _plan(plan: PlanFacts) -> wire.RedrivePlan:
    return wire.RedrivePlan(
        plan_id=plan.plan_id,
        group=convert.as_resource(plan.group),
        state=plan.state,
        reason=plan.reason,
        target=None if plan.target is None else convert.as_resource(plan.target),
        created_by=plan.created_by,
        created_at=convert.timestamp(plan.created_at_ms),
        planned=plan.planned,
        redriven=plan.redriven,
        skipped=plan.skipped,
    )


def _redrive(done: RedriveFacts) -> wire.Redrive:
    return wire.Redrive(
        plan_id=done.plan_id,
        dead_letter_id=done.dead_letter_id,
        topic=None if done.topic is None else convert.as_resource(done.topic),
        message_id=done.message_id,
        change=done.change,
        reason=done.reason,
        state=done.state,
        note=done.note,
        target=None if done.target is None else convert.as_resource(done.target),
        redriven_message_id=done.redriven_message_id,
        redriven_at=convert.timestamp(done.redriven_at_ms),
        outcome=done.outcome,
    )
