"""The numbers of the store for one scrape, from the rows that deliveries use. All in one read transaction.

The cost depends on the number of pairs of topic and group, on messages in flight, dead letters and pending messages. It
does not depend on the backlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select, text

from popserver.catalog import groups, topics
from popserver.catalog.queues import TOTALS
from popserver.database.dialect import dialect_of
from popserver.delivery import due
from popserver.fifo import runs
from popserver.messages.seek import oldest_stored_at_ms
from popserver.mirrors import records
from popserver.mirrors.rules import MirrorRow
from popserver.model.states import PendingKind, State
from popserver.producing import pending_facts

# The bounds of RocketMQ: delayed messages that are due within so many seconds.
BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)


class PairRow(NamedTuple):
    """A group in one topic. `oldest_ready_ms`: when the oldest message that it never received was stored."""

    group_id: int
    topic_id: int
    ready: int
    inflight: int
    waiting_retry: int
    dead_letters: int
    oldest_ready_ms: int | None


class TopicRow(NamedTuple):
    """A topic, and how many messages it has and ever had."""

    topic_id: int
    namespace: str
    name: str
    stored: int
    appended: int


class GroupRow(NamedTuple):
    """A group, and its messages of all topics by state; `locked`: message groups that wait for their first message."""

    group_id: int
    namespace: str
    name: str
    states: dict[State, int]
    locked: int


class Late(NamedTuple):
    """How many rows are overdue, and since when the oldest one is; None if none is, or if it is not known."""

    rows: int
    since_ms: int | None


class StoreFacts(NamedTuple):
    """The store at one moment. `pairs` are the first ones by messages that wait; `pair_count` is how many there are."""

    topics: Sequence[TopicRow]
    groups: Sequence[GroupRow]
    pairs: Sequence[PairRow]
    pair_count: int
    delayed: dict[int, int]  # by topic id
    due_within: dict[int, int]  # delayed messages by the smallest of `BOUNDS_S` within which they are due
    halves: dict[int, int]  # by topic id
    overdue_holds: Late
    overdue_delays: Late
    size_bytes: int
    oldest_ms: int | None  # when the oldest message was stored
    mirrors: Sequence[MirrorRow]


class StoreNumbers(NamedTuple):
    """The facts of the store, their server time, their time of day, their age, and how long it took to read them, in
    seconds."""

    facts: StoreFacts
    at_ms: int
    calendar_ms: int
    age_s: float
    took_s: float


def store_facts(conn: Connection, now_ms: int, calendar_ms: int, pairs_max: int) -> StoreFacts:
    """The facts at `now_ms`, with at most `pairs_max` pairs. `calendar_ms`: the time for delivery times."""
    pairs = [
        PairRow(
            row.group_id,
            row.topic_id,
            int(row.ready),
            int(row.inflight),
            int(row.waiting_retry),
            int(row.dead_letters),
            row.oldest_ready_ms,
        )
        for row in conn.execute(_PAIRS, {"limit": pairs_max + 1})
    ]
    of_groups = _states_of(pairs) if len(pairs) <= pairs_max else _all_states(conn)
    ends_ms = [calendar_ms + bound * 1_000 for bound in BOUNDS_S]
    pending_counts = pending_facts.counts(conn)
    return StoreFacts(
        topics=[
            TopicRow(row.topic_id, row.namespace, row.name, int(row.stored), int(row.appended))
            for row in conn.execute(_TOPICS)
        ],
        groups=_groups(conn, of_groups.states),
        pairs=pairs[:pairs_max],
        pair_count=of_groups.pairs,
        delayed=pending_counts[PendingKind.DELAY],
        halves=pending_counts[PendingKind.HALF],
        due_within=dict(zip(BOUNDS_S, pending_facts.due_within(conn, calendar_ms, ends_ms), strict=True)),
        overdue_holds=_late(*due.overdue(conn, now_ms)),
        overdue_delays=_late(*pending_facts.overdue(conn, calendar_ms)),
        size_bytes=dialect_of(conn).size_bytes(conn),
        oldest_ms=oldest_stored_at_ms(conn),
        mirrors=records.listed(conn),
    )


class _OfGroups(NamedTuple):
    """The messages of each group by state, over all its topics; and how many pairs of topic and group there are."""

    states: dict[int, dict[State, int]]
    pairs: int


def _states_of(pairs: Sequence[PairRow]) -> _OfGroups:
    found: dict[int, dict[State, int]] = {}
    for each in pairs:
        states = found.setdefault(each.group_id, dict.fromkeys(_COUNTED, 0))
        for state, count in zip(_COUNTED, each[2:6], strict=True):
            states[state] += count
    return _OfGroups(found, len(pairs))


def _all_states(conn: Connection) -> _OfGroups:
    rows = conn.execute(_STATES).all()
    states = {row[0]: dict(zip(_COUNTED, (int(each) for each in row[2:]), strict=True)) for row in rows}
    return _OfGroups(states, sum(row[1] for row in rows))


def _groups(conn: Connection, states: dict[int, dict[State, int]]) -> list[GroupRow]:
    blocked = runs.blocked_counts(conn)
    nothing = dict.fromkeys(_COUNTED, 0)
    return [
        GroupRow(
            row.group_id, row.namespace, row.name, states.get(row.group_id, nothing), int(blocked.get(row.group_id, 0))
        )
        for row in conn.execute(select(groups.EXISTING))
    ]


def _late(rows: int, since_ms: int | None) -> Late:
    return Late(rows, since_ms or None)  # the due time of what a user's transaction has stored is 0: unknown


_COUNTED = (State.READY, State.INFLIGHT, State.WAITING_RETRY, State.DLQ)
# The order decides what is left out where there are too many pairs: those without any message come last.
_PAIRS = text(
    "SELECT group_id, topic_id, ready, inflight, waiting_retry, dead_letters, oldest_ready_ms FROM group_lag"
    " ORDER BY ready + inflight + waiting_retry + dead_letters DESC, group_id, topic_id LIMIT :limit"
)
_STATES = text(
    "SELECT group_id, COUNT(*), SUM(ready), SUM(inflight), SUM(waiting_retry), SUM(dead_letters)"
    " FROM group_lag GROUP BY group_id"
)
_TOPICS = select(*(topics.EXISTING.c[name] for name in TopicRow._fields[:3]), TOTALS.c.stored, TOTALS.c.appended).join(
    TOTALS, TOTALS.c.topic_id == topics.EXISTING.c.topic_id
)
