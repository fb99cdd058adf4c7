"""Sending dead letters back: a plan first, which moves nothing, then its run at a rate; or one letter, repaired."""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from typing import Final, NamedTuple

from starlette.responses import Response

from popclient.admin import DeadLetter, Redrive, RedriveOrder, RedrivePlan, Repair
from popclient.admin.requests import new_plan_id
from popconsole import words
from popconsole.bodies import PAGE_MAX, unpacked
from popconsole.pages.dead_letters import chosen_of, find_letter, selection_of
from popconsole.visits import Refused, Visit

SHOWN: Final = 100
COUNTED_MAX: Final = 5_000
LINES_MAX: Final = 1_000  # of a part that is compared with another
RATE_MAX: Final = 1_000_000.0


class Outcomes(NamedTuple):
    """What became of the messages that were sent back. is_all: all of them are counted."""

    by_state: dict[str, int]
    is_all: bool


async def plan(visit: Visit) -> Response:
    """Record what to send back; nothing moves before the plan runs."""
    group = visit.named("group")
    ids = visit.form.get("id", [])
    selection = selection_of(visit, group, chosen_of(visit.given), ids)
    target = visit.given("target").strip() or None
    made = await visit.admin.plan_redrive(selection, reason=visit.given("why").strip(), target=target)
    return visit.go(visit.path("redrives", made.plan_id))


async def redrive(visit: Visit) -> Response:
    """A plan: what goes where, how far it is, and what became of what it sent back."""
    plan_id = visit.named("plan")
    await visit.pulse.now(visit.admin)
    found = await visit.admin.redrive_plan(plan_id)
    redrives = await visit.admin.list_redrives(plan_id, max_messages=1_000)
    after = visit.asked_number("after")
    rows = await visit.admin.list_redrives(plan_id, after_id=after, max_messages=SHOWN + 1) if after else redrives
    job = visit.jobs.find(plan_id)
    return visit.show(
        "redrive.html",
        now=visit.pulse.time,
        plan=found,
        job=job,
        is_running=job is not None and job.is_running,
        total=found.planned + found.redriven + found.skipped,
        redrives=rows[:SHOWN],
        after=after,
        next_after=rows[SHOWN - 1].dead_letter_id if len(rows) > SHOWN else 0,
        topics=Counter(each.topic for each in redrives).most_common(5),
        outcomes=await outcomes_of(visit, found, redrives),
        repaired=sum(each.change == "REPAIR" for each in redrives),
    )


async def outcomes_of(visit: Visit, found: RedrivePlan, first: list[Redrive]) -> Outcomes:
    """The states of the redriven messages, of the first `COUNTED_MAX`."""
    by_state: Counter[str] = Counter()
    page, seen = first, 0
    while page:
        by_state.update(each.outcome for each in page if each.outcome)
        seen += len(page)
        if seen >= COUNTED_MAX or len(page) < 1_000:
            break
        page = await visit.admin.list_redrives(found.plan_id, after_id=page[-1].dead_letter_id, max_messages=1_000)
    ordered = {name: by_state[name] for name in words.STATES if by_state[name]}
    return Outcomes(ordered, seen >= found.planned + found.redriven + found.skipped)


async def run(visit: Visit) -> Response:
    plan_id = visit.named("plan")
    found = await visit.admin.redrive_plan(plan_id)
    visit.require_name(found.group)
    visit.jobs.start(visit.session.config, found, rate_of(visit.given("rate")))
    return visit.go(visit.path("redrives", plan_id))


def rate_of(written: str) -> float | None:
    """Messages a second; None for as fast as it goes."""
    if not written.strip():
        return None
    try:
        rate = float(written)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= RATE_MAX:
        raise Refused(f"'{written}' is no rate; write how many messages a second, such as 100, or leave it empty")
    return rate


async def stop(visit: Visit) -> Response:
    plan_id = visit.named("plan")
    await visit.jobs.stop(plan_id)
    return visit.go(visit.path("redrives", plan_id), "Stopped. The rest of the plan waits; run it to go on.")


async def cancel(visit: Visit) -> Response:
    plan_id = visit.named("plan")
    await visit.jobs.stop(plan_id)
    found = await visit.admin.cancel_redrive(plan_id)
    return visit.go(visit.path("redrives", plan_id), f"The plan is {found.state.lower()}; the rest stays where it is.")


async def repair(visit: Visit) -> Response:
    """Send one letter back, changed: first what would change, then, with the name of the group, the change."""
    found = await find_letter(visit)
    if found.message is None:
        raise Refused("the message is deleted; there is nothing to send back")
    wanted = _repair(visit, found)
    if not visit.given("confirm"):
        changes = await asyncio.to_thread(differences, found, wanted)
        return visit.show("repair.html", letter=found, differences=changes, fields=_fields(visit))
    visit.require_name(found.group)
    order = RedriveOrder(found.id, wanted if wanted.changed else None, visit.given("why").strip())
    plan_id = new_plan_id()
    await visit.admin.redrive_dead_letters(plan_id, found.group, [order], reason=visit.given("why").strip())
    return visit.go(visit.path("redrives", plan_id), "The message went back.")


def _fields(visit: Visit) -> dict[str, str]:
    return {name: visit.given(name) for name in ("body", "tag", "keys", "properties", "why") if name in visit.form}


def _repair(visit: Visit, found: DeadLetter) -> Repair:
    """What the form has that the letter has not."""
    message = found.message
    assert message is not None, "was looked at before"
    fields = _fields(visit)
    body = fields.get("body", "").replace("\r\n", "\n")
    tag, keys = fields.get("tag", "").strip(), fields.get("keys", "").split()
    properties = _properties(fields.get("properties", ""))
    text = text_of(found)
    if "body" in fields and text is None:
        raise Refused("the body is no text, or is too large, and cannot be changed on a page")
    return Repair(
        body=body if "body" in fields and text is not None and body != text.replace("\r\n", "\n") else None,
        tag=tag if "tag" in fields and tag != (message.tag or "") else None,
        keys=keys if "keys" in fields and keys != list(message.keys) else None,
        properties=properties if "properties" in fields and properties != message.properties else None,
    )


def text_of(found: DeadLetter) -> str | None:
    """The body as text; None where it is none or is too large, and then it cannot be changed on a page."""
    if found.message is None:
        return None
    raw, is_cut, damaged = unpacked(found.message, PAGE_MAX)
    try:
        return None if is_cut or damaged else raw.decode()
    except UnicodeDecodeError:
        return None


def _properties(written: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in written.splitlines() if line.strip()]
    if wrong := [name for name, equals, _ in pairs if not equals or not name.strip()]:
        raise Refused(f"'{wrong[0]}' is no property; write name=value, one a line")
    return {name.strip(): value.strip() for name, _, value in pairs}


def differences(found: DeadLetter, wanted: Repair) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each part that changes: its name, and lines as (sign, text)."""
    message = found.message
    assert message is not None, "was looked at before"

    def pairs(properties: dict[str, str]) -> str:
        return "\n".join(f"{name}={value}" for name, value in sorted(properties.items()))

    after_keys = "" if wanted.keys is None else "\n".join(wanted.keys)
    sides = {
        "body": (text_of(found) or "", wanted.body if isinstance(wanted.body, str) else ""),
        "tag": (message.tag or "", wanted.tag or ""),
        "keys": ("\n".join(message.keys), after_keys),
        "properties": (pairs(message.properties), pairs(dict(wanted.properties or {}))),
    }
    return [(name, _lines(*sides[name])) for name in wanted.changed]


def _lines(before: str, after: str) -> list[tuple[str, str]]:
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > LINES_MAX:
        text = f"{words.plural(len(old), 'line')} before, {words.plural(len(new), 'line')} after"
        return [(" ", f"{text}; more than {words.count(LINES_MAX)} are not compared")]
    compared = difflib.unified_diff(old, new, lineterm="", n=2)
    return [(each[0], each[1:]) for each in list(compared)[3:] if each and not each.startswith("@@")][:400]
