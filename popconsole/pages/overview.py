"""The overview: one sentence, four live plots, what needs a person, and the groups that matter most."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from starlette.responses import JSONResponse, Response

from popclient.admin import DeadLetterSelection, Status
from popconsole import words
from popconsole.pictures.bars import Part, label_of, parts_of
from popconsole.pulse import Backlog, Sample
from popconsole.rates import Trend, commit_quantiles, every, incoming, outgoing, series, trends
from popconsole.rates import recent as last_minute
from popconsole.visits import Visit

ROWS_MAX: Final = 8
NAMED_MAX: Final = 3  # groups in the sentence
ASKED_MAX: Final = 5  # groups that are asked for more
BEHIND_S: Final = 60.0  # a message that is ready for longer makes its group one that is behind
OVERDUE: Final = timedelta(seconds=5)
BUDGET: Final = 0.8
STUCK_ATTEMPT: Final = 2


@dataclass(frozen=True, slots=True)
class Todo:
    """Something that needs a person, and the next step."""

    colour: str
    shape: str
    what: str
    next: str
    href: str = ""


class Row(NamedTuple):
    """A group in a table. What is drawn is made when a row is shown: a page shows few of thousands."""

    name: str
    backlog: Backlog
    trend: Trend

    @property
    def oldest(self) -> datetime | None:
        return None if self.backlog.oldest is None else datetime.fromtimestamp(self.backlog.oldest, UTC)

    @property
    def parts(self) -> list[Part]:
        return parts_of(self.backlog.of_states)

    @property
    def label(self) -> str:
        return label_of(self.backlog.of_states)


class Named(NamedTuple):
    name: str
    text: str


async def overview(visit: Visit) -> Response:
    status = await visit.pulse.now(visit.admin)
    samples = visit.pulse.ring
    last = samples[-1]
    recent = trends(samples)
    rows = rows_of(last, recent)
    span = last_minute(samples)
    quantiles = commit_quantiles(*span) if span else (None, None)
    return visit.show(
        "overview.html",
        now=visit.pulse.time,
        status=status,
        sentence=sentence(last, total=total_of(visit, status)),
        idle=total_of(visit, status) - len(last.groups),
        rows=sorted(rows, key=urgency)[:ROWS_MAX],
        groups_count=total_of(visit, status),
        todo=await what_needs_a_person(visit, status, last, recent),
        every=every(visit.pulse),
        has_latency=last.commits is not None,
        figures={
            "in": f"{words.rate(incoming(samples))} messages a second",
            "out": f"{words.rate(outgoing(samples))} messages a second",
            "latency": "unknown" if quantiles[0] is None else f"{quantiles[0]} ms in the median",
            "backlog": f"{last.total(lambda each: each.ready)} ready",
        },
    )


async def activity(visit: Visit) -> Response:
    """The series of the live plots."""
    await visit.pulse.now(visit.admin)
    return JSONResponse({**series(visit.pulse.ring), "every": every(visit.pulse)})


def rows_of(sample: Sample, recent: dict[str, Trend]) -> list[Row]:
    return [Row(name, backlog, recent.get(name, Trend())) for name, backlog in sorted(sample.groups.items())]


def urgency(row: Row) -> tuple[Any, ...]:
    """The most urgent group comes first."""
    backlog = row.backlog
    return (-backlog.dead, -backlog.ready, -backlog.inflight - backlog.waiting, row.name)


def is_behind(backlog: Backlog, at: float) -> bool:
    return bool(backlog.ready) and backlog.oldest is not None and at - backlog.oldest > BEHIND_S


def total_of(visit: Visit, status: Status) -> int:
    """How many groups there are, those without a topic too; where the server counts those of other namespaces as well,
    the ones that have a topic."""
    return len(visit.pulse.ring[-1].groups) if visit.settings.server.namespace else status.groups


def sentence(sample: Sample, total: int) -> dict[str, Any]:
    """`2 groups, 1 is behind: arrivals 412 ready, oldest 3 min`; the names are links."""
    late = [(name, each) for name, each in sample.groups.items() if is_behind(each, sample.at)]
    late.sort(key=lambda pair: pair[1].oldest or 0.0)
    begin = words.plural(total, "group") if sample.groups else "No group has received a message yet"
    if not late:
        return {"begin": begin + (", none is behind" if sample.groups else ""), "behind": []}
    verb = "is" if len(late) == 1 else "are"
    shown = [
        Named(name, f"{words.count(each.ready)} ready, oldest {words.duration(sample.at - (each.oldest or 0.0))}")
        for name, each in late[:NAMED_MAX]
    ]
    return {"begin": f"{begin}, {words.count(len(late))} {verb} behind:", "behind": shown}


async def what_needs_a_person(visit: Visit, status: Status, sample: Sample, recent: dict[str, Trend]) -> list[Todo]:
    """The most urgent first."""
    found = [*_of_server(visit, status), *_behind(visit, sample, recent)]
    found += await _dead(visit, status, sample)
    found += await _stuck(visit, sample)
    return found


def _of_server(visit: Visit, status: Status) -> list[Todo]:
    server = visit.path("server")
    found = [Todo("inflight", "!", hint, "a hint of the server; details on its page", server) for hint in status.hints]
    if status.oldest_overdue > OVERDUE:
        late = words.duration(status.oldest_overdue)
        found.append(
            Todo(
                "dlq",
                "!",
                f"A hold or a delayed message is overdue by {late}.",
                "The database is slower than its work; look at the server's disk.",
                server,
            )
        )
    found += [
        Todo(
            "dlq",
            "!",
            f"Server {each.address or each.server_id} is silent for {words.duration(status.now - each.last_seen)}.",
            "It was killed, or does not reach the database; others deliver what it held.",
            server,
        )
        for each in status.servers
        if not each.running
    ]
    for budget in status.budgets:
        if budget.limit and budget.used >= BUDGET * budget.limit:
            used = f"{words.measure(budget.used, budget.unit)} of {words.measure(budget.limit, budget.unit)}"
            found.append(
                Todo(
                    "inflight",
                    "!",
                    f"{budget.name}: {used} in use.",
                    f"Raise --{budget.option.replace('_', '-')}.",
                    server,
                )
            )
    return found


def _behind(visit: Visit, sample: Sample, recent: dict[str, Trend]) -> list[Todo]:
    found = []
    for name, backlog in sample.groups.items():
        trend = recent.get(name, Trend())
        if is_behind(backlog, sample.at) and trend.is_growing:
            found.append(
                Todo(
                    "ready",
                    "○",
                    f"Group {name} is behind, and its backlog grows: {words.count(backlog.ready)} ready,"
                    f" {words.count(trend.growth or 0)} more than a minute ago.",
                    "Are its members there? Start more of them, or look at what they hold.",
                    visit.path("groups", name),
                )
            )
    return found[:ASKED_MAX]


async def _dead(visit: Visit, status: Status, sample: Sample) -> list[Todo]:
    found = []
    dead = sorted((each.dead, name) for name, each in sample.groups.items() if each.dead)
    for _, name in dead[::-1][:ASKED_MAX]:
        selection = DeadLetterSelection(name, dead_from=status.now - timedelta(hours=1))
        call = visit.admin.list_dead_letters(selection, max_messages=1_000, without_bodies=True)
        page = (await visit.attempt(call)).value
        if page is not None and page.dead_letters:
            count = f"{words.count(len(page.dead_letters))}{'+' if page.next_after_id is not None else ''}"
            reason = page.dead_letters[-1].reason
            found.append(
                Todo(
                    "dlq",
                    "✕",
                    f"{count} dead letters of {name} in the last hour.",
                    f"The last one: {reason}. Look at the reasons, mend the cause, and send them back.",
                    visit.path("dead-letters", name),
                )
            )
    return found


async def _stuck(visit: Visit, sample: Sample) -> list[Todo]:
    """Message groups whose first message fails again and again."""
    found = []
    waiting = sorted((each.waiting, name) for name, each in sample.groups.items() if each.waiting)
    for _, name in waiting[::-1][:ASKED_MAX]:
        groups = await visit.attempt(visit.admin.list_locked_message_groups(name, max_groups=ASKED_MAX))
        locked = groups.value.message_groups if groups.value else ()
        stuck = [each for each in locked if each.first.delivery_attempt >= STUCK_ATTEMPT and each.behind]
        found += [
            Todo(
                "waiting",
                "◔",
                f"Message group {each.message_group} of {name} waits: attempt {each.first.delivery_attempt} of its"
                f" first message, {words.count(each.behind)} behind it.",
                "See why it fails; skip it if the others cannot wait.",
                visit.path("messages", each.first.message_id),
            )
            for each in stuck[:1]
        ]
    return found
