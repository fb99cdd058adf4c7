"""The overview: one sentence, four live plots, what needs a person, and the groups that matter most."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from starlette.responses import JSONResponse, Response

from popclient.admin import Alerts, Status
from popconsole import words
from popconsole.pictures.bars import Part, label_of, parts_of
from popconsole.pulse import Backlog, Sample
from popconsole.rates import Trend, commit_quantiles, every, incoming, outgoing, series, trends
from popconsole.rates import recent as last_minute
from popconsole.visits import Visit

ROWS_MAX: Final = 8
NAMED_MAX: Final = 3  # groups in the sentence
BEHIND_S: Final = 60.0  # a message that is ready for longer makes its group one that is behind


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
    alerts = await visit.attempt(visit.admin.alerts())
    await visit.attempt(visit.pulse.mirrors.look(visit.admin))  # for the navigation
    quantiles = commit_quantiles(*span) if span else (None, None)
    return visit.show(
        "overview.html",
        now=visit.pulse.time,
        status=status,
        sentence=sentence(last, total=total_of(visit, status)),
        idle=total_of(visit, status) - len(last.groups),
        rows=sorted(rows, key=urgency)[:ROWS_MAX],
        groups_count=total_of(visit, status),
        todo=todo_of(visit, alerts.value) if alerts.value else [],
        todo_failure=alerts.failure,
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


# How alerts of a kind are marked; others are warnings.
MARKS: Final = {
    "overdue": ("dlq", "!"),
    "server_silent": ("dlq", "!"),
    "group_behind": ("ready", "○"),
    "retention_near": ("dlq", "!"),
    "dead_letters": ("dlq", "✕"),
    "message_groups_stuck": ("waiting", "◔"),
    "mirror_gone": ("dlq", "!"),
}


def todo_of(visit: Visit, found: Alerts) -> list[Todo]:
    """What needs a person, as the server says; and a webhook that does not get it."""
    todo = [
        Todo(
            *MARKS.get(each.kind, ("inflight", "!")),
            f"{each.sentence} {each.detail}".strip(),
            each.next_step,
            visit.path(*each.page),
        )
        for each in found.alerts
    ]
    if found.webhook_failure:
        waiting = words.plural(found.untold, "event")
        what = f"The webhook does not accept alerts: {found.webhook_failure}."
        todo.insert(0, Todo("inflight", "!", what, f"Not told yet: {waiting}. The server sends them again and again."))
    return todo
