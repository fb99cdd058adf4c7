"""Samples of a server, and the rows that `popmq top` shows of them.

A sample has the answers of the server at one moment. Rates are the difference of two samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from popclient.admin import Admin, Status
from popclient.cli.output import duration_text


class TopSample(NamedTuple):
    """Answers of the server. `members`: connected consumers by group; `paused`: the groups with a pause."""

    status: Status
    members: Mapping[str, int]
    paused: frozenset[str]


class TopRow(NamedTuple):
    """One group in one topic; an empty topic: the deleted ones. Rates are messages per second; None before the second
    sample."""

    group: str
    topic: str
    ready: int
    inflight: int
    waiting_retry: int
    commit: int
    dlq: int
    rate_in: float | None
    rate_done: float | None
    oldest_ready: timedelta | None
    members: int
    is_paused: bool


# The orders by their keys: name, and sort key.
SORTS: Final[dict[str, tuple[str, Callable[[TopRow], Any]]]] = {
    "r": ("ready", lambda row: -row.ready),
    "o": ("oldest ready", lambda row: -(row.oldest_ready or timedelta())),
    "i": ("in/s", lambda row: -(row.rate_in or 0)),
    "d": ("dlq", lambda row: -row.dlq),
    "n": ("name", lambda _: 0),
}


def sample(admin: Admin) -> TopSample:
    """Get all values of one frame from the server."""
    members = Counter(each.group for each in admin.list_clients() if each.group)
    paused = frozenset(each.name for each in admin.list_groups() if each.pauses)
    return TopSample(admin.status(), members, paused)


def heading(now: TopSample, rows: list[TopRow]) -> tuple[str, str]:
    """The version, and the server's numbers."""
    status = now.status
    up = duration_text(timedelta(seconds=(status.now - status.started_at) // timedelta(seconds=1)))
    behind = sum(1 for row in rows if row.ready)
    return (
        f"popmq {status.version}",
        f"  up {up}  {status.messages} messages  {status.topics} topics  {status.groups} groups, {behind} with messages"
        f" ready  {status.connected_clients} clients",
    )


def rows_of(now: TopSample, before: TopSample | None) -> list[TopRow]:
    """A row for each group and topic."""
    earlier = {} if before is None else {(each.group, each.namespace, each.topic): each for each in before.status.lag}
    seconds = 0.0 if before is None else (now.status.now - before.status.now).total_seconds()
    rows = []
    for each in (*now.status.lag, *now.status.dead_elsewhere):
        was = earlier.get((each.group, each.namespace, each.topic))
        left = each.ready + each.inflight + each.waiting_retry
        rate_in = rate_done = None
        if was is not None and seconds > 0:
            rate_in = max(0.0, (each.appended - was.appended) / seconds)
            left_before = was.ready + was.inflight + was.waiting_retry
            rate_done = max(0.0, (each.appended - left - was.appended + left_before) / seconds)
        rows.append(
            TopRow(
                each.group,
                each.topic,
                each.ready,
                each.inflight,
                each.waiting_retry,
                max(0, each.stored - left - each.dead_letters),
                each.dead_letters,
                rate_in,
                rate_done,
                _age(each.oldest_ready, now.status.now),
                now.members.get(each.group, 0),
                each.group in now.paused,
            )
        )
    return rows


def in_order(rows: list[TopRow], sort: str) -> list[TopRow]:
    """The rows in the order of this key of `SORTS`, then by name."""
    return sorted(rows, key=lambda row: (SORTS[sort][1](row), row.group, row.topic))


def oldest_text(row: TopRow) -> str:
    """How long the oldest message is ready."""
    return "" if row.oldest_ready is None else duration_text(row.oldest_ready)


def _age(moment: datetime | None, now: datetime) -> timedelta | None:
    """The time since the moment, in whole seconds."""
    return None if moment is None else timedelta(seconds=max(0, (now - moment) // timedelta(seconds=1)))
