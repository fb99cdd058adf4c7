"""When the messages of a group's queues were stored: the oldest, the newest, and those around the group's progress."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, Select, bindparam, case, or_, select

from popserver.catalog import facts as catalog_facts
from popserver.catalog.progress import REACHED
from popserver.catalog.queues import STORED
from popserver.catalog.topics import EXISTING
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import KEY_SHIFT
from popserver.messages.seek import stored_at
from popserver.model.names import Resource, retry_topic

QUEUES_MAX = 4_096  # in one answer; each costs four index lookups


class QueueTimeSpan(NamedTuple):
    """Stored-at times of messages in one queue, in epoch ms; None if there is no such message.

    `passed_ms`: of the last message before the group's progress; `next_ms`: of the first message from there on.
    """

    namespace: str
    name: str
    number: int
    oldest_ms: int | None
    newest_ms: int | None
    passed_ms: int | None
    next_ms: int | None

    @property
    def topic(self) -> Resource:
        return Resource(self.namespace, self.name)


def time_spans(conn: Connection, group_name: Resource, topic_names: Iterable[Resource]) -> list[QueueTimeSpan]:
    """The queues in which the group has progress, by topic and number; in these topics, or (none) in all topics except
    its retry topic.

    At most one more than `QUEUES_MAX`. Raises `ConsumerGroupNotFound` and `TopicNotFound`.
    """
    group = catalog_facts.group(conn, group_name)
    ids = catalog_facts.topic_ids(conn, topic_names)
    names = {"for_group": group.group_id, "limit": QUEUES_MAX + 1}
    if not ids:
        own = retry_topic(group_name)
        return _OF_ALL.rows(conn, names | {"namespace": own.namespace, "retries": own.name})
    return _OF_TOPICS.rows(conn, names | {"ids": encode_column(sorted(ids))})


_IDS = rows_parameter("ids", "topic_id")


def _spans(*, of_topics: bool) -> Select[tuple[str, str, int, int, int, int, int]]:
    # First the page, so that messages are looked up only for its rows.
    page = (
        select(
            EXISTING.c.namespace,
            EXISTING.c.name,
            STORED.c.number,
            STORED.c.queue_id,
            STORED.c.min_offset,
            STORED.c.next_offset,
            STORED.c.newest_stored_at_ms,
            REACHED.c.next_offset.label("progress"),
        )
        .select_from(REACHED)
        .join(STORED, STORED.c.queue_id == REACHED.c.queue_id)
        .join(EXISTING, EXISTING.c.topic_id == STORED.c.topic_id)
        .where(REACHED.c.group_id == bindparam("for_group"))
        .order_by(EXISTING.c.namespace, EXISTING.c.name, STORED.c.number)
        .limit(bindparam("limit"))
    )
    if of_topics:
        page = page.where(STORED.c.topic_id.in_(select(_IDS.c.topic_id)))
    else:
        elsewhere = EXISTING.c.namespace != bindparam("namespace")
        page = page.where(or_(elsewhere, EXISTING.c.name != bindparam("retries")))
    at = page.subquery("page")
    first_key = at.c.queue_id.op("<<")(KEY_SHIFT)
    progress_key, end_key = first_key.op("|")(at.c.progress), (at.c.queue_id + 1).op("<<")(KEY_SHIFT)
    return select(
        at.c.namespace,
        at.c.name,
        at.c.number,
        stored_at(first_key, end_key).label("oldest_ms"),
        case((at.c.min_offset < at.c.next_offset, at.c.newest_stored_at_ms)).label("newest_ms"),
        stored_at(first_key, progress_key, is_last=True).label("passed_ms"),
        stored_at(progress_key, end_key).label("next_ms"),
    ).order_by(at.c.namespace, at.c.name, at.c.number)


_OF_ALL = RowStatement(QueueTimeSpan, _spans(of_topics=False))
_OF_TOPICS = RowStatement(QueueTimeSpan, _spans(of_topics=True))
