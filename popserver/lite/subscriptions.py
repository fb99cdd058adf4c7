"""Statements about who subscribes to which lite topics.

A change of a subscription also changes the rows of the lite topics that are open or locked: each names the client that
gets it. The progress rows of the group are locked for that, as for a receive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import BigInteger, Connection, Text, bindparam, delete, func, insert, select, tuple_, update

from popserver.catalog.lookup import group_not_found, topic_not_found
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.notifications import LITE, LITE_CLIENTS, LITE_LOST, LITE_SHARED, Invalidation
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import consumer_group, lite_client, lite_subscription
from popserver.database.schema import message_group_progress as behind
from popserver.database.schema import topic as topic_table
from popserver.delivery.message_groups import GroupQueueKey, locks_of, subscriber_of
from popserver.engine.transaction import STEP_ROWS_MAX, Locks, Phase, Request, Transaction, carries_out
from popserver.engine.wakeups import PollKey
from popserver.lite.offsets import OffsetOption, move
from popserver.model.errors import LiteSubscriptionQuotaExceeded, PopError
from popserver.model.group import Group, LiteModel
from popserver.model.retry import SECOND_MS
from popserver.model.topic import Topic, queue_of_group

LITE_SUBSCRIPTIONS_MAX = 2_000  # of a client, as in RocketMQ
# A client names its lite topics each 30 s. One that has not for this long is gone.
SILENT_MS = 90 * SECOND_MS
# Of a client in a transaction, because the notification to other servers has a limit.
NOTICES_MAX = 50


class Synced(NamedTuple):
    """The lite topics that the client has more and less, and whether other clients share some of the new ones."""

    added: frozenset[str]
    removed: frozenset[str]
    shares: bool


@dataclass(frozen=True, slots=True)
class SyncLite(Request[Synced]):
    """A client adds lite topics and removes others; with `is_complete` it removes all that it does not add."""

    phase: ClassVar = Phase.SYNC_LITE
    group: Group
    topic: Topic
    client_id: str
    add: Collection[str]
    remove: Collection[str] = ()
    is_complete: bool = False
    offset: OffsetOption | None = None

    def locks(self) -> Iterable[Locks]:
        return locks_of(GroupQueueKey(self.group.group_id, each.queue_id) for each in self.topic.queues)


@dataclass(frozen=True, slots=True)
class LeaveLite(Request[bool]):
    """A client is gone, with all lite topics of one topic that it subscribed to.

    The result is false if it has named its lite topics after `unless_synced_after_ms`, so it is not gone.
    """

    phase: ClassVar = Phase.LEAVE_LITE
    group: Group
    topic: Topic
    client_id: str
    unless_synced_after_ms: int | None = None

    def locks(self) -> Iterable[Locks]:
        return locks_of(GroupQueueKey(self.group.group_id, each.queue_id) for each in self.topic.queues)


@dataclass(frozen=True, slots=True)
class TouchLite(Request[bool]):
    """A client has named the lite topics that it has already. The result is false if it is gone."""

    phase: ClassVar = Phase.TOUCH_LITE
    group_id: int
    topic_id: int
    client_id: str


@carries_out(SyncLite)
def sync(tx: Transaction, requests: Sequence[SyncLite]) -> list[Synced | PopError]:
    """Change the subscriptions of each request, in sequence."""
    return [_sync(tx, request) for request in requests]


@carries_out(TouchLite)
def touch(tx: Transaction, requests: Sequence[TouchLite]) -> list[bool]:
    """Note that the clients are there."""
    return [bool(tx.conn.execute(_SEEN_AGAIN, {**_named(each), "now_ms": tx.now_ms}).rowcount) for each in requests]


@carries_out(LeaveLite)
def leave(tx: Transaction, requests: Sequence[LeaveLite]) -> list[bool]:
    """Remove the subscriptions of clients that are gone."""
    return [_leave(tx, request) for request in requests]


def _leave(tx: Transaction, request: LeaveLite) -> bool:
    names = _of_client(request)
    if request.unless_synced_after_ms is not None:
        synced_ms = tx.conn.execute(_SYNCED_AT, names).scalar()
        if synced_ms is not None and synced_ms > request.unless_synced_after_ms:
            return False
    _unsubscribe(tx, request, lite_topics_of(tx.conn, _key(request)))
    tx.conn.execute(_END_CLIENT, names)
    return True


def lite_topics_of(conn: Connection, key: PollKey) -> set[str]:
    """The lite topics that the client subscribes to."""
    return set(conn.execute(_CURRENT, _named(key)).scalars())


def is_shared(conn: Connection, key: PollKey) -> bool:
    """Whether another client of the group subscribes to one of the client's lite topics."""
    return conn.execute(_SHARED, _named(key)).first() is not None


class SilentClient(NamedTuple):
    """A client that has not named its lite topics for too long."""

    group_id: int
    topic_id: int
    client_id: str
    synced_at_ms: int


def silent_clients(conn: Connection, before_ms: int) -> list[SilentClient]:
    """Up to 100 clients that have not named their lite topics since that time, the longest silent first."""
    return _SILENT.rows(conn, {"before_ms": before_ms})


def longest_silent_ms(conn: Connection) -> int | None:
    """When the client that is silent for longest has named its lite topics; None without clients."""
    found: int | None = conn.execute(_LONGEST_SILENT).scalar()
    return found


def _sync(tx: Transaction, request: SyncLite) -> Synced | PopError:
    if refusal := _gone(tx, request):
        return refusal
    named = set(request.add) | set(request.remove)
    current = lite_topics_of(tx.conn, _key(request)) if request.is_complete else _those_of(tx, request, named)
    new = set(request.add) - current
    gone = current - set(request.add) if request.is_complete else current & set(request.remove)
    if new:
        held = len(current) if request.is_complete else tx.conn.execute(_COUNT, _of_client(request)).scalar_one()
        count = held + len(new) - len(gone)
        if count > LITE_SUBSCRIPTIONS_MAX:
            return LiteSubscriptionQuotaExceeded(
                f"client '{request.client_id[:64]}' would subscribe to {count} lite topics of '{request.topic.name}',"
                f" at most {LITE_SUBSCRIPTIONS_MAX} are allowed; unsubscribe from some, or use more clients"
            )
    _unsubscribe(tx, request, gone)
    others = _owners(tx, request, new)
    if others and request.group.lite is LiteModel.EXCLUSIVE:
        new -= _take_over(tx, request, others)
    if new:
        _subscribe(tx, request, new)
        if request.offset is not None:
            move(tx, request.group, request.topic, sorted(new), request.offset)
        tx.invalidate(_changed(LITE, request, request.client_id))
    shares = bool(others) and request.group.lite is LiteModel.SHARED
    for client_id in {client_id for client_id, _ in others}:
        tx.invalidate(_changed(LITE_SHARED, request, client_id))
    _note(tx, request)
    return Synced(frozenset(new), frozenset(gone), shares)


def _note(tx: Transaction, request: SyncLite) -> None:
    """Note that the client is there, if it has lite topics: nothing is kept of others, whose ids may be made up."""
    names = _of_client(request)
    if tx.conn.execute(_CURRENT.limit(1), names).first() is None:
        tx.conn.execute(_END_CLIENT, names)
        return
    tx.conn.execute(_SEEN.of(tx.conn), {**names, "now_ms": tx.now_ms})
    tx.expect(LITE_CLIENTS, tx.now_ms + SILENT_MS)


def _gone(tx: Transaction, request: SyncLite) -> PopError | None:
    """The group or the topic may have been deleted a moment ago. The purge removes what was there before."""
    there = tx.conn.execute(_THERE, _of_client(request)).one()
    if not there.group_is_there:
        return group_not_found(request.group.name)
    return None if there.topic_is_there else topic_not_found(request.topic.name)


def _those_of(tx: Transaction, request: SyncLite, named: Collection[str]) -> set[str]:
    """Which of these lite topics the client has already."""
    return {
        name
        for some in _steps(sorted(named))
        for name in tx.conn.execute(_WHICH, {**_of_client(request), "names": encode_rows(some)}).scalars()
    }


def _owners(tx: Transaction, request: SyncLite, new: Collection[str]) -> list[tuple[str, str]]:
    """The other clients that have these lite topics: (client id, lite topic)."""
    return [
        (row.client_id, row.lite_topic)
        for some in _steps(sorted(new))
        for row in _OWNERS.rows(tx.conn, {**_of_client(request), "names": encode_rows(some)})
    ]


def _take_over(tx: Transaction, request: SyncLite, others: Sequence[tuple[str, str]]) -> set[str]:
    """Take lite topics from other clients. Returns those that the client does not get. Who has none is told.

    A client that adds some takes them. One that repeats its complete set has perhaps not heard that it lost some: it
    gets only those that nobody has.
    """
    if request.is_complete:
        refused = {name for _, name in others}
        _tell(tx, request.client_id, refused)
        return refused
    by_client: dict[str, list[str]] = {}
    for client_id, lite_topic in others:
        by_client.setdefault(client_id, []).append(lite_topic)
    for client_id, lost in by_client.items():
        for some in _steps(sorted(lost)):
            tx.conn.execute(_REMOVE, {**_of_client(request), "for_client": client_id, "names": encode_rows(some)})
        _tell(tx, client_id, lost)
    return set()


def _tell(tx: Transaction, client_id: str, lost: Iterable[str]) -> None:
    """After the commit, the server that has the client's session tells it. It will be told of more when it names its
    complete set again."""
    tx.invalidate(Invalidation(LITE_LOST, ",".join(sorted(lost)[:NOTICES_MAX]), client_id))


def _subscribe(tx: Transaction, request: SyncLite, new: Collection[str]) -> None:
    group_id, topic_id = request.group.group_id, request.topic.topic_id
    for some in _steps(sorted(new)):
        rows = [
            {
                "group_id": group_id,
                "topic_id": topic_id,
                "lite_topic": name,
                "client_id": request.client_id,
                "queue_id": queue_of_group(request.topic, name).queue_id,
            }
            for (name,) in some
        ]
        tx.conn.execute(insert(lite_subscription), rows)
    _name_again(tx, request, new)


def _unsubscribe(tx: Transaction, request: SyncLite | LeaveLite, gone: Collection[str]) -> None:
    if not gone:
        return
    for some in _steps(sorted(gone)):
        tx.conn.execute(_REMOVE, {**_of_client(request), "names": encode_rows(some)})
    _name_again(tx, request, gone)
    tx.invalidate(_changed(LITE, request, request.client_id))


def _name_again(tx: Transaction, request: SyncLite | LeaveLite, lite_topics: Collection[str]) -> None:
    """Write into the rows of these lite topics who gets them now."""
    rows = [
        (request.group.group_id, queue_of_group(request.topic, name).queue_id, name) for name in sorted(lite_topics)
    ]
    for start in range(0, len(rows), STEP_ROWS_MAX):
        tx.conn.execute(_NAME_AGAIN, {"changed": encode_rows(rows[start : start + STEP_ROWS_MAX])})
    tx.make_ready(request.topic.topic_id, lite_topics)


def _steps(names: Sequence[str]) -> Iterable[list[tuple[str]]]:
    for start in range(0, len(names), STEP_ROWS_MAX):
        yield [(name,) for name in names[start : start + STEP_ROWS_MAX]]


def _key(request: SyncLite | LeaveLite) -> PollKey:
    return PollKey(request.group.group_id, request.topic.topic_id, request.client_id)


def _of_client(request: SyncLite | LeaveLite) -> dict[str, Any]:
    return _named(_key(request))


def _named(key: PollKey | TouchLite) -> dict[str, Any]:
    return {"for_group": key.group_id, "for_topic": key.topic_id, "for_client": key.client_id}


def _changed(kind: str, request: SyncLite | LeaveLite, client_id: str) -> Invalidation:
    return Invalidation(kind, f"{request.group.group_id}/{request.topic.topic_id}", client_id)


_THERE = select(
    select(consumer_group.c.group_id)
    .where(consumer_group.c.group_id == bindparam("for_group"), consumer_group.c.deleted_at_ms.is_(None))
    .exists()
    .label("group_is_there"),
    select(topic_table.c.topic_id)
    .where(topic_table.c.topic_id == bindparam("for_topic"), topic_table.c.deleted_at_ms.is_(None))
    .exists()
    .label("topic_is_there"),
)


class _OwnerRow(NamedTuple):
    client_id: str
    lite_topic: str


_OF_TOPIC = (
    lite_subscription.c.group_id == bindparam("for_group"),
    lite_subscription.c.topic_id == bindparam("for_topic"),
)
_OF_CLIENT = (*_OF_TOPIC, lite_subscription.c.client_id == bindparam("for_client"))
_NAMES = rows_parameter("names", text=("lite_topic",))
_IS_NAMED = lite_subscription.c.lite_topic.in_(select(_NAMES.c.lite_topic))
_COUNT = select(func.count()).select_from(lite_subscription).where(*_OF_CLIENT)
_WHICH = select(lite_subscription.c.lite_topic).where(*_OF_CLIENT, _IS_NAMED)
_CURRENT = select(lite_subscription.c.lite_topic).where(*_OF_CLIENT)
_OWNERS = RowStatement(
    _OwnerRow,
    select(lite_subscription.c.client_id, lite_subscription.c.lite_topic)
    .where(*_OF_TOPIC, lite_subscription.c.client_id != bindparam("for_client"), _IS_NAMED)
    .order_by(lite_subscription.c.lite_topic),
)
_REMOVE = delete(lite_subscription).where(*_OF_CLIENT, _IS_NAMED)
_other = lite_subscription.alias("other")
_SHARED = (
    select(_other.c.lite_topic)
    .select_from(lite_subscription)
    .join(
        _other,
        (_other.c.group_id == lite_subscription.c.group_id)
        & (_other.c.topic_id == lite_subscription.c.topic_id)
        & (_other.c.lite_topic == lite_subscription.c.lite_topic),
    )
    .where(*_OF_CLIENT, _other.c.client_id != lite_subscription.c.client_id)
    .limit(1)
)
_CHANGED = rows_parameter("changed", "group_id", "queue_id", text=("message_group",))
_NAME_AGAIN = (
    update(behind)
    .where(
        tuple_(behind.c.group_id, behind.c.queue_id, behind.c.message_group).in_(
            select(_CHANGED.c.group_id, _CHANGED.c.queue_id, _CHANGED.c.message_group)
        )
    )
    .values(subscriber=subscriber_of(behind.c.group_id, behind.c.topic_id, behind.c.message_group).element)
)
_CLIENT = (
    lite_client.c.client_id == bindparam("for_client"),
    lite_client.c.group_id == bindparam("for_group"),
    lite_client.c.topic_id == bindparam("for_topic"),
)
_SYNCED_AT = select(lite_client.c.synced_at_ms).where(*_CLIENT)
_SEEN_AGAIN = update(lite_client).where(*_CLIENT).values(synced_at_ms=bindparam("now_ms"))
_END_CLIENT = delete(lite_client).where(*_CLIENT)
_LONGEST_SILENT = select(func.min(lite_client.c.synced_at_ms))
_SILENT = RowStatement(
    SilentClient,
    select(lite_client.c.group_id, lite_client.c.topic_id, lite_client.c.client_id, lite_client.c.synced_at_ms)
    .where(lite_client.c.synced_at_ms < bindparam("before_ms"))
    .order_by(lite_client.c.synced_at_ms)
    .limit(100),
)


def _seen(dialect: Dialect) -> Any:
    new = dialect.upsert(lite_client).values(
        group_id=bindparam("for_group", type_=BigInteger),
        topic_id=bindparam("for_topic", type_=BigInteger),
        client_id=bindparam("for_client", type_=Text),
        synced_at_ms=bindparam("now_ms", type_=BigInteger),
    )
    return new.on_conflict_do_update(
        index_elements=[lite_client.c.client_id, lite_client.c.group_id, lite_client.c.topic_id],
        set_={"synced_at_ms": new.excluded.synced_at_ms},
    )


_SEEN = PerDialect(_seen)
