"""Reads of redrive plans, and of the outcome of each of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, text

from popserver.catalog import facts, groups, redrive_plans
from popserver.catalog.redrive_plans import PlanRow
from popserver.database.rows import RowStatement
from popserver.model.message import id_from_bytes
from popserver.model.names import Resource
from popserver.model.states import PlanState


class PlanFacts(NamedTuple):
    """A plan; `planned`, `redriven` and `skipped` count its messages. `target` None: only back to the group."""

    plan_id: str
    group: Resource
    state: PlanState
    reason: str
    target: Resource | None
    created_by: str
    created_at_ms: int
    planned: int
    redriven: int
    skipped: int
    planned_up_to: int
    selection: str


class RedriveFacts(NamedTuple):
    """One message of a plan. `outcome` is the redriven message's state in the group; empty if there is none."""

    plan_id: str
    dead_letter_id: int
    topic: Resource | None
    message_id: str
    change: str
    reason: str
    state: str
    note: str
    target: Resource | None
    redriven_message_id: str
    redriven_at_ms: int | None
    outcome: str


class _RedriveRow(NamedTuple):
    plan_id: str
    dead_letter_id: int
    topic_namespace: str | None
    topic: str | None
    message_id: bytes
    change: str
    reason: str
    state: str
    note: str | None
    redriven_message_id: bytes | None
    redriven_at_ms: int | None
    outcome: str | None


def plan(conn: Connection, plan_id: str) -> PlanFacts | None:
    """The plan with this id; None if there is none."""
    found = plans(conn, None, plan_id, 1)
    return found[0] if found else None


def plans(conn: Connection, group_name: Resource | None, plan_id: str | None, limit: int) -> list[PlanFacts]:
    """The newest `limit` plans of one group or (None) of all, or the plan with this id."""
    group_id = None if group_name is None else facts.group(conn, group_name).group_id
    rows = redrive_plans.newest(conn, group_id, plan_id, limit)
    found = groups.groups_by_id(conn, {row.group_id for row in rows})
    return [_plan(row, found[row.group_id].group.name) for row in rows if row.group_id in found]


def redrives(conn: Connection, plan_id: str, after_id: int, limit: int) -> list[RedriveFacts]:
    """A page of a plan's messages, sorted by the ids of their dead letters."""
    names = {"of_plan": plan_id, "after": after_id, "limit": limit}
    target = _target(conn, plan_id)
    return [_redrive(row, target) for row in _REDRIVES.rows(conn, names)]


def redrives_of(conn: Connection, plan_id: str, ids: Sequence[int]) -> list[RedriveFacts]:
    """The plan's outcome for these dead letters, in the order of the ids, without unknown ones."""
    rows = _OF_IDS.rows(conn, {"of_plan": plan_id, "ids": list(ids)})
    target = _target(conn, plan_id)
    by_id = {row.dead_letter_id: _redrive(row, target) for row in rows}
    return [by_id[each] for each in ids if each in by_id]


def _plan(row: PlanRow, group: Resource) -> PlanFacts:
    return PlanFacts(
        row.plan_id,
        group,
        PlanState(row.state),
        row.reason,
        _name(row.target_namespace, row.target_topic),
        row.created_by,
        row.created_at_ms,
        row.planned,
        row.redriven,
        row.skipped,
        row.planned_up_to,
        row.selection,
    )


def _target(conn: Connection, plan_id: str) -> Resource | None:
    row = redrive_plans.find(conn, plan_id)
    return None if row is None else _name(row.target_namespace, row.target_topic)


def _name(namespace: str | None, name: str | None) -> Resource | None:
    return None if name is None else Resource(namespace or "", name)


def _redrive(row: _RedriveRow, target: Resource | None) -> RedriveFacts:
    return RedriveFacts(
        row.plan_id,
        row.dead_letter_id,
        _name(row.topic_namespace, row.topic),
        id_from_bytes(bytes(row.message_id)),
        row.change,
        row.reason,
        row.state,
        row.note or "",
        target,
        "" if row.redriven_message_id is None else id_from_bytes(bytes(row.redriven_message_id)),
        row.redriven_at_ms,
        row.outcome or "",
    )


_LINEAGE = f"SELECT {', '.join(_RedriveRow._fields)} FROM lineage WHERE plan_id = :of_plan"  # noqa: S608
_REDRIVES = RowStatement(
    _RedriveRow, text(f"{_LINEAGE} AND dead_letter_id > :after ORDER BY dead_letter_id LIMIT :limit")
)
_OF_IDS = RowStatement(
    _RedriveRow,
    text(f"{_LINEAGE} AND dead_letter_id IN :ids").bindparams(bindparam("ids", expanding=True)),
)
