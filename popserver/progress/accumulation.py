"""The messages that a group has not consumed, by topic: the rows of the view `group_lag`, added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, TextClause, bindparam, exists, literal_column, select, text

from popserver.catalog import facts as catalog_facts
from popserver.catalog.progress import CONSUMED
from popserver.catalog.topics import EXISTING
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.views import group_lag
from popserver.lite import facts as lite_facts
from popserver.model.errors import BadRequest
from popserver.model.names import Resource, retry_topic
from popserver.model.states import State
from popserver.model.topic import MessageType

TOPICS_MAX = 1_000  # in an answer about all topics of a group


class Accumulation(NamedTuple):
    """Counts of a group's messages. `waiting`: for a retry. `oldest_ready_ms`: when the oldest READY one was stored."""

    ready: int = 0
    inflight: int = 0
    waiting: int = 0
    oldest_ready_ms: int | None = None


class GroupAccumulation(NamedTuple):
    """The sum over all topics, and the counts of topics by name; `left_out`: how many topics are not listed."""

    total: Accumulation
    topics: list[tuple[Resource, Accumulation]]
    left_out: int


def accumulation(conn: Connection, group_name: Resource, topic_names: Iterable[Resource]) -> GroupAccumulation:
    """The counts for these topics, or (none) for all that the group consumes.

    Messages that members sent back for a retry count only in the sum. Raises `ConsumerGroupNotFound` and
    `TopicNotFound`.
    """
    group = catalog_facts.group(conn, group_name)
    ids = catalog_facts.topic_ids(conn, topic_names)
    retries = Resource("", "") if ids else retry_topic(group_name)
    names = {
        "for_group": group.group_id,
        "ids": sorted(ids),
        "namespace": retries.namespace,
        "retries": retries.name,
        "limit": len(ids) or TOPICS_MAX,
    }
    rows = conn.execute(_OF_TOPICS if ids else _OF_GROUP, names).all()
    if not rows:
        return GroupAccumulation(Accumulation(), [], 0)
    topics = [
        (Resource(row.topic_namespace, row.topic), _accumulation(row.ready, row.inflight, row.waiting, row.oldest))
        for row in rows
        if row.is_listed
    ]
    first = rows[0]
    total = _accumulation(first.all_ready, first.all_inflight, first.all_waiting, first.all_oldest)
    return GroupAccumulation(total, topics, int(first.listed) - len(topics))


def of_lite_topic(
    conn: Connection, group_name: Resource, topic_names: Iterable[Resource], lite_topic: str
) -> Accumulation:
    """The counts for the newest 1,000 messages of a lite topic.

    Its topic is the only one of type LITE among these, or (none) among those that the group consumes. Raises
    `BadRequest` if there is not exactly one, and `NotFound` if the topic has no such lite topic.
    """
    topics = _with_lite_topics(conn, group_name, topic_names)
    if len(topics) != 1:
        found = "none of its topics" if not topics else f"more than one of them, such as '{topics[0]}',"
        raise BadRequest(
            f"the request asks for lite topic '{lite_topic[:64]}', and {found} has lite topics; name one topic of type"
            " LITE"
        )
    states, oldest_ms = lite_facts.counts_of_lite_topic(conn, group_name, topics[0], lite_topic)
    ready, inflight, waiting = (states.get(each, 0) for each in (State.READY, State.INFLIGHT, State.WAITING_RETRY))
    return Accumulation(ready, inflight, waiting, oldest_ms)


def _with_lite_topics(conn: Connection, group_name: Resource, topic_names: Iterable[Resource]) -> list[Resource]:
    """The first two topics of type LITE among these, or (none) among those that the group consumes."""
    ids = catalog_facts.topic_ids(conn, topic_names)
    if ids:
        rows = _LITE_OF_TOPICS.rows(conn, {"ids": encode_column(sorted(ids))})
    else:
        rows = _LITE_OF_GROUP.rows(conn, {"for_group": catalog_facts.group(conn, group_name).group_id})
    return [Resource(*row) for row in rows]


def _accumulation(ready: int, inflight: int, waiting: int, oldest_ms: int | None) -> Accumulation:
    # Postgres's sum of integers is a decimal.
    return Accumulation(int(ready), int(inflight), int(waiting), oldest_ms)


def _counted(of_topics: str = "") -> TextClause:
    """The query for topics by name, the retry topic last. Each row has the sums over all topics, listed or not."""
    lag = group_lag(of_groups="= :for_group", of_topics=of_topics)
    listed = "CASE WHEN topic_namespace = :namespace AND topic = :retries THEN 0 ELSE 1 END"
    query = (
        f"SELECT topic_namespace, topic, {listed} AS is_listed, ready, inflight, waiting_retry AS waiting,"  # noqa: S608
        " oldest_ready_ms AS oldest, SUM(ready) OVER () AS all_ready, SUM(inflight) OVER () AS all_inflight,"
        " SUM(waiting_retry) OVER () AS all_waiting, MIN(oldest_ready_ms) OVER () AS all_oldest,"
        f" SUM({listed}) OVER () AS listed FROM ({lag}) l ORDER BY is_listed DESC, topic_namespace, topic LIMIT :limit"
    )
    return text(query)


class _NameRow(NamedTuple):
    namespace: str
    name: str


_IDS = rows_parameter("ids", "topic_id")
_LITE = (
    select(EXISTING.c.namespace, EXISTING.c.name)
    .where(EXISTING.c.accepts == literal_column(f"'{MessageType.LITE}'"))
    .order_by(EXISTING.c.namespace, EXISTING.c.name)
    .limit(literal_column("2"))
)
_LITE_OF_TOPICS = RowStatement(_NameRow, _LITE.where(EXISTING.c.topic_id.in_(select(_IDS.c.topic_id))))
_LITE_OF_GROUP = RowStatement(
    _NameRow,
    _LITE.where(
        exists(
            select(literal_column("1")).where(
                CONSUMED.c.topic_id == EXISTING.c.topic_id, CONSUMED.c.group_id == bindparam("for_group")
            )
        )
    ),
)
_OF_GROUP = _counted()
_OF_TOPICS = _counted("IN :ids").bindparams(bindparam("ids", expanding=True))
