"""Changes of subscriptions to lite topics.

A change of a subscription also changes the positions of its lite topics: each names the client that gets it. For that
the transaction has locked the group's progress, as for a receive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

from sqlalchemy import bindparam, select

from popserver.catalog import groups, topics
from popserver.catalog.lookup import group_not_found, topic_not_found
from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.database.notifications import LITE, LITE_CLIENTS, LITE_LOST, LITE_SHARED, Invalidation
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out_each
from popserver.engine.wakeups import PollKey
from popserver.fifo import moving_positions
from popserver.lite import offsets
from popserver.lite.offsets import OffsetOption, OffsetPolicy
from popserver.members import lite_subscriptions as subscribers
from popserver.members.lite_subscriptions import Subscriber
from popserver.model.errors import LiteSubscriptionQuotaExceeded, PopError
from popserver.model.group import Group, LiteModel
from popserver.model.retry import SECOND_MS
from popserver.model.topic import Topic, queue_of_group

LITE_SUBSCRIPTIONS_MAX = 2_000  # of a client, as in RocketMQ
# A client names its lite topics every 30 s. A client that is silent for so long counts as gone.
SILENT_MS = 90 * SECOND_MS
# Lost lite topics of a client in one notification to other servers, which has a limit.
NOTICES_MAX = 50


class Synced(NamedTuple):
    """The lite topics that a client got and lost, and whether other clients share some of the new ones."""

    added: frozenset[str]
    removed: frozenset[str]
    shares: bool


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _OfClient(Request[R]):
    group: Group
    topic: Topic
    client_id: str

    def locks(self) -> Iterable[Locks]:
        return locks_of(GroupQueueKey(self.group.group_id, each.queue_id) for each in self.topic.queues)


@dataclass(frozen=True, slots=True)
class SyncLite(_OfClient[Synced]):
    """A client adds lite topics and removes others; with `is_complete` it removes all that it does not add."""

    phase: ClassVar = Phase.SYNC_LITE
    add: Collection[str]
    remove: Collection[str] = ()
    is_complete: bool = False
    offset: OffsetOption | None = None


@dataclass(frozen=True, slots=True)
class LeaveLite(_OfClient[bool]):
    """End all subscriptions of a client in one topic, because it is gone.

    The result is false if it has named its lite topics after `unless_synced_after_ms`: then it is not gone.
    """

    phase: ClassVar = Phase.LEAVE_LITE
    unless_synced_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TouchLite(Request[bool]):
    """Note that a client has named the lite topics that it has already. The result is false if it has none any more."""

    phase: ClassVar = Phase.TOUCH_LITE
    key: PollKey


@carries_out_each(TouchLite)
def touch(tx: Transaction, request: TouchLite) -> bool:
    """Store when the client named its lite topics."""
    return subscribers.sync_again(tx.conn, request.key, tx.now_ms)


@carries_out_each(LeaveLite)
def leave(tx: Transaction, request: LeaveLite) -> bool:
    """Remove the subscriptions of clients that are gone."""
    key = _key(request)
    if request.unless_synced_after_ms is not None:
        synced_ms = subscribers.synced_at_ms(tx.conn, key)
        if synced_ms is not None and synced_ms > request.unless_synced_after_ms:
            return False
    _unsubscribe(tx, request, subscribers.lite_topics_of(tx.conn, key))
    subscribers.end_client(tx.conn, key)
    return True


@carries_out_each(SyncLite)
def sync(tx: Transaction, request: SyncLite) -> Synced | PopError:
    """Change the subscriptions of each request, in sequence."""
    if refusal := _deleted(tx, request):
        return refusal
    key, named = _key(request), set(request.add) | set(request.remove)
    if request.is_complete:
        current = subscribers.lite_topics_of(tx.conn, key)
    else:
        current = subscribers.those_of(tx.conn, key, named)
    new = set(request.add) - current
    removed = current - set(request.add) if request.is_complete else current & set(request.remove)
    if new:
        held = len(current) if request.is_complete else subscribers.count_of(tx.conn, key)
        count = held + len(new) - len(removed)
        if count > LITE_SUBSCRIPTIONS_MAX:
            return LiteSubscriptionQuotaExceeded(
                f"client '{request.client_id[:64]}' would subscribe to {count} lite topics of '{request.topic.name}',"
                f" at most {LITE_SUBSCRIPTIONS_MAX} are allowed; unsubscribe from some, or use more clients"
            )
    option = request.offset
    if option is not None and option.policy is OffsetPolicy.LAST:
        option = None
    if option is not None and (refusal := offsets.lock(tx, request.group, request.topic, sorted(new))):
        return refusal
    _unsubscribe(tx, request, removed)
    others = subscribers.others_of(tx.conn, key, new)
    if others and request.group.lite is LiteModel.EXCLUSIVE:
        new -= _take_over(tx, request, others)
    if new:
        _subscribe(tx, request, new)
        if option is not None:
            offsets.move(tx, request.group, request.topic, sorted(new), option)
        tx.invalidate(subscribers.changed(LITE, key))
    shares = bool(others) and request.group.lite is LiteModel.SHARED
    for client_id in {each.client_id for each in others}:
        tx.invalidate(subscribers.changed(LITE_SHARED, key._replace(client_id=client_id)))
    if subscribers.keep_client(tx.conn, key, tx.now_ms):
        tx.expect(LITE_CLIENTS, tx.now_ms + SILENT_MS)
    return Synced(frozenset(new), frozenset(removed), shares)


def _deleted(tx: Transaction, request: SyncLite) -> PopError | None:
    """A refusal if the group or the topic was deleted meanwhile: the purge would not see new subscriptions."""
    found = tx.conn.execute(_EXISTING, {"for_group": request.group.group_id, "for_topic": request.topic.topic_id}).one()
    if not found.group_is_there:
        return group_not_found(request.group.name)
    return None if found.topic_is_there else topic_not_found(request.topic.name)


def _take_over(tx: Transaction, request: SyncLite, others: Sequence[Subscriber]) -> set[str]:
    """Take lite topics from other clients. Returns those that the client does not get. Notifies clients that lose some.

    A client that adds lite topics takes them. A client that repeats its complete set may not have read yet that it lost
    some: it gets only those that no other client has.
    """
    if request.is_complete:
        refused = {name for _, name in others}
        _notify_lost(tx, request.client_id, refused)
        return refused
    by_client: dict[str, list[str]] = {}
    for client_id, lite_topic in others:
        by_client.setdefault(client_id, []).append(lite_topic)
    for client_id, lost in by_client.items():
        subscribers.remove(tx.conn, _key(request)._replace(client_id=client_id), lost)
        _notify_lost(tx, client_id, lost)
    return set()


def _notify_lost(tx: Transaction, client_id: str, lost: Iterable[str]) -> None:
    """Let the server that has the client's session notify it after the commit. Of further lite topics it is notified
    when it names its complete set again."""
    tx.invalidate(Invalidation(LITE_LOST, ",".join(sorted(lost)[:NOTICES_MAX]), client_id))


def _subscribe(tx: Transaction, request: SyncLite, new: Collection[str]) -> None:
    queue_ids = {name: queue_of_group(request.topic, name).queue_id for name in new}
    subscribers.add(tx.conn, _key(request), queue_ids)
    _set_subscribers(tx, request, new)


def _unsubscribe(tx: Transaction, request: _OfClient[R], removed: Collection[str]) -> None:
    if not removed:
        return
    subscribers.remove(tx.conn, _key(request), removed)
    _set_subscribers(tx, request, removed)
    tx.invalidate(subscribers.changed(LITE, _key(request)))


def _set_subscribers(tx: Transaction, request: _OfClient[R], lite_topics: Collection[str]) -> None:
    """Write into the positions of these lite topics which client gets them now."""
    rows = [
        (request.group.group_id, queue_of_group(request.topic, name).queue_id, name) for name in sorted(lite_topics)
    ]
    moving_positions.set_subscribers(tx.conn, rows)
    tx.make_ready(request.topic.topic_id, lite_topics)


def _key(request: _OfClient[R]) -> PollKey:
    return PollKey(request.group.group_id, request.topic.topic_id, request.client_id)


_EXISTING = select(
    groups.exists_with(bindparam("for_group")).label("group_is_there"),
    topics.exists_with(bindparam("for_topic")).label("topic_is_there"),
)
