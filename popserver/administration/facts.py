"""Reads for operators: counts, lag, the states of one message.

The cost does not grow with the backlog: counts are computed from offsets, lists are pages, and one answer has at most
`PAGE_BYTES_MAX` of bodies (at least one message).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    TextClause,
    bindparam,
    func,
    literal_column,
    not_,
    or_,
    select,
    text,
)

from popserver.catalog import groups as catalog_groups
from popserver.catalog import topics as catalog_topics
from popserver.catalog.groups import EXISTING
from popserver.catalog.lookup import follows
from popserver.catalog.progress import CONSUMED
from popserver.catalog.queues import TOTALS, Totals, totals
from popserver.cluster import sql
from popserver.cluster.sql import KnownServer
from popserver.database import views
from popserver.database.dialect import dialect_of
from popserver.delivery import due
from popserver.delivery.history import HistoryStep, steps
from popserver.messages import dead_letters, redrives
from popserver.messages.dead_letters import DeadLetterRow
from popserver.messages.pending_messages import first_due_ms
from popserver.messages.read import letters_of_removed, load, locate
from popserver.model.message import StoredMessage
from popserver.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, Resource
from popserver.model.states import State


class Lag(NamedTuple):
    """A group's lag in one topic, in messages.

    `oldest_ready_ms`: when the oldest READY message was stored, also one that is READY again.
    """

    group: Resource
    topic: Resource
    ready: int
    inflight: int
    waiting_retry: int
    dead_letters: int
    oldest_ready_ms: int | None
    stored: int
    appended: int
    group_id: int
    topic_id: int


class DeadElsewhere(NamedTuple):
    """The number of a group's dead letters that no lag counts.

    topic: a topic that the group no longer consumes. None: all deleted topics together.
    """

    group: Resource
    topic: Resource | None
    letters: int


class MessageState(NamedTuple):
    """One message's state in one group; `attempt` is 0 if there is no delivery row."""

    group: Resource
    state: State
    attempt: int
    visible_at_ms: int | None
    client_id: str


class FoundMessage(NamedTuple):
    """A message by its id, with its state in every group that consumes its topic."""

    stored: StoredMessage
    states: Sequence[MessageState]
    steps: Sequence[HistoryStep]


class Counts(NamedTuple):
    """Counts of the database, the revision of its schema, when the next waiting row is due, and its servers."""

    topics: int
    groups: int
    messages: int
    dead_letters: int
    revision: str
    next_due_ms: int | None
    appended: int
    size_bytes: int
    servers: list[KnownServer]


def group_lag(conn: Connection, group_id: int | None, limit: int) -> list[Lag]:
    """The lag per group and topic, of one group or (None) of all; the first `limit` by group and topic."""
    groups = _first_groups(conn, limit) if group_id is None else [group_id]
    rows: list[Any] = []
    if groups[:-1]:
        rows += conn.execute(_LAG, {"groups": groups[:-1], "limit": limit})
    if groups and len(rows) < limit:
        # Only the last group may have many more topics than are listed: the lag in these is not computed.
        last, left = groups[-1], limit - len(rows)
        topics = [each.topic_id for each in catalog_groups.topics_of(conn, last, left)]
        rows += conn.execute(_LAG_IN_TOPICS, {"groups": [last], "topics": topics, "limit": left})
    # For the topics of the page alone.
    of_topics = totals(conn, (row.topic_id for row in rows))
    return [_lag(row, of_topics[row.topic_id]) for row in rows]


def _lag(row: Any, of_topic: Totals) -> Lag:
    return Lag(
        Resource(row.group_namespace, row.consumer_group),
        Resource(row.topic_namespace, row.topic),
        # Postgres's sum of integers is a decimal.
        int(row.ready),
        int(row.inflight),
        int(row.waiting_retry),
        int(row.dead_letters),
        row.oldest_ready_ms,
        int(row.stored),
        of_topic.appended,
        row.group_id,
        row.topic_id,
    )


def dead_elsewhere(conn: Connection, group_id: int | None, limit: int) -> list[DeadElsewhere]:
    """The dead letters that the lag does not count, of one group or (None) of all; the first `limit` by group."""
    if group_id is None:
        rows = conn.execute(_DEAD_ELSEWHERE, {"limit": limit})
    else:
        rows = conn.execute(_DEAD_ELSEWHERE_OF, {"limit": limit, "for_group": group_id})
    return [
        DeadElsewhere(
            Resource(row.group_namespace, row.consumer_group),
            None if row.topic is None else Resource(row.topic_namespace, row.topic),
            int(row.letters),
        )
        for row in rows
    ]


def _first_groups(conn: Connection, limit: int) -> list[int]:
    """The first groups by name that consume `limit` topics together: the lag of others is not computed."""
    groups: list[int] = []
    after, topics = Resource("", ""), 0
    while topics < limit:
        names = {"after_namespace": after.namespace, "after_name": after.name, "limit": limit}
        rows = conn.execute(_TOPICS_OF_GROUPS, names).all()
        for row in rows:
            if topics < limit and row.topics:
                groups.append(row.group_id)
                topics += row.topics
        if len(rows) < limit:
            break
        after = Resource(rows[-1].namespace, rows[-1].name)
    return groups


def find_message(conn: Connection, topic_name: Resource | None, message_id: str) -> FoundMessage:
    """One message by id, in one topic or (None) in any. Raises `MessageNotFound`.

    The message itself is preferred to its dead letters and retries. Raises `BadRequest` if several topics have the id.
    """
    topic, key = locate(conn, topic_name, message_id)
    (stored,) = load(conn, topic, [key])
    letters = letters_of_removed(conn, message_id)
    dead = _dead(conn, letters) if letters else []
    keys = {key, *(each.origin_key for each in letters)}
    keys |= {each for origin in keys for each in redrives.redriven_keys_of(conn, origin)}
    return FoundMessage(stored, [*dead, *_message_states(conn, key)], steps(conn, keys))


def counts(conn: Connection, now_ms: int) -> Counts:
    topics = conn.execute(_COUNT_TOPICS).scalar_one()
    groups = catalog_groups.count_groups(conn, None)
    messages = conn.execute(_COUNT_MESSAGES).one()
    revision = conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    next_ms = [each for each in (due.next_due_ms(conn), first_due_ms(conn)) if each is not None]
    return Counts(
        topics,
        groups,
        int(messages.stored),
        dead_letters.count(conn),
        revision,
        min(next_ms, default=None),
        int(messages.appended),
        dialect_of(conn).size_bytes(conn),
        sql.known(conn, now_ms),
    )


def _dead(conn: Connection, letters: Sequence[DeadLetterRow]) -> list[MessageState]:
    of = catalog_groups.groups_by_id(conn, {each.group_id for each in letters})
    return [
        MessageState(of[each.group_id].group.name, State.DLQ, each.attempt, None, "")
        for each in letters
        if each.redrive_state is None and each.group_id in of and not of[each.group_id].is_deleted
    ]


def _message_states(conn: Connection, key: int) -> list[MessageState]:
    return [
        MessageState(
            Resource(row.group_namespace, row.consumer_group),
            State(row.state),
            row.attempt or 0,
            row.visible_at_ms if row.state in {State.INFLIGHT, State.WAITING_RETRY} else None,
            row.client_id if row.state == State.INFLIGHT else "",
        )
        for row in conn.execute(_MESSAGE_STATES, {"message_key": key})
    ]


_IN_ORDER = "ORDER BY group_namespace, consumer_group, topic_namespace, topic"


def _lag_query(of_topics: str = "") -> TextClause:
    lag = views.group_lag(of_groups="IN :groups", of_topics=of_topics)
    page = f"SELECT l.* FROM ({lag}) l {_IN_ORDER} LIMIT :limit"  # noqa: S608
    return text(page).bindparams(bindparam("groups", expanding=True))


_LAG = _lag_query()
_LAG_IN_TOPICS = _lag_query("IN :topics").bindparams(bindparam("topics", expanding=True))
_TOPIC = catalog_topics.EXISTING


def _dead_elsewhere(*of_groups: ColumnElement[bool]) -> Select[Any]:
    """Groups and topics are joined to the counts: there are few of them, however many messages are dead."""
    counts = dead_letters.counts_by_topic(*of_groups).subquery("counts")
    # One row, not EXISTS: for that Postgres would read the progress of all groups.
    consumed = (
        select(CONSUMED.c.topic_id)
        .where(CONSUMED.c.group_id == counts.c.group_id, CONSUMED.c.topic_id == counts.c.origin_topic_id)
        .limit(literal_column("1"))
        .scalar_subquery()
    )
    names = [
        EXISTING.c.namespace.label("group_namespace"),
        EXISTING.c.name.label("consumer_group"),
        _TOPIC.c.namespace.label("topic_namespace"),
        _TOPIC.c.name.label("topic"),
    ]
    return (
        select(*names, func.sum(counts.c.letters).label("letters"))
        .join(EXISTING, EXISTING.c.group_id == counts.c.group_id)
        .outerjoin(_TOPIC, _TOPIC.c.topic_id == counts.c.origin_topic_id)
        .where(or_(_TOPIC.c.topic_id.is_(None), consumed.is_(None)))
        .group_by(*names)
        .order_by(*names)
        .limit(bindparam("limit"))
    )


_DEAD_ELSEWHERE = _dead_elsewhere()
_DEAD_ELSEWHERE_OF = _dead_elsewhere(dead_letters.OF_GROUP)
# Each topic has a queue with the number 0, in which nearly every group that consumes it has progress.
_first_queues = (
    select(CONSUMED.c.topic_id)
    .join(_TOPIC, _TOPIC.c.topic_id == CONSUMED.c.topic_id)
    .where(CONSUMED.c.group_id == EXISTING.c.group_id, CONSUMED.c.number == literal_column("0"))
    .limit(bindparam("limit"))
    .correlate(EXISTING)
    .subquery("first_queues")
)
_TOPICS_OF_GROUPS = (
    select(
        EXISTING.c.group_id,
        EXISTING.c.namespace,
        EXISTING.c.name,
        select(func.count()).select_from(_first_queues).scalar_subquery().label("topics"),
    )
    .where(follows(EXISTING))
    .order_by(EXISTING.c.namespace, EXISTING.c.name)
    .limit(bindparam("limit"))
)
_MESSAGE_STATES = text(
    "SELECT group_namespace, consumer_group, state, attempt, visible_at_ms, client_id FROM message_state"
    " WHERE message_key = :message_key ORDER BY group_namespace, consumer_group"
)
_IS_COUNTED = not_(
    or_(*(func.substr(_TOPIC.c.name, 1, len(each)) == each for each in (DEAD_LETTER_PREFIX, RETRY_PREFIX)))
)
_COUNT_TOPICS = select(func.count()).select_from(_TOPIC).where(_IS_COUNTED)
_COUNT_MESSAGES = (
    select(
        func.coalesce(func.sum(TOTALS.c.stored), 0).label("stored"),
        func.coalesce(func.sum(TOTALS.c.appended), 0).label("appended"),
    )
    .join(_TOPIC, _TOPIC.c.topic_id == TOTALS.c.topic_id)
    .where(_IS_COUNTED)
)
