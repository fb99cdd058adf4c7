"""Dead letters: counted by reason, topic and tag, selected, looked at one by one, exported, deleted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response, StreamingResponse

from popclient.admin import DeadLetter, DeadLetterSelection, Redrive
from popclient.aio import Admin
from popclient.cli.dead_letters.export import row_of
from popclient.cli.output import body_document, utc
from popclient.message import MessageView
from popconsole import words
from popconsole.bodies import body_of, excerpt, unpacked
from popconsole.copies import literal
from popconsole.paging import PAGE, page_of
from popconsole.pictures.lineage import lineage_of
from popconsole.visits import Refused, Visit

COUNTED_MAX: Final = 10_000  # dead letters that are counted by kind for one page
KINDS_MAX: Final = 12
EXPORTED_BODY_MAX: Final = 16 * 1024 * 1024  # a larger body is exported as it is stored
SINCE: Final = {"1h": 3_600, "1d": 86_400, "7d": 7 * 86_400}
SELECTING: Final = ("topic", "reason", "tag", "where", "since", "sent")


class Kind(NamedTuple):
    """How many dead letters have one value, and the page that shows them alone, or all again."""

    value: str
    number: int
    query: dict[str, str]
    is_chosen: bool


class Counted(NamedTuple):
    """What a selection has. is_all: none is uncounted; kinds: the largest; kind_counts: how many kinds there are."""

    number: int
    is_all: bool
    kinds: dict[str, list[Kind]]
    kind_counts: dict[str, int]

    @property
    def text(self) -> str:
        return words.count(self.number) + ("" if self.is_all else "+")


async def index(visit: Visit) -> Response:
    """Which groups have dead letters, and every redrive."""
    status = await visit.pulse.now(visit.admin)
    groups = sorted(visit.pulse.ring[-1].groups.items(), key=lambda pair: (-pair[1].dead, pair[0]))
    dead = [(name, each.dead) for name, each in groups if each.dead]
    plans = await visit.attempt(visit.admin.redrive_plans())
    return visit.show(
        "dead_letters_index.html",
        now=visit.pulse.time,
        groups=page_of(visit, dead),
        most=sum(number for _, number in dead),
        total=status.dead_letters,
        plans=page_of(visit, plans.value or [], "plans_from"),
        failure=plans.failure,
    )


async def dead_letters(visit: Visit) -> Response:
    """A group's dead letters."""
    group = visit.named("group")
    await visit.pulse.now(visit.admin)
    chosen = chosen_of(visit.asked)
    selection = selection_of(visit, group, chosen)
    after = visit.asked_number("after")
    counted = await visit.attempt(count(visit.admin, selection, chosen))
    page = await visit.attempt(visit.admin.list_dead_letters(selection, after_id=after, max_messages=PAGE))
    if counted.failure and not chosen.get("where"):
        await visit.admin.get_group(group)  # says that there is no such group
    letters = page.value.dead_letters if page.value else ()
    return visit.show(
        "dead_letters.html",
        now=visit.pulse.time,
        group=group,
        chosen=chosen,
        query=urlencode(chosen),
        counted=counted.value or Counted(0, True, {}, {}),
        letters=[(each, excerpt(each.message) if each.message else "(deleted)") for each in letters],
        next_after=page.value.next_after_id if page.value else None,
        failure=counted.failure or page.failure,
        command=selection_command(group, chosen),
        since=SINCE,
    )


def chosen_of(read: Callable[[str], str]) -> dict[str, str]:
    """What narrows the selection. read: a value from the address, or from a form."""
    values = {name: read(name).strip() for name in SELECTING}
    return {name: value for name, value in values.items() if value}


def where_of(chosen: dict[str, str]) -> str:
    """One SQL filter of a reason, a tag and a condition."""
    parts = []
    if reason := chosen.get("reason"):
        parts.append(f"REASON = {literal(reason)}")
    if tag := chosen.get("tag"):
        parts.append("TAGS IS NULL" if tag == "–" else f"TAGS = {literal(tag)}")
    if where := chosen.get("where"):
        parts.append(f"({where})" if parts else where)
    return " AND ".join(parts)


def selection_of(
    visit: Visit, group: str, chosen: dict[str, str], ids: Iterable[str] = (), until: datetime | None = None
) -> DeadLetterSelection:
    """until: only those that died before."""
    written = chosen.get("since", "")
    if written and written not in SINCE:
        raise Refused(f"since is '{written}'; it must be one of {words.listed(SINCE)}")
    since = SINCE.get(written)
    numbers = [int(each) for each in ids if each.isdecimal()]
    return DeadLetterSelection(
        group,
        topic=chosen.get("topic"),
        dead_from=visit.pulse.time - timedelta(seconds=since) if since else None,
        dead_until=until,
        where=where_of(chosen),
        ids=numbers,
        redriven_too="sent" in chosen,
    )


def selection_command(group: str, chosen: dict[str, str]) -> dict[str, str | bool]:
    """The same selection as options of `popmq dlq`."""
    narrowing = {"topic": chosen.get("topic"), "where": where_of(chosen), "from": chosen.get("since")}
    given: dict[str, str | bool] = {name: value for name, value in narrowing.items() if value}
    return {"group": group, **given, "redriven-too": "sent" in chosen}


async def count(admin: Admin, selection: DeadLetterSelection, chosen: dict[str, str]) -> Counted:
    """Counts the first `COUNTED_MAX` of a selection by kind."""
    counts: dict[str, Counter[str]] = {"reason": Counter(), "topic": Counter(), "tag": Counter()}
    number, after, is_all = 0, 0, True
    while number < COUNTED_MAX:
        page = await admin.list_dead_letters(selection, after_id=after, max_messages=1_000, without_bodies=True)
        for each in page.dead_letters:
            counts["reason"][each.reason] += 1
            counts["topic"][each.topic or "(deleted)"] += 1
            counts["tag"][(each.message.tag if each.message else None) or "–"] += 1
        number += len(page.dead_letters)
        if page.next_after_id is None:
            break
        after = page.next_after_id
    else:
        is_all = False
    kinds = {
        name: [_kind(name, value, times, chosen) for value, times in each.most_common(KINDS_MAX)]
        for name, each in counts.items()
    }
    return Counted(number, is_all, kinds, {name: len(each) for name, each in counts.items()})


def _kind(name: str, value: str, number: int, chosen: dict[str, str]) -> Kind:
    is_chosen = chosen.get(name) == value
    others = {each: given for each, given in chosen.items() if each != name}
    return Kind(value, number, others if is_chosen else {**others, name: value}, is_chosen)


async def letter(visit: Visit) -> Response:
    """One dead letter."""
    await visit.pulse.now(visit.admin)
    found = await find_letter(visit)
    redrive = await redrive_of(visit, found)
    return await visit.show_large(
        "dead_letter.html",
        now=visit.pulse.time,
        letter=found,
        body=await asyncio.to_thread(body_of, found.message) if found.message else None,
        boxes=lineage_of(found, redrive),
    )


async def find_letter(visit: Visit) -> DeadLetter:
    """By its number or the id of its message. Raises NotFound, or `Refused` for a number that is none."""
    group, written = visit.named("group"), visit.named("letter")
    if written.isdecimal() and len(written) < 19:
        selection = DeadLetterSelection(group, ids=[int(written)], redriven_too=True)
        page = await visit.admin.list_dead_letters(selection, max_messages=1)
        if page.dead_letters:
            return page.dead_letters[0]
        raise Refused(f"group '{group}' has no dead letter {written}; it may have been deleted", 404)
    return await visit.admin.get_dead_letter(group, written)


async def redrive_of(visit: Visit, found: DeadLetter) -> Redrive | None:
    """What sent it back, if anything did."""
    if not found.plan_id:
        return None
    call = visit.admin.list_redrives(found.plan_id, after_id=found.id - 1, max_messages=1)
    redrives = (await visit.attempt(call)).value
    return redrives[0] if redrives else None


async def export(visit: Visit) -> Response:
    """A file with one JSON object per line, as `popmq dlq export` writes it."""
    group = visit.named("group")
    selection = selection_of(visit, group, chosen_of(visit.asked))
    # The first page before the answer begins, so that a refusal is a page.
    first = await visit.admin.list_dead_letters(selection, max_messages=100)

    async def lines() -> AsyncIterator[str]:
        for each in first.dead_letters:
            yield await asyncio.to_thread(_line, each)
        if first.next_after_id is not None:
            async for each in visit.admin.dead_letters(selection, after_id=first.next_after_id):
                yield await asyncio.to_thread(_line, each)

    name = "".join(each if each.isalnum() or each in "-_" else "_" for each in group)
    headers = {"content-disposition": f'attachment; filename="dead-letters-{name}.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


def _line(found: DeadLetter) -> str:
    row = row_of(found, _whole)
    times = {name: utc(value) for name, value in row.items() if name.endswith("_timestamp")}
    return json.dumps({**row, **times, **body_document(row["body"])}, ensure_ascii=False) + "\n"


def _whole(message: MessageView) -> bytes | None:
    """The body; None for a damaged one, and for one that is too large when unpacked."""
    raw, is_cut, damaged = unpacked(message, EXPORTED_BODY_MAX)
    return None if is_cut or damaged else raw


async def purge_preview(visit: Visit) -> Response:
    group = visit.named("group")
    chosen = chosen_of(visit.asked)
    # What dies after the preview was not in it, and stays.
    until = (await visit.pulse.fresh(visit.admin)).now
    counted = await count(visit.admin, selection_of(visit, group, chosen, until=until), chosen)
    return visit.show(
        "purge.html",
        group=group,
        chosen=chosen,
        until=until,
        counted=counted,
        command=selection_command(group, chosen),
    )


async def purge(visit: Visit) -> Response:
    group = visit.named("group")
    visit.require_name(group)
    selection = selection_of(visit, group, chosen_of(visit.given), until=_until(visit.given("until")))
    async with Admin(visit.session.config) as admin:
        purged = await admin.purge_dead_letters(selection)
    await visit.pulse.fresh(visit.admin)
    return visit.go(visit.path("dead-letters", group), f"{words.plural(purged, 'dead letter')} of {group} deleted.")


def _until(written: str) -> datetime:
    """The moment of the preview, in epoch milliseconds."""
    if not written.isdecimal() or len(written) > 13:
        raise Refused("nothing was deleted: the form does not say when its preview was made; open the preview again")
    return datetime.fromtimestamp(int(written) / 1_000, UTC)
