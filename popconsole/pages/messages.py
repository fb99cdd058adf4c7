"""Finding messages, and the page of one message: its life in every group, why it is where it is, and what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from starlette.responses import RedirectResponse, Response

from popclient._arguments import parse_duration_ms
from popclient.admin import FoundMessages, MessageFacts, MessageState
from popclient.errors import NotFound, PopError
from popconsole import words
from popconsole.bodies import body_of
from popconsole.pages.topics import OWN
from popconsole.pictures.lineage import Box, lineage_of
from popconsole.pictures.timeline import timeline_of
from popconsole.settings import LISTED_MAX
from popconsole.visits import Refused, Visit

FOUND_MAX: Final = 50
REASONS_MAX: Final = 6  # groups that are asked why
TIMES: Final = ("since", "until")
URGENCY: Final = ("DLQ", "WAITING_RETRY", "INFLIGHT", "READY", "COMMIT")
DIED: Final = frozenset({"EXHAUST", "FORWARD_TO_DLQ", "REDRIVE"})


class Time(NamedTuple):
    """As the visitor wrote it, as a shell takes it, and what it means; None: any time."""

    written: str = ""
    shell: str = ""
    at: datetime | None = None
    failure: str = ""


class InGroup(NamedTuple):
    """A group's view of the message."""

    state: MessageState
    sentence: str
    boxes: list[Box]


async def find(visit: Visit) -> Response:
    """By id or key, or by a condition in a topic. A message id leads to its page."""
    status = await visit.pulse.now(visit.admin)
    asked = (visit.asked(each).strip() for each in ("find", "topic", "tag", "where", "page"))
    wanted, topic, tag, where, page = asked
    if wanted:
        try:
            found = await visit.admin.get_message(wanted, topic or None)
        except NotFound:
            pass
        except PopError as error:
            if "several topics" not in error.sentence:
                raise
        else:
            return RedirectResponse(visit.path("messages", found.message.message_id), 303)
    since, until = (_time(at, visit.pulse.time) if (at := visit.asked(each).strip()) else Time() for each in TIMES)
    results, refusal = None, _refusal(since, until)
    if (wanted or topic) and not refusal:
        results = await visit.attempt(_search(visit, wanted, topic, tag, where, (since.at, until.at), page))
    names = await visit.attempt(visit.admin.list_topics(max_topics=LISTED_MAX))
    groups = await visit.attempt(visit.admin.list_groups(max_groups=LISTED_MAX)) if wanted and not page else None
    like_it = [each.name for each in names.value or () if wanted and wanted.lower() in each.name.lower()]
    of_groups = [each.name for each in (groups.value or () if groups else ()) if wanted.lower() in each.name.lower()]
    return visit.show(
        "messages.html",
        now=visit.pulse.time,
        wanted=wanted,
        found_topics=sorted(like_it, key=lambda each: (each != wanted, each)) if not page else [],
        found_groups=sorted(of_groups, key=lambda each: (each != wanted, each)),
        topic=topic,
        tag=tag,
        where=where,
        times={"since": since, "until": until},
        topics=[each.name for each in names.value or () if not each.name.startswith(OWN)],
        results=results.value if results else None,
        failure=results.failure if results else refusal,
        messages_count=status.messages,
    )


def _time(written: str, now: datetime) -> Time:
    """A time that a visitor wrote: how long ago, or a time of UTC unless it says."""
    try:
        try:
            at = datetime.fromisoformat(written)
        except ValueError:
            ago = timedelta(milliseconds=parse_duration_ms(written))
            return Time(written, written, now - ago)
        at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        return Time(written, at.isoformat(), at)
    except (ValueError, OverflowError):
        example = "2026-11-20T10:00 for UTC, 2026-11-20T10:00+01:00, or how long ago: 15m, 6h, 3d"
        return Time(written, failure=f"'{written[:64]}' is no time; write {example}")


def _refusal(since: Time, until: Time) -> str:
    """Why the times cannot be searched; empty if they can."""
    if since.at and until.at and since.at >= until.at:
        return f"nothing is since {words.exact(since.at)} and before {words.exact(until.at)}; exchange the two times"
    return since.failure or until.failure


async def _search(
    visit: Visit, key: str, topic: str, tag: str, where: str, times: tuple[datetime | None, datetime | None], page: str
) -> FoundMessages:
    since, until = times
    return await visit.admin.find_messages(
        key=key or None,
        topic=topic or None,
        tag=tag or None,
        where=where,
        since=since,
        until=until,
        max_messages=FOUND_MAX,
        page=page,
    )


async def message(visit: Visit) -> Response:
    """One message."""
    message_id = visit.named("message_id")
    await visit.pulse.now(visit.admin)
    facts = await visit.admin.get_message(message_id, visit.asked("topic") or None)
    view = facts.message
    now = visit.pulse.time
    stored = view.store_timestamp or view.born_timestamp
    # Not for the news of a page, which show its life alone.
    body = None if visit.is_news else await asyncio.to_thread(body_of, view)
    kinds = body.kinds if body else [""]
    ordered = sorted(
        facts.states, key=lambda each: (URGENCY.index(each.state) if each.state in URGENCY else 9, each.group)
    )
    return await visit.show_large(
        "message.html",
        now=now,
        message=view,
        history=facts.history,
        timeline=timeline_of(ordered, facts.history, stored, now),
        stored=stored,
        groups=await _in_groups(visit, facts, ordered),
        asked_max=REASONS_MAX,
        body=body,
        shown=visit.asked("show") if visit.asked("show") in kinds else kinds[0],
        trace=_trace_id(view.trace_context or ""),
    )


async def _in_groups(visit: Visit, facts: MessageFacts, states: Sequence[MessageState]) -> list[InGroup]:
    """Why the message is where it is, in the first groups."""
    message_id, topic = facts.message.message_id, facts.message.topic
    asked = states[:REASONS_MAX]
    reasons = await asyncio.gather(*(visit.attempt(visit.admin.why(message_id, each.group, topic)) for each in asked))
    died = {each.group for each in facts.history if each.event in DIED}
    boxes = await asyncio.gather(
        *(lineage(visit, each.group, message_id) for each in asked if each.group in died or each.state == "DLQ")
    )
    of_group = dict(boxes)
    return [
        InGroup(state, why.failure or why.value.sentence, of_group.get(state.group, []))
        for state, why in zip(asked, reasons, strict=True)
    ]


async def lineage(visit: Visit, group: str, message_id: str) -> tuple[str, list[Box]]:
    """The group, and what became of its dead letter; nothing where it is no more."""
    letter = await visit.attempt(visit.admin.get_dead_letter(group, message_id))
    if letter.value is None:
        return group, []
    redrives: Any = None
    if letter.value.plan_id:
        call = visit.admin.list_redrives(letter.value.plan_id, after_id=letter.value.id - 1, max_messages=1)
        redrives = (await visit.attempt(call)).value
    return group, lineage_of(letter.value, redrives[0] if redrives else None)


def _trace_id(traceparent: str) -> str:
    """The trace of a W3C traceparent; empty if it is none."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else ""


async def skip(visit: Visit) -> Response:
    """Mark the message as done in one group."""
    message_id, group = visit.named("message_id"), visit.given("group")
    if not group:
        raise Refused("name the group that is to skip the message")
    visit.require_name(group)
    topic, force = visit.given("topic") or None, bool(visit.given("force"))
    skipped = await visit.admin.skip_message(group, message_id, topic, force=force)
    text = words.state(skipped.from_state).text
    return visit.go(visit.path("messages", message_id), f"Group {group} skips the message, which was {text}.")
