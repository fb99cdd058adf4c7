"""The list of groups, and one group: what it holds, how far it is, who works for it, and what an operator does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.responses import JSONResponse, Response

from popclient.admin import Group, Hold, LockedMessageGroups, MovedOffset, QueueLag
from popconsole import rates, words
from popconsole.pages.overview import rows_of
from popconsole.pictures.bars import label_of, parts_of, scaled
from popconsole.pictures.ladder import ladder_of
from popconsole.pulse import backlog_of
from popconsole.settings import LISTED_MAX
from popconsole.visits import Outcome, Refused, Visit

HOLDS_MAX: Final = 200
PAUSES_MAX: Final = 20
LOCKED_MAX: Final = 100
PAGE: Final = 50
LAG_MAX: Final = 1_000  # pairs of a group and a topic in one answer of the server
TABS: Final = {
    "holds": "Holds",
    "queues": "Queues",
    "members": "Members",
    "message-groups": "Message groups",
    "policy": "Policy",
    "activity": "Activity",
}
RANGES: Final = {15: "15 min", 60: "1 h", 360: "6 h", 1_440: "24 h"}  # minutes


async def groups(visit: Visit) -> Response:
    """All groups, with what each has to do; sorted by name, or by a count."""
    status = await visit.pulse.now(visit.admin)
    samples = visit.pulse.ring
    rows = rows_of(samples[-1], rates.trends(samples))
    # Not for the news of a page, which show the rows alone.
    listed = Outcome([], "") if visit.is_news else await visit.attempt(visit.admin.list_groups(max_groups=LISTED_MAX))
    wanted, by = visit.asked("name"), visit.asked("by", "name")
    if wanted:
        rows = [row for row in rows if wanted.lower() in row.name.lower()]
    if by in ("ready", "inflight", "waiting", "dead"):
        rows.sort(key=lambda row: (-getattr(row.backlog, by), row.name))
    namespace = visit.settings.server.namespace
    idle = {each.name for each in listed.value or () if each.namespace == namespace or not namespace}
    idle -= samples[-1].groups.keys()
    first = visit.asked_number("from")
    return visit.show(
        "groups.html",
        now=visit.pulse.time,
        rows=rows[first : first + PAGE],
        count=len(rows),
        first=first,
        page=PAGE,
        wanted=wanted,
        by=by,
        idle=sorted(each for each in idle if wanted.lower() in each.lower()),
        failure=listed.failure,
        is_cut=len(status.lag) >= LAG_MAX,
        every=rates.every(visit.pulse),
    )


async def group(visit: Visit) -> Response:
    """One group."""
    name = visit.named("group")
    found = await visit.admin.get_group(name)
    await visit.pulse.now(visit.admin)
    tab = visit.asked("tab") if visit.asked("tab") in TABS else "holds"
    backlog = backlog_of(found.lag)
    counts = backlog.of_states
    return visit.show(
        "group.html",
        now=visit.pulse.time,
        group=found,
        backlog=backlog,
        trend=rates.trends(visit.pulse.ring).get(name, rates.Trend()),
        parts=parts_of(counts),
        label=label_of(counts),
        ladder=ladder_of(found),
        tabs=TABS,
        tab=tab,
        every=rates.every(visit.pulse),
        pauses_max=PAUSES_MAX,
        pauses_left=max(0, len(found.pauses) - PAUSES_MAX) + found.more_pauses,
        **await _tab(visit, found, tab, visit.pulse.time),
    )


async def _tab(visit: Visit, found: Group, tab: str, now: datetime) -> dict[str, Any]:
    """What one tab shows; only that is asked for."""
    if tab == "holds":
        holds = await visit.attempt(visit.admin.list_holds(found.name, max_messages=HOLDS_MAX))
        return {"failure": holds.failure, "holds": holds_of(holds.value or (), now), "holds_max": HOLDS_MAX}
    if tab == "queues":
        queues = await visit.attempt(visit.admin.list_lag(found.name))
        return {"failure": queues.failure, "queues": queues_of(queues.value or ())}
    if tab == "message-groups":
        locked = await visit.attempt(visit.admin.list_locked_message_groups(found.name, max_groups=LOCKED_MAX))
        found_locked = locked.value or LockedMessageGroups(())
        return {"failure": locked.failure, "locked": found_locked.message_groups, "locked_more": found_locked.more}
    if tab == "activity":
        minutes = minutes_of(visit)
        counts = rates.series_of_group(visit.pulse.ring, found.name, minutes)
        since = datetime.fromtimestamp(visit.pulse.ring[0].at, UTC)
        return {"failure": "", "ranges": RANGES, "minutes": minutes, "since": since, "series": counts}
    return {"failure": ""}


def minutes_of(visit: Visit) -> int:
    """The time range that is asked for."""
    minutes = visit.asked_number("minutes") or next(iter(RANGES))
    if minutes not in RANGES:
        raise Refused(f"minutes is '{minutes}'; it must be one of {words.listed(map(str, RANGES))}")
    return minutes


async def activity(visit: Visit) -> Response:
    """The series of a group's plots."""
    await visit.pulse.now(visit.admin)
    series = rates.series_of_group(visit.pulse.ring, visit.named("group"), minutes_of(visit))
    return JSONResponse({**series, "every": rates.every(visit.pulse)})


class HeldRow(NamedTuple):
    """A hold, and its bar: seconds left, and of how many the bar is full."""

    hold: Hold
    left_s: float
    full_s: float


def holds_of(holds: Sequence[Hold], now: datetime) -> list[HeldRow]:
    left = [max(0.0, (each.visible_at - now).total_seconds()) for each in holds]
    # One scale for the holds of simple consumers; those of push consumers last hours, if their client lives.
    full = max((each for hold, each in zip(holds, left, strict=True) if hold.holder != "PUSH"), default=0.0)
    return [HeldRow(hold, round(each, 1), round(max(full, 1.0), 1)) for hold, each in zip(holds, left, strict=True)]


class QueueRow(NamedTuple):
    """A queue, and its bar, of 1,000: how much of what it stores the group has before it."""

    lag: QueueLag
    behind: int
    stored: int
    width: float


def queues_of(queues: Sequence[QueueLag]) -> list[QueueRow]:
    rows = []
    for each in queues:
        behind = each.ready + each.inflight + each.waiting_retry
        stored = max(behind, each.max_offset - each.min_offset)
        rows.append(QueueRow(each, behind, stored, round(scaled([behind, stored - behind])[0], 1)))
    return rows


async def reset_preview(visit: Visit) -> Response:
    """What a reset would do, in numbers; nothing changes."""
    name, topic = visit.named("group"), visit.asked("topic")
    to = _target(visit.asked("to", "BEGINNING"), visit.asked("at"))
    moved = await visit.admin.reset_offsets(name, topic, to, dry_run=True)
    found = await visit.admin.get_group(name)
    dead = sum(each.dead_letters for each in found.lag if each.topic == topic)
    return visit.show(
        "reset.html",
        group=found,
        topic=topic,
        to=visit.asked("to", "BEGINNING"),
        at=visit.asked("at"),
        moved=moved,
        dead=dead,
        **_moves(moved),
    )


def _moves(moved: Sequence[MovedOffset]) -> dict[str, int]:
    """Over how many messages a reset goes back, and over how many it goes forward."""
    steps = [each.to_offset - max(0, each.from_offset) for each in moved]
    return {"back": -sum(each for each in steps if each < 0), "forward": sum(each for each in steps if each > 0)}


async def reset(visit: Visit) -> Response:
    name, topic = visit.named("group"), visit.given("topic")
    visit.require_name(name)
    moved = await visit.admin.reset_offsets(name, topic, _target(visit.given("to"), visit.given("at")))
    moves = _moves(moved)
    return visit.go(
        visit.path("groups", name) + "?tab=queues",
        f"Group {name} was reset in topic {topic}: back over {words.plural(moves['back'], 'message')}, forward over"
        f" {words.plural(moves['forward'], 'message')}.",
    )


def _target(to: str, at: str) -> Any:
    if to in ("BEGINNING", "END"):
        return to
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise Refused(f"'{at}' is no time; write it as 2026-11-20T10:00, in UTC") from None
    return moment if moment.tzinfo else datetime.fromisoformat(f"{at}+00:00")


async def pause(visit: Visit) -> Response:
    """Pause the group, or one message group of it; or go on."""
    name = visit.named("group")
    topic, message_group = visit.given("topic") or None, visit.given("message_group") or None
    what = f"Message group {message_group} of {name}" if message_group else f"Group {name}"
    if visit.given("what") == "resume":
        await visit.admin.resume_group(name, topic=topic, message_group=message_group)
        return visit.go(visit.path("groups", name), f"{what} is delivered again.")
    visit.require_name(name)
    await visit.admin.pause_group(name, topic=topic, message_group=message_group)
    return visit.go(visit.path("groups", name), f"{what} is paused until somebody resumes it.")


async def delete_preview(visit: Visit) -> Response:
    found = await visit.admin.get_group(visit.named("group"))
    return visit.show("delete_group.html", group=found, backlog=backlog_of(found.lag))


async def delete(visit: Visit) -> Response:
    name = visit.named("group")
    visit.require_name(name)
    await visit.admin.delete_group(name)
    await visit.pulse.fresh(visit.admin)
    return visit.go(visit.path("groups"), f"Group {name} is deleted.")
