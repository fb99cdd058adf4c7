"""Receive: READY → INFLIGHT.

The progress row is the lock: it is taken before the queue is read, so two receives never look at the same stretch. A
filter judges a message once, before its first grant; what it refuses is passed over and so consumed. Messages that
became ready again come first, but take at most half of a batch when new ones wait (a long tail of failures must not
starve the rest).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, bindparam, insert, select, update

from popserver.domain import receipt
from popserver.domain.delivery import Event, State, sources, target
from popserver.domain.errors import PopError
from popserver.domain.filtering import TagFilter
from popserver.domain.group import Group
from popserver.domain.message import Delivery
from popserver.domain.receipt import Receipt
from popserver.domain.retry import Holder
from popserver.domain.topic import OFFSET_BITS, Topic, message_key, offset_of
from popserver.store.given import as_given, given
from popserver.store.history import Moved, record
from popserver.store.messages import COLUMNS, stored_messages
from popserver.store.schema import AnyRow, delivery, in_states, message, progress, queue
from popserver.store.transaction import Transaction

# How far one receive looks for messages its filter wants before it lets others in.
WINDOW_OFFSETS = 1_000


class Receive(NamedTuple):
    """A consumer's wish for messages. `rotation` says at which queue to start."""

    group: Group
    topic: Topic
    wanted: TagFilter
    batch_size: int
    invisible_ms: int
    holder: Holder
    client_id: str
    rotation: int


class Received(NamedTuple):
    """What was granted; `more` says that something may be left: ask again, or wake the next poll."""

    deliveries: list[Delivery]
    more: bool


class _Grant(NamedTuple):
    row: AnyRow
    hold_id: int
    attempt: int


def receive(tx: Transaction, requests: Sequence[Receive]) -> list[Received | PopError]:
    """Grant messages to each request in turn."""
    return [_receive_one(tx, request) for request in requests]


def _receive_one(tx: Transaction, request: Receive) -> Received:
    behind = _queues_with_more(tx, request)
    share = _share_of_ready_again(request, new_waits=bool(behind))
    again = _grant_ready_again(tx, request, share)
    new, left_over = _grant_new(tx, request, behind, request.batch_size - len(again))
    if len(again) == share:
        # New ones may be fewer than the room left for them, or none that the filter wants.
        again += _grant_ready_again(tx, request, request.batch_size - len(again) - len(new))
    granted = again + new
    if granted:
        tx.due(tx.now_ms + request.invisible_ms)
        _record(tx, request, granted)
    return Received(_deliveries(tx, request, granted), left_over or len(granted) == request.batch_size)


def _share_of_ready_again(request: Receive, *, new_waits: bool) -> int:
    if not new_waits:
        return request.batch_size
    # A batch of one cannot be halved: take turns.
    return request.batch_size // 2 or request.rotation % 2


def _queues_with_more(tx: Transaction, request: Receive) -> list[AnyRow]:
    """The queues the group has not read to their end, the rotating first one in front."""
    names = {"group_id": request.group.group_id, "topic_id": request.topic.topic_id}
    rows = tx.conn.execute(_BEHIND, names).all()
    start = request.rotation % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]]


def _grant_ready_again(tx: Transaction, request: Receive, limit: int) -> list[_Grant]:
    if limit == 0:
        return []
    group_id = request.group.group_id
    names = {"group_id": group_id, "topic_id": request.topic.topic_id, "limit": limit}
    attempts = {row.message_key: row.attempt + 1 for row in tx.conn.execute(_READY_AGAIN, names)}
    if not attempts:
        return []
    holds = _new_holds(attempts)
    tx.conn.execute(_GRANT_AGAIN, _grant_parameters(tx, request, holds))
    rows = tx.conn.execute(_BY_KEY, {"wanted_keys": as_given((key,) for key in attempts)})
    return [_Grant(row, holds[row.message_key], attempts[row.message_key]) for row in rows]


def _grant_new(tx: Transaction, request: Receive, behind: Sequence[AnyRow], limit: int) -> tuple[list[_Grant], bool]:
    """Grant up to `limit` messages at the group's progress; says whether some queue was not read to its end."""
    rows: list[AnyRow] = []
    left_over = False
    for place in behind:
        if len(rows) == limit:
            left_over = True
            break
        found, next_offset = _read_on(tx, request, place, limit - len(rows))
        rows += found
        left_over = left_over or next_offset < place.end_offset
        names = {"for_group": request.group.group_id, "for_queue": place.queue_id, "reached": next_offset}
        tx.conn.execute(_MOVE_ON, names)
    if not rows:
        return [], left_over
    holds = _new_holds(row.message_key for row in rows)
    tx.conn.execute(_GRANT_NEW, _grant_parameters(tx, request, holds))
    return [_Grant(row, holds[row.message_key], 1) for row in rows], left_over


def _read_on(tx: Transaction, request: Receive, place: AnyRow, limit: int) -> tuple[list[AnyRow], int]:
    """Wanted messages of one queue from the group's progress on, and the offset reached."""
    start = max(place.next_offset, place.min_offset)
    end = place.end_offset if request.wanted.wants_all else min(place.end_offset, start + WINDOW_OFFSETS)
    bounds = {
        "from_key": message_key(place.queue_id, start),
        "to_key": message_key(place.queue_id, end),
        "limit": limit,
    }
    if request.wanted.wants_all:
        found = list(tx.conn.execute(_NEXT, bounds).all())
    else:
        tags = {"hashes": request.wanted.hashes, "tags": request.wanted.tags}
        found = list(tx.conn.execute(_NEXT_WITH_TAG, bounds | tags).all())
    return found, offset_of(found[-1].message_key) + 1 if len(found) == limit else end


def _grant_parameters(tx: Transaction, request: Receive, holds: dict[int, int]) -> dict[str, Any]:
    group_id = request.group.group_id
    return {
        "holds": as_given((group_id, key, hold_id) for key, hold_id in holds.items()),
        "for_topic": request.topic.topic_id,
        "until_ms": tx.now_ms + request.invisible_ms,
        "by_holder": request.holder.value,
        "by_client": request.client_id,
    }


def _new_holds(keys: Iterable[int]) -> dict[int, int]:
    """A hold id of fresh random bits for each message; its secrecy is what makes a receipt handle a proof."""
    listed = list(keys)
    drawn = struct.unpack(f"{len(listed)}Q", os.urandom(8 * len(listed)))
    # One bit less: the databases' integers are signed.
    return {key: bits >> 1 for key, bits in zip(listed, drawn, strict=True)}


def _record(tx: Transaction, request: Receive, granted: Sequence[_Grant]) -> None:
    moved = (Moved(grant.row.message_key, State.READY, grant.attempt, request.client_id) for grant in granted)
    record(tx, request.group, Event.RECEIVE, moved)


def _deliveries(tx: Transaction, request: Receive, granted: Sequence[_Grant]) -> list[Delivery]:
    until_ms, group_id = tx.now_ms + request.invisible_ms, request.group.group_id
    stored = stored_messages(tx.conn, (grant.row for grant in granted), request.topic)
    return [
        Delivery(
            each,
            receipt.encode(Receipt(group_id, each.message_key, grant.hold_id, until_ms)),
            grant.attempt,
            until_ms,
        )
        for each, grant in zip(stored, granted, strict=True)
    ]


_BEHIND = (
    select(
        progress.c.queue_id,
        progress.c.next_offset,
        queue.c.min_offset,
        queue.c.next_offset.label("end_offset"),
    )
    .select_from(queue)
    .join(progress, progress.c.queue_id == queue.c.queue_id)
    .where(
        queue.c.topic_id == bindparam("topic_id"),
        progress.c.group_id == bindparam("group_id"),
        progress.c.next_offset < queue.c.next_offset,
    )
    # By number, which is by key: their index gives that order, so that other topics' queues are not even looked at.
    .order_by(queue.c.number)
    .with_for_update(of=progress, skip_locked=True)
)
_READY_AGAIN = (
    select(delivery.c.message_key, delivery.c.attempt)
    .where(
        delivery.c.group_id == bindparam("group_id"),
        delivery.c.topic_id == bindparam("topic_id"),
        in_states(delivery.c.state, *sources(Event.RECEIVE)),
    )
    .order_by(delivery.c.visible_at_ms)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
# The group in every row: beside a constant one SQLite would walk all of the group's deliveries, and these for each.
_HOLDS = given("holds", "group_id", "message_key", "hold_id")
_GRANT_AGAIN = (
    update(delivery)
    .where(
        delivery.c.group_id == _HOLDS.c.group_id,
        delivery.c.message_key == _HOLDS.c.message_key,
        in_states(delivery.c.state, *sources(Event.RECEIVE)),
    )
    .values(
        state=target(Event.RECEIVE).value,
        attempt=delivery.c.attempt + 1,
        hold_id=_HOLDS.c.hold_id,
        visible_at_ms=bindparam("until_ms"),
        holder=bindparam("by_holder"),
        client_id=bindparam("by_client"),
    )
)
_GRANT_NEW = insert(delivery).from_select(
    [
        "group_id",
        "message_key",
        "topic_id",
        "state",
        "attempt",
        "hold_id",
        "visible_at_ms",
        "holder",
        "client_id",
    ],
    select(
        _HOLDS.c.group_id,
        _HOLDS.c.message_key,
        bindparam("for_topic", type_=delivery.c.topic_id.type),
        bindparam("granted_state", target(Event.RECEIVE).value, type_=delivery.c.state.type),
        bindparam("first_attempt", 1, type_=delivery.c.attempt.type),
        _HOLDS.c.hold_id,
        bindparam("until_ms", type_=delivery.c.visible_at_ms.type),
        bindparam("by_holder", type_=delivery.c.holder.type),
        bindparam("by_client", type_=delivery.c.client_id.type),
    ),
)
_WANTED_KEYS = given("wanted_keys", "message_key")
_BY_KEY = (
    select(*COLUMNS)
    .where(message.c.message_key.in_(select(_WANTED_KEYS.c.message_key)))
    .order_by(message.c.message_key)
)
_NEXT: Select[Any] = (
    select(*COLUMNS)
    .where(message.c.message_key >= bindparam("from_key"), message.c.message_key < bindparam("to_key"))
    .order_by(message.c.message_key)
    .limit(bindparam("limit"))
)
# The hash first: an integer comparison that settles nearly every row before any text is read.
_NEXT_WITH_TAG = _NEXT.where(
    message.c.tag_hash.in_(bindparam("hashes", expanding=True)), message.c.tag.in_(bindparam("tags", expanding=True))
)
_MOVE_ON = (
    update(progress)
    .where(progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("for_queue"))
    .values(next_offset=bindparam("reached"))
)
assert OFFSET_BITS == 40, "the views spell the mask of 40 bits out"
