"""Statements that create, change, delete and find consumer groups."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    exists,
    insert,
    literal_column,
    select,
    update,
)

from popserver.catalog import lookup, progress, topics
from popserver.catalog.lookup import (
    follows,
    group_not_found,
    is_named,
    lock,
    of_another_mode,
    page_names,
    topic_not_found,
)
from popserver.catalog.queues import queue_rows
from popserver.database.notifications import GROUP, MEMBERS, Invalidation
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import consumer_group
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.model.errors import AlreadyExists, BadRequest, PopError
from popserver.model.group import CHOOSING, ConsumeFrom, Group, HistoryLevel, LiteModel, Mode, NewGroup
from popserver.model.names import Resource, dead_letter_topic, retry_topic
from popserver.model.retry import Exponential, Intervals, RetryPolicy
from popserver.model.topic import Topic


class _GroupRow(NamedTuple):
    group_id: int
    namespace: str
    name: str
    max_attempts: int
    intervals_ms: str
    fifo_interval_ms: int
    consume_from: str
    history: str
    mode: str | None
    created_at_ms: int
    deleted_at_ms: int | None
    lite: str | None


@dataclass(frozen=True, slots=True)
class CreateGroup(Request[Group]):
    phase: ClassVar = Phase.CATALOG
    new: NewGroup
    or_find: bool = False


@dataclass(frozen=True, slots=True)
class UpdateGroup(Request[Group]):
    """None leaves a value unchanged."""

    phase: ClassVar = Phase.CATALOG
    name: Resource
    max_attempts: int | None = None
    intervals_ms: Intervals | None = None
    history: HistoryLevel | None = None
    fifo_interval_ms: int | None = None
    lite: LiteModel | None = None


@dataclass(frozen=True, slots=True)
class DeleteGroup(Request[None]):
    phase: ClassVar = Phase.CATALOG
    name: Resource


@dataclass(frozen=True, slots=True)
class Subscribe(Request[None]):
    """A group's first use of a topic, in a mode that becomes the group's mode."""

    phase: ClassVar = Phase.SUBSCRIBE
    group: Group
    topic: Topic
    mode: Mode


@dataclass(frozen=True, slots=True)
class SetGroupMode(Request[None]):
    """A group's first use, in a mode that becomes the group's mode."""

    phase: ClassVar = Phase.SUBSCRIBE
    group: Group
    mode: Mode


_TOPICS_MAX = 2**31 - 1  # all


class ConsumedTopic(NamedTuple):
    """A topic in which a group has progress."""

    topic_id: int
    namespace: str
    name: str


class FoundGroup(NamedTuple):
    """A group. If it is deleted, its rows are not removed yet."""

    group: Group
    is_deleted: bool


def find_group(conn: Connection, name: Resource) -> Group | None:
    row = _GROUP.first(conn, {"in_namespace": name.namespace, "with_name": name.name})
    return None if row is None else _group(row)


def groups_by_id(conn: Connection, group_ids: Collection[int]) -> dict[int, FoundGroup]:
    rows = _GROUPS_BY_ID.rows(conn, {"group_ids": list(group_ids)})
    return {row.group_id: FoundGroup(_group(row), row.deleted_at_ms is not None) for row in rows}


def modes(conn: Connection, group_ids: Iterable[int]) -> dict[int, str | None]:
    """The modes of the existing ones of these groups, by id; None before the first use."""
    rows = conn.execute(_MODES, {"groups": encode_column(sorted(group_ids))})
    return {row.group_id: row.mode for row in rows}


def lock_a_deleted_one(conn: Connection) -> int | None:
    """Lock a deleted group whose rows are not removed yet. None if there is none, or other servers have locked all."""
    return conn.execute(_A_DELETED_ONE).scalar()


def forget(conn: Connection, group_id: int) -> int:
    """Remove a deleted group, after all its rows; returns how many."""
    return conn.execute(delete(consumer_group).where(consumer_group.c.group_id == group_id)).rowcount


def topics_of(conn: Connection, group_id: int, limit: int) -> list[ConsumedTopic]:
    """The first topics, by namespace and name, that the group consumes."""
    return _TOPICS_OF.rows(conn, {"for_group": group_id, "limit": limit})


def page_of_groups(conn: Connection, namespace: str | None, after: Resource | None, limit: int) -> list[Group]:
    """The next `limit` groups after this one, by namespace and name, in one namespace or (None) in all."""
    rows = (_PAGE if namespace is None else _PAGE_OF_ONE).rows(conn, page_names(namespace, after, limit))
    return [_group(row) for row in rows]


def count_groups(conn: Connection, namespace: str | None) -> int:
    """How many groups there are, in one namespace or (None) in all."""
    return lookup.count(conn, consumer_group, namespace)


def chooses(group_id: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether each client of the group subscribes to its own lite topics."""
    is_chosen = consumer_group.c.lite.in_([literal_column(f"'{each}'") for each in CHOOSING])
    return select(literal_column("1")).where(consumer_group.c.group_id == group_id, is_chosen).exists()


@carries_out_each(CreateGroup)
def create_group(tx: Transaction, request: CreateGroup) -> Group | PopError:
    lock(tx)
    new = request.new
    found = find_group(tx.conn, new.name)
    if found is not None:
        if request.or_find:
            return found
        return AlreadyExists(f"consumer group '{new.name}' exists already; change it with: popmq group update")
    row = _INSERT.first(
        tx.conn,
        {
            "namespace": new.name.namespace,
            "name": new.name.name,
            "max_attempts": new.retry.max_attempts,
            "intervals_ms": _as_json(new.retry.intervals_ms),
            "fifo_interval_ms": new.retry.fifo_interval_ms,
            "consume_from": new.consume_from.value,
            "history": new.history.value,
            "created_at_ms": tx.now_ms,
            "lite": new.lite and new.lite.value,
        },
    )
    assert row is not None, "an INSERT returns its row"
    # Members of a deleted group with this name become members of the new one.
    tx.invalidate(Invalidation(MEMBERS, *new.name))
    return _group(row)


@carries_out_each(UpdateGroup)
def update_group(tx: Transaction, request: UpdateGroup) -> Group | PopError:
    lock(tx)
    values: dict[str, Any] = {}
    if request.lite is not None:
        found = find_group(tx.conn, request.name)
        if found is not None and found.lite is not request.lite and found.mode is not None:
            return _used(found, request.lite)
        values["lite"] = request.lite.value
    if request.max_attempts is not None:
        values["max_attempts"] = request.max_attempts
    if request.intervals_ms is not None:
        values["intervals_ms"] = _as_json(request.intervals_ms)
    if request.fifo_interval_ms is not None:
        values["fifo_interval_ms"] = request.fifo_interval_ms
    if request.history is not None:
        values["history"] = request.history.value
    if values:
        tx.conn.execute(update(consumer_group).where(*is_named(consumer_group, request.name)).values(**values))
        tx.invalidate(Invalidation(GROUP, *request.name))
    return find_group(tx.conn, request.name) or group_not_found(request.name)


def _used(found: Group, wanted: LiteModel) -> BadRequest:
    """A group that has received keeps its lite model, because its positions name clients by it."""
    known = "ordinary consumers" if found.lite is None else f"the lite model {found.lite}"
    return BadRequest(
        f"consumer group '{found.name}' has received messages as a group of {known}, and cannot become {wanted} now;"
        f" use another group, created with: popmq group create NAME --lite {wanted.lower()}"
    )


@carries_out_each(DeleteGroup)
def delete_group(tx: Transaction, request: DeleteGroup) -> PopError | None:
    lock(tx)
    named = is_named(consumer_group, request.name)
    deleted = tx.conn.execute(update(consumer_group).where(*named).values(deleted_at_ms=tx.now_ms)).rowcount
    if not deleted:
        return group_not_found(request.name)
    tx.invalidate(Invalidation(GROUP, *request.name))
    # Its dead letters and retries are deleted too, because they cannot be used without the group.
    topics.delete_one_topic(tx, dead_letter_topic(request.name))
    topics.delete_one_topic(tx, retry_topic(request.name))
    return None


@carries_out_each(SetGroupMode)
def set_group_mode(tx: Transaction, request: SetGroupMode) -> PopError | None:
    """Set the group's mode if it has none. Refused if the group has the other mode."""
    lock(tx)
    return _set_mode(tx, request.group, request.mode)


@carries_out_each(Subscribe)
def subscribe(tx: Transaction, request: Subscribe) -> PopError | None:
    """Give the group progress in every queue of the topic, beginning at its `consume_from`."""
    lock(tx)
    group, topic = request.group, request.topic
    if refusal := _set_mode(tx, group, request.mode):
        return refusal
    if not topics.is_there(tx.conn, topic.topic_id):
        return topic_not_found(topic.name)
    begin(tx, group, topic.topic_id)
    return None


def begin(tx: Transaction, group: Group, topic_id: int) -> None:
    """Give the group progress in the queues of the topic that it does not read yet, beginning at its `consume_from`.

    The caller has the lock of the catalog: so no queue is added meanwhile.
    """
    known = progress.queues_in_topic(tx.conn, group.group_id, topic_id)
    new = [each for each in queue_rows(tx.conn, topic_id) if each.queue_id not in known]
    from_start = group.consume_from is ConsumeFrom.EARLIEST
    starts = [(each.queue_id, each.min_offset if from_start else each.next_offset) for each in new]
    progress.begin(tx.conn, [(group.group_id, queue_id, start, 0) for queue_id, start in starts])


def begin_elsewhere(tx: Transaction, group: Group, topic_ids: Collection[int]) -> None:
    """The same in topics where an operator has let the group begin in some queues.

    A group of mode POP reads all queues of a topic. For other groups nothing changes: members name their queues.
    """
    if topic_ids and modes(tx.conn, [group.group_id])[group.group_id] == Mode.POP:
        lock(tx)
        for topic_id in sorted(topic_ids):
            begin(tx, group, topic_id)


def set_modes(tx: Transaction, groups: Iterable[Group], mode: Mode) -> None:
    """Set the mode of the groups that have none. The other groups have this mode already.

    The caller has checked this under `CATALOG_LOCK`, which its request declares.
    """
    ids = {each.group_id: each.name for each in groups if each.mode is None}
    if ids:
        names = {"groups": encode_column(sorted(ids)), "new_mode": mode.value}
        for group_id in tx.conn.execute(_SET_MODES, names).scalars():
            tx.invalidate(Invalidation(GROUP, *ids[group_id]))


def _set_mode(tx: Transaction, group: Group, mode: Mode) -> PopError | None:
    known = modes(tx.conn, [group.group_id])
    if group.group_id not in known:
        return group_not_found(group.name)
    now = known[group.group_id]
    if now is not None and now != mode:
        return of_another_mode(group.name, Mode(now))
    if now is None:
        set_modes(tx, [group._replace(mode=None)], mode)
        if mode is Mode.POP:
            # An operator may have let the unused group begin in some queues only.
            begin_elsewhere(tx, group, {each.topic_id for each in topics_of(tx.conn, group.group_id, _TOPICS_MAX)})
    return None


def _group(row: _GroupRow) -> Group:
    return Group(
        row.group_id,
        Resource(row.namespace, row.name),
        RetryPolicy(row.max_attempts, _from_json(row.intervals_ms), row.fifo_interval_ms),
        ConsumeFrom(row.consume_from),
        HistoryLevel(row.history),
        Mode(row.mode) if row.mode else None,
        row.created_at_ms,
        LiteModel(row.lite) if row.lite else None,
    )


def _as_json(intervals: Intervals) -> str:
    return json.dumps(intervals._asdict() if isinstance(intervals, Exponential) else list(intervals))


def _from_json(text: str) -> Intervals:
    intervals = json.loads(text)
    return Exponential(**intervals) if isinstance(intervals, dict) else tuple(intervals)


# For joins by `group_id`: the groups that are not deleted; and the ids of all groups whose rows are not removed yet.
EXISTING = (
    select(*(consumer_group.c[name] for name in ("group_id", "namespace", "name", "mode", "lite")))
    .where(consumer_group.c.deleted_at_ms.is_(None))
    .subquery("existing_group")
)
EVERY = select(consumer_group.c.group_id).subquery("every_group")


def exists_with(group_id: ColumnElement[int]) -> ColumnElement[bool]:
    """The condition that a group has this id and is not deleted."""
    return exists().where(consumer_group.c.group_id == group_id, consumer_group.c.deleted_at_ms.is_(None))


_TOPICS_OF = RowStatement(
    ConsumedTopic,
    select(*(topics.EXISTING.c[name] for name in ConsumedTopic._fields))
    .where(
        topics.EXISTING.c.topic_id.in_(
            select(progress.CONSUMED.c.topic_id).where(progress.CONSUMED.c.group_id == bindparam("for_group"))
        )
    )
    .order_by(topics.EXISTING.c.namespace, topics.EXISTING.c.name)
    .limit(bindparam("limit")),
)
_GROUPS = rows_parameter("groups", "group_id")
_MODES = (
    select(EXISTING.c.group_id, EXISTING.c.mode)
    .select_from(_GROUPS)
    .join(EXISTING, EXISTING.c.group_id == _GROUPS.c.group_id)
)
_SET_MODES = (
    update(consumer_group)
    .where(consumer_group.c.group_id.in_(select(_GROUPS.c.group_id)), consumer_group.c.mode.is_(None))
    .values(mode=bindparam("new_mode"))
    .returning(consumer_group.c.group_id)
)
_A_DELETED_ONE = lookup.a_deleted_one(consumer_group.c.group_id)
_COLUMNS = [consumer_group.c[name] for name in _GroupRow._fields]
_existing = select(*_COLUMNS).where(consumer_group.c.deleted_at_ms.is_(None))
_GROUP = RowStatement(
    _GroupRow,
    _existing.where(
        consumer_group.c.namespace == bindparam("in_namespace"), consumer_group.c.name == bindparam("with_name")
    ),
)
_GROUPS_BY_ID = RowStatement(
    _GroupRow, select(*_COLUMNS).where(consumer_group.c.group_id.in_(bindparam("group_ids", expanding=True)))
)
_paged = (
    _existing.where(follows(consumer_group))
    .order_by(consumer_group.c.namespace, consumer_group.c.name)
    .limit(bindparam("limit"))
)
_PAGE = RowStatement(_GroupRow, _paged)
_PAGE_OF_ONE = RowStatement(_GroupRow, _paged.where(consumer_group.c.namespace == bindparam("in_namespace")))
_INSERT = RowStatement(_GroupRow, insert(consumer_group).returning(*_COLUMNS))
