"""What needs a person, from the facts of a server. Pure.

A sentence and a next step may leave the server: they name topics, groups, servers, options and numbers. What else is
known, such as the reason of a dead letter or the name of a message group, is in `detail`, which only operators see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import quote

from popserver.administration.facts import Lag
from popserver.cluster.sql import KnownServer
from popserver.mirrors.rules import MirrorRow
from popserver.model.budget import Budget
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS, SECOND_MS
from popserver.model.times import span

BEHIND_MS: Final = MINUTE_MS  # a message that is ready for longer makes its group one that is behind
OVERDUE_MS: Final = 5 * SECOND_MS
NEAR_REMOVAL: Final = 0.8  # a message is removed soon if its age is more than this share of the retention
BUDGET: Final = 0.8  # the share of a budget from which on it is nearly used up
STUCK_ATTEMPT: Final = 2
COUNTED_MAX: Final = 10_000  # dead letters of the last hour
BEGIN_MS: Final = 30 * SECOND_MS  # what needs a person for so long is told
END_MS: Final = 2 * MINUTE_MS  # what has needed nobody for so long is over


class AlertKind(StrEnum):
    """What needs a person. The names are part of what the webhook gets."""

    OVERDUE = "overdue"
    SERVER_SILENT = "server_silent"
    WARNING = "warning"
    BUDGET = "budget"
    BEHIND = "group_behind"
    RETENTION = "retention_near"
    DEAD_LETTERS = "dead_letters"
    STUCK = "message_groups_stuck"
    CONSUMERS = "consumers_differ"
    RETRIES = "many_retries"
    MIRROR = "mirror_gone"


class Alert(NamedTuple):
    """Something that needs a person, and the next step. `page`: the path of its page in the console, in parts."""

    kind: AlertKind
    namespace: str
    subject: str
    sentence: str
    next_step: str
    page: tuple[str, ...] = ("server",)
    detail: str = ""

    @property
    def key(self) -> str:
        """What stays the same while the alert lasts: its numbers change."""
        about = self.subject or re.sub(r"[\d.,]+( \w+)?|\s+", "", self.sentence)
        return f"{self.kind} {self.namespace}/{about}"

    @property
    def has_namespace(self) -> bool:
        """Whether it is about something in a namespace, not about the server."""
        return self.kind in _OF_NAMESPACES

    @property
    def path(self) -> str:
        return "/" + "/".join(quote(each, safe="") for each in self.page)


_OF_NAMESPACES = frozenset(
    {
        AlertKind.BEHIND,
        AlertKind.RETENTION,
        AlertKind.DEAD_LETTERS,
        AlertKind.STUCK,
        AlertKind.RETRIES,
        AlertKind.MIRROR,
    }
)


class RecentDeadLetters(NamedTuple):
    """How many messages died in a group in the last hour, and why the last one did."""

    group: Resource
    letters: int
    reason: str


class StuckMessageGroup(NamedTuple):
    """A message group whose first message fails again and again."""

    group: Resource
    message_group: str
    attempt: int
    behind: int
    message_id: str


class Facts(NamedTuple):
    """What alerts are found from. gone: mirrors whose lease is over without a last report.

    growth: how many more messages each group has ready than a minute ago. retention_ms: how long messages are kept, 0
    if there is no limit. paused: whether a group is paused in a topic, by their ids. hints: sentences about the
    subscriptions of consumers; shares: sentences about retries.
    """

    now_ms: int
    lag: Sequence[Lag]
    growth: Mapping[Resource, int]
    overdue_ms: int
    servers: Sequence[KnownServer]
    warnings: Sequence[str]
    budgets: Sequence[Budget]
    dead_letters: Sequence[RecentDeadLetters]
    stuck: Sequence[StuckMessageGroup]
    differing: Sequence[str]
    retrying: Mapping[Resource, str]
    gone: Sequence[MirrorRow]
    retention_ms: int
    paused: Callable[[int, int], bool]


def find(facts: Facts) -> list[Alert]:
    """What needs a person, the most urgent first."""
    return [
        *_of_server(facts),
        *_near_removal(facts),
        *_behind(facts),
        *map(_dead, facts.dead_letters),
        *map(_stuck, facts.stuck),
        *_of_consumers(facts),
        *(_gone(each, facts.now_ms) for each in facts.gone),
    ]


def _of_server(facts: Facts) -> Iterator[Alert]:
    if facts.overdue_ms > OVERDUE_MS:
        sentence = f"A hold or a delayed message is overdue by {span(facts.overdue_ms)}."
        yield Alert(
            AlertKind.OVERDUE, "", "", sentence, "The database is slower than its work; look at the server's disk."
        )
    for server in facts.servers:
        if not server.is_running:
            name = server.address or server.server_id
            sentence = f"Server {name} is silent for {span(max(0, facts.now_ms - server.last_seen_ms))}."
            next_step = "It was killed, or does not reach the database; others deliver what it held."
            yield Alert(AlertKind.SERVER_SILENT, "", name, sentence, next_step)
    for warning in facts.warnings:
        yield Alert(AlertKind.WARNING, "", "", f"{warning[:1].upper()}{warning[1:]}.", "Its page has the details.")
    for budget in facts.budgets:
        if budget.limit and budget.used >= BUDGET * budget.limit:
            option = f"--{budget.option.replace('_', '-')}"
            sentence = f"{budget.name}: {budget.used} of {budget.limit} {budget.unit} in use."
            yield Alert(AlertKind.BUDGET, "", budget.name, sentence, f"Raise {option}, or find out who takes them.")


def ready_of(lags: Iterable[Lag]) -> dict[Resource, int]:
    """How many messages each group has ready, over all its topics."""
    found: dict[Resource, int] = {}
    for each in lags:
        found[each.group] = found.get(each.group, 0) + each.ready
    return found


def _oldest_of(lags: Iterable[Lag]) -> dict[Resource, int]:
    """When the oldest message was stored that each group has ready."""
    oldest: dict[Resource, int] = {}
    for each in lags:
        if each.ready and each.oldest_ready_ms is not None:
            oldest[each.group] = min(each.oldest_ready_ms, oldest.get(each.group, each.oldest_ready_ms))
    return oldest


def _near_removal(facts: Facts) -> Iterator[Alert]:
    ready, limit_ms = ready_of(facts.lag), facts.retention_ms
    paused = {each.group for each in facts.lag if each.ready and facts.paused(each.group_id, each.topic_id)}
    for group, stored_ms in sorted(_oldest_of(facts.lag).items(), key=lambda each: (each[1], each[0])):
        age_ms = facts.now_ms - stored_ms
        if not limit_ms or age_ms < NEAR_REMOVAL * limit_ms:
            continue
        sentence = (
            f"Messages are removed soon that group {group} has not read: {ready[group]:,} ready, the oldest for"
            f" {span(age_ms)}; the limit is {span(limit_ms)}."
        )
        what = "It is paused: resume it" if group in paused else "Start its members"
        next_step = f"{what}, or raise --retention. If nobody needs the group, delete it."
        yield Alert(AlertKind.RETENTION, *group, sentence, next_step, ("groups", group.name))


def _behind(facts: Facts) -> Iterator[Alert]:
    # A paused group is behind because an operator wants it.
    lags = [each for each in facts.lag if not facts.paused(each.group_id, each.topic_id)]
    oldest, ready = _oldest_of(lags), ready_of(lags)
    for group in sorted(oldest, key=lambda each: (-ready[each], each)):
        growth = facts.growth.get(group, 0)
        if facts.now_ms - oldest[group] > BEHIND_MS and growth > 0:
            sentence = (
                f"Group {group} is behind, and its backlog grows: {ready[group]:,} ready, {growth:,} more than a minute"
                " ago."
            )
            next_step = "Are its members there? Start more of them, or look at what they hold."
            yield Alert(AlertKind.BEHIND, *group, sentence, next_step, ("groups", group.name))


def _dead(found: RecentDeadLetters) -> Alert:
    number = f"{found.letters:,}{'+' * (found.letters >= COUNTED_MAX)}"
    return Alert(
        AlertKind.DEAD_LETTERS,
        *found.group,
        f"{number} dead letter{'s' * (found.letters > 1)} of {found.group} in the last hour.",
        "Look at the reasons, mend the cause, and send them back.",
        ("dead-letters", found.group.name),
        f"The last one: {found.reason}.",
    )


def _stuck(found: StuckMessageGroup) -> Alert:
    return Alert(
        AlertKind.STUCK,
        *found.group,
        f"A message group of {found.group} waits: attempt {found.attempt} of its first message, {found.behind:,} behind"
        " it.",
        "See why it fails; skip it if the others cannot wait.",
        ("groups", found.group.name),
        f"It is {found.message_group}, and the message is {found.message_id}.",
    )


def _of_consumers(facts: Facts) -> Iterator[Alert]:
    for sentence in facts.differing:
        yield Alert(
            AlertKind.CONSUMERS,
            "",
            "",
            "Consumers of one group have different subscriptions.",
            "Give all of them the same one.",
            ("groups",),
            sentence,
        )
    for group, sentence in facts.retrying.items():
        next_step = "Fix what fails, or receive fewer messages at a time."
        of_group = f"More than a tenth of the deliveries to {group} are retries."
        yield Alert(AlertKind.RETRIES, *group, of_group, next_step, ("groups", group.name), f"{sentence}.")


def _gone(mirror: MirrorRow, now_ms: int) -> Alert:
    silent_ms = max(0, now_ms - mirror.updated_at_ms)
    return Alert(
        AlertKind.MIRROR,
        mirror.namespace,
        mirror.mirror_id,
        f"Mirror {mirror.mirror_id} of {mirror.subject} is gone: it does not report for {span(silent_ms)}.",
        "Start it again: it continues where it was. If it is not needed any more, forget it.",
        ("mirrors",),
        f"It ran on {mirror.host}.",
    )


class AlertChange(NamedTuple):
    """What a look changes: alerts that begin, and keys of alerts that are over."""

    begun: list[Alert]
    over: list[str]


class Steady:
    """Decides when an alert begins and ends: what comes and goes within seconds or minutes is one alert, or none."""

    def __init__(self) -> None:
        self._since_ms: dict[str, int] = {}
        self._seen_ms: dict[str, int] = {}

    def next(self, alerts: Iterable[Alert], open_keys: Iterable[str], now_ms: int) -> AlertChange:
        """What changes with these alerts, if those with `open_keys` have begun before."""
        seen = {each.key: each for each in alerts}
        known = set(open_keys)
        for key in seen:
            self._since_ms.setdefault(key, now_ms)
            self._seen_ms[key] = now_ms
        for key in known - self._seen_ms.keys():
            self._seen_ms[key] = now_ms  # begun before this server looked
        over = [key for key in sorted(known) if now_ms - self._seen_ms[key] >= END_MS]
        for key in [key for key, seen_ms in self._seen_ms.items() if now_ms - seen_ms >= END_MS]:
            self._since_ms.pop(key, None)
            del self._seen_ms[key]
        begun = [each for key, each in seen.items() if key not in known and now_ms - self._since_ms[key] >= BEGIN_MS]
        return AlertChange(begun, over)
