"""Topics, message queues, consumer groups, and which group has met which topic."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, select, text, tuple_, update

from popserver.domain.errors import (
    AlreadyExists,
    BadRequest,
    ConsumerGroupNotFound,
    PopError,
    TooManyRequests,
    TopicNotFound,
)
from popserver.domain.group import ConsumeFrom, Group, HistoryLevel, Mode, NewGroup
from popserver.domain.message import MessageType
from popserver.domain.names import Resource, dead_letter_topic
from popserver.domain.retry import RetryPolicy
from popserver.domain.topic import MessageQueue, NewTopic, Topic, message_key
from popserver.store.notices import GROUP, TOPIC, Outdated
from popserver.store.schema import (
    AnyRow,
    consumer_group,
    dead_letter,
    delivery,
    history,
    idempotency,
    message,
    message_group_progress,
    pending,
    progress,
    queue,
)
from popserver.store.schema import topic as topic_table
from popserver.store.transaction import STEP_ROWS_MAX, Transaction


class CreateTopic(NamedTuple):
    new: NewTopic
    or_find: bool = False


class UpdateTopic(NamedTuple):
    """None leaves a value as it is."""

    name: Resource
    queue_count: int | None = None
    accepts: tuple[MessageType, ...] | None = None


class DeleteTopic(NamedTuple):
    name: Resource


class CreateGroup(NamedTuple):
    new: NewGroup
    or_find: bool = False


class UpdateGroup(NamedTuple):
    """None leaves a value as it is."""

    name: Resource
    max_attempts: int | None = None
    intervals_ms: tuple[int, ...] | None = None
    history: HistoryLevel | None = None
    fifo_interval_ms: int | None = None


class DeleteGroup(NamedTuple):
    name: Resource


class Meet(NamedTuple):
    """A group's first receive from a topic, in the mode that this fixes."""

    group: Group
    topic: Topic
    mode: Mode


class Purge(NamedTuple):
    """One step of removing what deleted topics and groups have left."""


class FoundGroup(NamedTuple):
    """A group that has rows left; a deleted one's are being removed."""

    group: Group
    is_deleted: bool


def create_topic(tx: Transaction, requests: Sequence[CreateTopic]) -> list[Topic | PopError]:
    _lock(tx)
    return [_create_topic(tx, request) for request in requests]


def update_topic(tx: Transaction, requests: Sequence[UpdateTopic]) -> list[Topic | PopError]:
    _lock(tx)
    return [_update_topic(tx, request) for request in requests]


def delete_topic(tx: Transaction, requests: Sequence[DeleteTopic]) -> list[PopError | None]:
    _lock(tx)
    return [_delete_topic(tx, request) for request in requests]


def create_group(tx: Transaction, requests: Sequence[CreateGroup]) -> list[Group | PopError]:
    _lock(tx)
    return [_create_group(tx, request) for request in requests]


def update_group(tx: Transaction, requests: Sequence[UpdateGroup]) -> list[Group | PopError]:
    _lock(tx)
    return [_update_group(tx, request) for request in requests]


def delete_group(tx: Transaction, requests: Sequence[DeleteGroup]) -> list[PopError | None]:
    _lock(tx)
    return [_delete_group(tx, request) for request in requests]


def meet(tx: Transaction, requests: Sequence[Meet]) -> list[PopError | None]:
    """Give the group a progress row for every queue of the topic, at the place its consume-from says."""
    _lock(tx)
    return [_meet(tx, request) for request in requests]


def purge(tx: Transaction, requests: Sequence[Purge]) -> list[int | PopError]:
    """Remove one step of what is deleted; the number of rows removed, 0 when nothing is left.

    Refused, to be asked again, while somebody's own transaction has the last of the deliveries under its hands.
    """
    try:
        return [_purge_groups(tx) or _purge_topics(tx)] * len(requests)
    except TooManyRequests as refusal:
        return [refusal] * len(requests)


def lock_if_free(tx: Transaction) -> bool:
    """Keep what exists as it is until the transaction ends, unless another server is changing it; never waits."""
    return tx.conn.dialect.name == "sqlite" or bool(tx.conn.execute(_IF_FREE).scalar())


def ensure_topic(tx: Transaction, new: NewTopic) -> Topic:
    """The topic of that name, made on the way where it is missing."""
    return find_topic(tx.conn, new.name) or _insert_topic(tx, new)


def find_topic(conn: Connection, name: Resource) -> Topic | None:
    row = conn.execute(_TOPIC, {"in_namespace": name.namespace, "with_name": name.name}).first()
    return None if row is None else _topic(row, conn.execute(_QUEUES, {"of_topic": row.topic_id}))


def find_group(conn: Connection, name: Resource) -> Group | None:
    row = conn.execute(_GROUP, {"in_namespace": name.namespace, "with_name": name.name}).first()
    return None if row is None else _group(row)


def topics_by_id(conn: Connection, topic_ids: Collection[int]) -> dict[int, Topic]:
    """Those of the topics that exist."""
    wish = {"topic_ids": list(topic_ids)}
    queues: dict[int, list[AnyRow]] = {}
    for row in conn.execute(_QUEUES_OF_SEVERAL, wish):
        queues.setdefault(row.topic_id, []).append(row)
    return {row.topic_id: _topic(row, queues.get(row.topic_id, ())) for row in conn.execute(_TOPICS_BY_ID, wish)}


def groups_by_id(conn: Connection, group_ids: Collection[int]) -> dict[int, FoundGroup]:
    rows = conn.execute(select(consumer_group).where(consumer_group.c.group_id.in_(group_ids)))
    return {row.group_id: FoundGroup(_group(row), row.deleted_at_ms is not None) for row in rows}


def list_topics(conn: Connection) -> list[Topic]:
    names = select(topic_table).where(topic_table.c.deleted_at_ms.is_(None)).order_by(topic_table.c.name)
    queues: dict[int, list[AnyRow]] = {}
    for row in conn.execute(select(queue).order_by(queue.c.number)):
        queues.setdefault(row.topic_id, []).append(row)
    return [_topic(row, queues.get(row.topic_id, ())) for row in conn.execute(names)]


def list_groups(conn: Connection) -> list[Group]:
    names = select(consumer_group).where(consumer_group.c.deleted_at_ms.is_(None)).order_by(consumer_group.c.name)
    return [_group(row) for row in conn.execute(names)]


def _lock(tx: Transaction) -> None:
    """One server at a time changes what exists: none adds queues to a topic while a group meets it on another."""
    if tx.conn.dialect.name != "sqlite":
        tx.conn.execute(_ONE_AT_A_TIME)


def _create_topic(tx: Transaction, request: CreateTopic) -> Topic | PopError:
    found = find_topic(tx.conn, request.new.name)
    if found is None:
        return _insert_topic(tx, request.new)
    if request.or_find:
        return found
    return AlreadyExists(
        f"topic '{found.name}' exists already, with {len(found.queues)} queues; change it with: popmq topic update"
    )


def _insert_topic(tx: Transaction, new: NewTopic) -> Topic:
    topic_id = tx.conn.execute(
        insert(topic_table).returning(topic_table.c.topic_id),
        {
            "namespace": new.name.namespace,
            "name": new.name.name,
            "accepts": ",".join(new.accepts),
            "created_at_ms": tx.now_ms,
            "fifo_queues": new.queue_count,
        },
    ).scalar_one()
    _insert_queues(tx, topic_id, range(new.queue_count))
    queues = tx.conn.execute(_QUEUES, {"of_topic": topic_id})
    return Topic(topic_id, new.name, _message_queues(queues), new.accepts, tx.now_ms, new.queue_count)


def _insert_queues(tx: Transaction, topic_id: int, numbers: Iterable[int]) -> None:
    rows = [{"topic_id": topic_id, "number": number, "min_offset": 0, "next_offset": 0} for number in numbers]
    tx.conn.execute(insert(queue), rows)


def _update_topic(tx: Transaction, request: UpdateTopic) -> Topic | PopError:
    found = find_topic(tx.conn, request.name)
    if found is None:
        return topic_not_found(request.name)
    have = len(found.queues)
    if request.queue_count is not None and request.queue_count < have:
        return BadRequest(
            f"topic '{found.name}' has {have} queues, and their number only grows; {request.queue_count} are too few"
        )
    if request.queue_count is not None and request.queue_count > have:
        _insert_queues(tx, found.topic_id, range(have, request.queue_count))
        # A group that knows the topic has seen nothing of the new queues: it starts them at 0.
        tx.conn.execute(_MEET_NEW_QUEUES, {"of_topic": found.topic_id})
    if MessageType.FIFO in found.accepts and MessageType.FIFO not in (request.accepts or found.accepts):
        return BadRequest(
            f"topic '{found.name}' takes FIFO messages, and may hold some whose order must be kept; let it go on"
            " taking them, or create another topic"
        )
    if request.accepts is not None:
        accepts = update(topic_table).where(topic_table.c.topic_id == found.topic_id)
        tx.conn.execute(accepts.values(accepts=",".join(request.accepts)))
    tx.ring(found.topic_id)
    tx.outdate(Outdated(TOPIC, *found.name))
    return find_topic(tx.conn, request.name) or topic_not_found(request.name)


def _delete_topic(tx: Transaction, request: DeleteTopic) -> PopError | None:
    named = _named(topic_table, request.name)
    gone = tx.conn.execute(update(topic_table).where(*named).values(deleted_at_ms=tx.now_ms)).rowcount
    if gone:
        tx.outdate(Outdated(TOPIC, *request.name))
    return None if gone else topic_not_found(request.name)


def _create_group(tx: Transaction, request: CreateGroup) -> Group | PopError:
    new = request.new
    found = find_group(tx.conn, new.name)
    if found is not None:
        if request.or_find:
            return found
        return AlreadyExists(f"consumer group '{new.name}' exists already; change it with: popmq group update")
    row = tx.conn.execute(
        insert(consumer_group).returning(*consumer_group.c),
        {
            "namespace": new.name.namespace,
            "name": new.name.name,
            "max_attempts": new.retry.max_attempts,
            "intervals_ms": json.dumps(list(new.retry.intervals_ms)),
            "fifo_interval_ms": new.retry.fifo_interval_ms,
            "consume_from": new.consume_from.value,
            "history": new.history.value,
            "created_at_ms": tx.now_ms,
        },
    ).one()
    return _group(row)


def _update_group(tx: Transaction, request: UpdateGroup) -> Group | PopError:
    values: dict[str, Any] = {}
    if request.max_attempts is not None:
        values["max_attempts"] = request.max_attempts
    if request.intervals_ms is not None:
        values["intervals_ms"] = json.dumps(list(request.intervals_ms))
    if request.fifo_interval_ms is not None:
        values["fifo_interval_ms"] = request.fifo_interval_ms
    if request.history is not None:
        values["history"] = request.history.value
    if values:
        tx.conn.execute(update(consumer_group).where(*_named(consumer_group, request.name)).values(**values))
        tx.outdate(Outdated(GROUP, *request.name))
    return find_group(tx.conn, request.name) or group_not_found(request.name)


def _delete_group(tx: Transaction, request: DeleteGroup) -> PopError | None:
    named = _named(consumer_group, request.name)
    gone = tx.conn.execute(update(consumer_group).where(*named).values(deleted_at_ms=tx.now_ms)).rowcount
    if not gone:
        return group_not_found(request.name)
    tx.outdate(Outdated(GROUP, *request.name))
    # Its dead letters go with it: without the group nobody could name them.
    _delete_topic(tx, DeleteTopic(dead_letter_topic(request.name)))
    return None


def _meet(tx: Transaction, request: Meet) -> PopError | None:
    group, topic = request.group, request.topic
    row = tx.conn.execute(select(consumer_group.c.mode).where(consumer_group.c.group_id == group.group_id)).first()
    if row is None:
        return group_not_found(group.name)
    if row.mode is None:
        mode = update(consumer_group).where(consumer_group.c.group_id == group.group_id)
        tx.conn.execute(mode.values(mode=request.mode.value))
    elif row.mode != request.mode:
        return BadRequest(f"consumer group '{group.name}' consumes in mode {row.mode}, fixed at its first use")
    if tx.conn.execute(_IS_THERE, {"of_topic": topic.topic_id}).first() is None:
        return topic_not_found(topic.name)
    known = set(tx.conn.execute(_MET, {"for_group": group.group_id, "of_topic": topic.topic_id}).scalars())
    rows = [
        {"group_id": group.group_id, "queue_id": each.queue_id, "next_offset": _start(group, each)}
        for each in tx.conn.execute(_QUEUES, {"of_topic": topic.topic_id})
        if each.queue_id not in known
    ]
    if rows:
        tx.conn.execute(insert(progress), rows)
    return None


def _start(group: Group, row: AnyRow) -> int:
    start: int = row.min_offset if group.consume_from is ConsumeFrom.EARLIEST else row.next_offset
    return start


def _purge_groups(tx: Transaction) -> int:
    group_id = tx.conn.execute(_A_DELETED_GROUP).scalar()
    if group_id is None:
        return 0
    # Progress first, as with a queue: on another server the group may still be granted something.
    tx.conn.execute(_END_PROGRESS_OF_GROUP, {"of_group": group_id})
    if left := tx.conn.execute(_COUNT_PROGRESS_OF_GROUP, {"of_group": group_id}).scalar_one():
        return int(left)  # in use on another server, for as long as a transaction takes
    removed = _purge_deliveries(tx, delivery.c.group_id == group_id)
    if removed:
        return removed
    for table, key in (
        (dead_letter, dead_letter.c.dead_letter_id),
        (message_group_progress, message_group_progress.c.message_group),
    ):
        some = select(key).where(table.c.group_id == group_id).limit(STEP_ROWS_MAX)
        removed = tx.conn.execute(delete(table).where(table.c.group_id == group_id, key.in_(some))).rowcount
        if removed:
            return removed
    return tx.conn.execute(delete(consumer_group).where(consumer_group.c.group_id == group_id)).rowcount


def _purge_topics(tx: Transaction) -> int:
    topic_id = tx.conn.execute(_A_DELETED_TOPIC).scalar()
    if topic_id is None:
        return 0
    some = select(pending.c.pending_id).where(pending.c.topic_id == topic_id).limit(STEP_ROWS_MAX)
    removed = tx.conn.execute(delete(pending).where(pending.c.pending_id.in_(some))).rowcount
    removed = removed or _purge_keys(tx, topic_id)
    if removed:
        return removed
    for each in tx.conn.execute(_QUEUES, {"of_topic": topic_id}).all():
        removed = _purge_queue(tx, each.queue_id)
        if removed:
            return removed
        return tx.conn.execute(delete(queue).where(queue.c.queue_id == each.queue_id)).rowcount
    return tx.conn.execute(delete(topic_table).where(topic_table.c.topic_id == topic_id)).rowcount


def _purge_keys(tx: Transaction, topic_id: int) -> int:
    some = select(idempotency.c.idempotency_key).where(idempotency.c.topic_id == topic_id).limit(STEP_ROWS_MAX)
    of_topic = idempotency.c.topic_id == topic_id, idempotency.c.idempotency_key.in_(some)
    return tx.conn.execute(delete(idempotency).where(*of_topic)).rowcount


def _purge_queue(tx: Transaction, queue_id: int) -> int:
    """Progress first: nobody is granted anything any more. What falls due or is looked up goes before its message."""
    tx.conn.execute(_END_PROGRESS, {"of_queue": queue_id})
    if left := tx.conn.execute(_COUNT_PROGRESS, {"of_queue": queue_id}).scalar_one():
        return int(left)  # in use on another server, for as long as a transaction takes
    names = message_group_progress.c.message_group
    some = select(names).where(message_group_progress.c.queue_id == queue_id).limit(STEP_ROWS_MAX)
    of_queue = message_group_progress.c.queue_id == queue_id, names.in_(some)
    removed = tx.conn.execute(delete(message_group_progress).where(*of_queue)).rowcount
    if removed:
        return removed
    first, end = message_key(queue_id, 0), message_key(queue_id + 1, 0)
    removed = _purge_deliveries(tx, delivery.c.message_key >= first, delivery.c.message_key < end)
    if removed:
        return removed
    for key in (dead_letter.c.copy_key, message.c.message_key, history.c.message_key):
        some = select(key).where(key >= first, key < end).limit(STEP_ROWS_MAX)
        removed = tx.conn.execute(delete(key.table).where(key.in_(some))).rowcount
        if removed:
            return removed
    return 0


def _purge_deliveries(tx: Transaction, *of_what_is_gone: ColumnElement[bool]) -> int:
    """A step of them, waiting for none that is locked: it may be so for as long as its holder likes."""
    key = tuple_(delivery.c.group_id, delivery.c.message_key)
    these = select(delivery.c.group_id, delivery.c.message_key).where(*of_what_is_gone).limit(STEP_ROWS_MAX)
    removed = tx.conn.execute(delete(delivery).where(key.in_(these.with_for_update(skip_locked=True)))).rowcount
    if not removed and tx.conn.execute(these.limit(1)).first() is not None:
        raise TooManyRequests("a delivery of what is deleted is locked by another transaction; ask again")
    return removed


def topic_not_found(name: Resource) -> TopicNotFound:
    return TopicNotFound(f"topic '{name}' does not exist; create it with: popmq topic create {_as_typed(name)}")


def group_not_found(name: Resource) -> ConsumerGroupNotFound:
    return ConsumerGroupNotFound(
        f"consumer group '{name}' does not exist; create it with: popmq group create {_as_typed(name)}"
    )


def _as_typed(name: Resource) -> str:
    return f"{name.name} --namespace {name.namespace}" if name.namespace else name.name


def _named(table: Any, name: Resource) -> tuple[Any, ...]:
    return table.c.namespace == name.namespace, table.c.name == name.name, table.c.deleted_at_ms.is_(None)


def _topic(row: AnyRow, queues: Iterable[AnyRow]) -> Topic:
    accepts = tuple(MessageType(kind) for kind in row.accepts.split(","))
    name = Resource(row.namespace, row.name)
    return Topic(row.topic_id, name, _message_queues(queues), accepts, row.created_at_ms, row.fifo_queues)


def _message_queues(rows: Iterable[AnyRow]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(row.queue_id, row.number) for row in rows)


def _group(row: AnyRow) -> Group:
    return Group(
        row.group_id,
        Resource(row.namespace, row.name),
        RetryPolicy(row.max_attempts, tuple(json.loads(row.intervals_ms)), row.fifo_interval_ms),
        ConsumeFrom(row.consume_from),
        HistoryLevel(row.history),
        Mode(row.mode) if row.mode else None,
        row.created_at_ms,
    )


_TOPIC = select(topic_table).where(
    topic_table.c.namespace == bindparam("in_namespace"),
    topic_table.c.name == bindparam("with_name"),
    topic_table.c.deleted_at_ms.is_(None),
)
_GROUP = select(consumer_group).where(
    consumer_group.c.namespace == bindparam("in_namespace"),
    consumer_group.c.name == bindparam("with_name"),
    consumer_group.c.deleted_at_ms.is_(None),
)
# Each is one server's to remove.
_A_DELETED_GROUP = (
    select(consumer_group.c.group_id)
    .where(consumer_group.c.deleted_at_ms.is_not(None))
    .limit(1)
    .with_for_update(skip_locked=True)
)
_A_DELETED_TOPIC = (
    select(topic_table.c.topic_id)
    .where(topic_table.c.deleted_at_ms.is_not(None))
    .limit(1)
    .with_for_update(skip_locked=True)
)
# Any number, as long as every server takes the same.
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(482851944568)")
_IF_FREE = text("SELECT pg_try_advisory_xact_lock(482851944568)")
_IS_THERE = select(topic_table.c.topic_id).where(
    topic_table.c.topic_id == bindparam("of_topic"), topic_table.c.deleted_at_ms.is_(None)
)
# Without waiting: whoever uses one may be waiting for what this transaction has.
_IN_QUEUE = progress.c.queue_id == bindparam("of_queue")
_FREE = select(progress.c.group_id).where(_IN_QUEUE).with_for_update(skip_locked=True).correlate(None)
_END_PROGRESS = delete(progress).where(_IN_QUEUE, progress.c.group_id.in_(_FREE))
_COUNT_PROGRESS = select(func.count()).select_from(progress).where(_IN_QUEUE)
_OF_GROUP = progress.c.group_id == bindparam("of_group")
_FREE_OF_GROUP = select(progress.c.queue_id).where(_OF_GROUP).with_for_update(skip_locked=True).correlate(None)
_END_PROGRESS_OF_GROUP = delete(progress).where(_OF_GROUP, progress.c.queue_id.in_(_FREE_OF_GROUP))
_COUNT_PROGRESS_OF_GROUP = select(func.count()).select_from(progress).where(_OF_GROUP)
_QUEUES = select(queue).where(queue.c.topic_id == bindparam("of_topic")).order_by(queue.c.number)
_TOPICS_BY_ID = select(topic_table).where(
    topic_table.c.topic_id.in_(bindparam("topic_ids", expanding=True)), topic_table.c.deleted_at_ms.is_(None)
)
_QUEUES_OF_SEVERAL = (
    select(queue).where(queue.c.topic_id.in_(bindparam("topic_ids", expanding=True))).order_by(queue.c.number)
)
_MET = (
    select(progress.c.queue_id)
    .join(queue, queue.c.queue_id == progress.c.queue_id)
    .where(progress.c.group_id == bindparam("for_group"), queue.c.topic_id == bindparam("of_topic"))
)
_GROUPS_OF_TOPIC = (
    select(progress.c.group_id)
    .join(queue, queue.c.queue_id == progress.c.queue_id)
    .where(queue.c.topic_id == bindparam("of_topic"))
    .distinct()
    .subquery()
)
_HAS_PROGRESS = (
    select(progress.c.queue_id)
    .where(progress.c.group_id == _GROUPS_OF_TOPIC.c.group_id, progress.c.queue_id == queue.c.queue_id)
    .exists()
)
_MEET_NEW_QUEUES = insert(progress).from_select(
    ["group_id", "queue_id", "next_offset"],
    select(_GROUPS_OF_TOPIC.c.group_id, queue.c.queue_id, queue.c.min_offset)
    .join(queue, queue.c.topic_id == bindparam("of_topic"))
    .where(~_HAS_PROGRESS),
)
