"""The list of groups, and one group: what it holds, how far it is, who works for it, and what an operator does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from popclient.admin import Group, Hold, LockedMessageGroups, MovedOffset, QueueLag
from popconsole import rates, words
from popconsole.pages.charts import charts_of, lines
from popconsole.pages.overview import rows_of
from popconsole.paging import PAGE, first_of, page_of
from popconsole.pictures.bars import label_of, parts_of, scaled
from popconsole.pictures.ladder import ladder_of
from popconsole.pulse import backlog_of
from popconsole.settings import LISTED_MAX
from popconsole.visits import Outcome, Refused, Visit

HOLDS_MAX: Final = 1_000  # holds, and locked message groups, of which the server tells
PAUSES_MAX: Final = 20
LAG_MAX: Final = 1_000  # pairs of a group and a topic in one answer of the server
TABS: Final = {
    "holds": "Holds",
    "queues": "Queues",
    "members": "Members",
    "message-groups": "Message groups",
    "policy": "Policy",
    "activity": "Activity",
}


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
    return visit.show(
        "groups.html",
        now=visit.pulse.time,
        rows=page_of(visit, rows),
        wanted=wanted,
        by=by,
        idle=page_of(visit, sorted(each for each in idle if wanted.lower() in each.lower()), "idle_from"),
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
        limit = _asked_of_server(visit)
        holds = await visit.attempt(visit.admin.list_holds(found.name, max_messages=limit))
        rows = holds_of(holds.value or (), now)
        return {"failure": holds.failure, "holds": page_of(visit, rows, is_more=len(rows) == limit)}
    if tab == "queues":
        queues = await visit.attempt(visit.admin.list_lag(found.name))
        return {"failure": queues.failure, "queues": page_of(visit, queues_of(queues.value or ()))}
    if tab == "message-groups":
        asked = visit.admin.list_locked_message_groups(found.name, max_groups=_asked_of_server(visit))
        locked = await visit.attempt(asked)
        groups = locked.value or LockedMessageGroups(())
        return {"failure": locked.failure, "locked": page_of(visit, groups.message_groups, is_more=bool(groups.more))}
    if tab == "members":
        return {"failure": "", "members": page_of(visit, found.consumers)}
    if tab == "activity":
        return {"failure": "", **await charts_of(visit, "groups", found.name, tab=tab, group=found.name)}
    return {"failure": ""}


def _asked_of_server(visit: Visit) -> int:
    """How many rows the page needs: its own, those before it, and one to know whether there are more."""
    return min(HOLDS_MAX, first_of(visit) + PAGE + 1)


async def activity(visit: Visit) -> Response:
    """The lines of a group's charts."""
    return await lines(visit, group=visit.named("group"))


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
