"""Reads from the store what alerts are found from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.administration import disk, holds
from popserver.administration.facts import Lag
from popserver.alerts.rules import COUNTED_MAX, STUCK_ATTEMPT, RecentDeadLetters, StuckMessageGroup
from popserver.catalog import facts as catalog_facts
from popserver.charts.looks import Look, look
from popserver.cluster.sql import KnownServer, known
from popserver.delivery.due import next_due_ms
from popserver.messages import dead_letters
from popserver.messages.pending_messages import first_due_ms
from popserver.mirrors import records
from popserver.mirrors.rules import MirrorRow
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS

ASKED_MAX = 5  # groups with dead letters, and groups whose message groups are looked at


class StoreForAlerts(NamedTuple):
    """The store at one moment. `retrying`: the names of the groups whose ids were asked for."""

    look: Look
    overdue_ms: int
    servers: Sequence[KnownServer]
    dead_letters: Sequence[RecentDeadLetters]
    stuck: Sequence[StuckMessageGroup]
    warnings: Sequence[str]
    retrying: dict[int, Resource]
    gone: Sequence[MirrorRow]


def store_for_alerts(conn: Connection, now_ms: int, file: Path | None, retrying: Iterable[int]) -> StoreForAlerts:
    """The facts of the store now. `file`: that of a SQLite database."""
    space, seen = disk.check(conn, file), look(conn, now_ms)
    due_ms = [each for each in (next_due_ms(conn), first_due_ms(conn)) if each is not None]
    wanted = list(retrying)
    return StoreForAlerts(
        seen,
        max(0, now_ms - min(due_ms, default=now_ms)),
        known(conn, now_ms),
        _dead(conn, now_ms - HOUR_MS),
        _stuck(conn, seen.lag),
        disk.disk_warnings(file, space) if file is not None and space is not None else [],
        {each.group_id: each.name for each in catalog_facts.groups_by_id(conn, wanted, len(wanted))} if wanted else {},
        [each for each in records.listed(conn) if each.is_lost(now_ms)],
    )


def _dead(conn: Connection, since_ms: int) -> list[RecentDeadLetters]:
    most = sorted(dead_letters.since(conn, since_ms, COUNTED_MAX), key=lambda each: -each.letters)[:ASKED_MAX]
    reasons = dead_letters.reasons(conn, [each.last_id for each in most])
    names = {
        each.group_id: each.name
        for each in catalog_facts.groups_by_id(conn, [each.group_id for each in most], ASKED_MAX)
    }
    return [
        RecentDeadLetters(names[each.group_id], each.letters, reasons.get(each.last_id, ""))
        for each in most
        if each.group_id in names
    ]


def _stuck(conn: Connection, lags: Sequence[Lag]) -> list[StuckMessageGroup]:
    waiting: dict[Resource, int] = {}
    for each in lags:
        if each.waiting_retry:
            waiting[each.group] = waiting.get(each.group, 0) + each.waiting_retry
    found = []
    for group in sorted(waiting, key=lambda each: (-waiting[each], each))[:ASKED_MAX]:
        for locked in holds.locked_groups(conn, group, ASKED_MAX).shown:
            first = locked.first
            if first.attempt >= STUCK_ATTEMPT and locked.behind:
                name = first.message_group or ""
                found.append(StuckMessageGroup(group, name, first.attempt, locked.behind, first.message_id))
                break
    return found
