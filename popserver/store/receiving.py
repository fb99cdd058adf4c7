"""Receive: READY → INFLIGHT.

The progress row is the lock: it is taken before the queue is read, so two receives never look at the same stretch. A
filter judges a message once, before its first grant; what it refuses is passed over and so consumed. Messages that
became ready again come first, but take at most half of the room when new ones wait (a long tail of failures must not
starve the rest).

Receives that want the same look once, together: what they find is dealt out to them in turn.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice, repeat
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
from popserver.store.message_look import BY_KEY, MessageLook, MessageRow
from popserver.store.messages import stored_messages
from popserver.store.schema import AnyRow, delivery, in_states, message, progress, queue
from popserver.store.transaction import STEP_ROWS_MAX, Transaction

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


class _Wish(NamedTuple):
    """What receives that want the same ask for together."""

    group: Group
    topic: Topic
    wanted: TagFilter
    room: int
    rotation: int


class _Found(NamedTuple):
    """A message to grant; `attempt` will be its delivery attempt."""

    row: MessageRow
    attempt: int


class _Grant(NamedTuple):
    found: _Found
    receipt: Receipt
    request: Receive


def receive(tx: Transaction, requests: Sequence[Receive]) -> list[Received | PopError]:
    """Grant messages to the requests."""
    answers: dict[int, Received | PopError] = {}
    for indexes in _alike(requests):
        answers |= zip(indexes, _receive_together(tx, [requests[index] for index in indexes]), strict=True)
    return [answers[index] for index in range(len(requests))]


def _alike(requests: Sequence[Receive]) -> Iterator[list[int]]:
    """Which requests want the same, as many as one step may serve."""
    alike: dict[tuple[int, int, TagFilter], list[int]] = {}
    for index, request in enumerate(requests):
        alike.setdefault((request.group.group_id, request.topic.topic_id, request.wanted), []).append(index)
    for indexes in alike.values():
        yield from _in_steps(indexes, [requests[index].batch_size for index in indexes])


def _in_steps(indexes: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    step: list[int] = []
    room = STEP_ROWS_MAX
    for index, size in zip(indexes, sizes, strict=True):
        if step and size > room:
            yield step
            step, room = [], STEP_ROWS_MAX
        step.append(index)
        room -= size
    yield step


def _receive_together(tx: Transaction, several: Sequence[Receive]) -> list[Received]:
    first = several[0]
    room = sum(request.batch_size for request in several)
    wish = _Wish(first.group, first.topic, first.wanted, room, first.rotation)
    behind = _queues_with_more(tx, wish)
    ready_again = _ready_again(tx, wish)
    reserved = min(len(ready_again), _share_of_ready_again(wish, new_waits=bool(behind)))
    new, left_over = _new(tx, wish, behind, wish.room - reserved)
    # New ones may be fewer than the room left for them, or none that the filter wants.
    again = _load(tx, ready_again[: wish.room - len(new)])
    grants = _deal(tx, several, again + new)
    _grant(tx, wish, grants, len(again))
    return _answers(tx, wish, several, grants, left_over=left_over)


def _share_of_ready_again(wish: _Wish, *, new_waits: bool) -> int:
    if not new_waits:
        return wish.room
    # A room of one cannot be halved: take turns.
    return wish.room // 2 or wish.rotation % 2


def _queues_with_more(tx: Transaction, wish: _Wish) -> list[AnyRow]:
    """The queues the group has not read to their end, the rotating first one in front."""
    names = {"group_id": wish.group.group_id, "topic_id": wish.topic.topic_id}
    rows = tx.conn.execute(_BEHIND, names).all()
    start = wish.rotation % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]]


def _ready_again(tx: Transaction, wish: _Wish) -> list[AnyRow]:
    """Keys and attempts of what is ready again, longest first."""
    names = {"group_id": wish.group.group_id, "topic_id": wish.topic.topic_id, "limit": wish.room}
    return list(tx.conn.execute(_READY_AGAIN, names))


def _load(tx: Transaction, ready_again: Sequence[AnyRow]) -> list[_Found]:
    if not ready_again:
        return []
    attempts = {row.message_key: row.attempt + 1 for row in ready_again}
    rows = BY_KEY.rows(tx.conn, {"keys": as_given((key,) for key in attempts)})
    return [_Found(row, attempts[row.message_key]) for row in rows]


def _new(tx: Transaction, wish: _Wish, behind: Sequence[AnyRow], limit: int) -> tuple[list[_Found], bool]:
    """Up to `limit` messages at the group's progress, which moves on; says whether a queue was not read to its end."""
    rows: list[MessageRow] = []
    left_over = False
    for place in behind:
        if len(rows) == limit:
            left_over = True
            break
        found, next_offset = _read_on(tx, wish, place, limit - len(rows))
        rows += found
        left_over = left_over or next_offset < place.end_offset
        names = {"for_group": wish.group.group_id, "for_queue": place.queue_id, "reached": next_offset}
        tx.conn.execute(_MOVE_ON, names)
    return [_Found(row, 1) for row in rows], left_over


def _read_on(tx: Transaction, wish: _Wish, place: AnyRow, limit: int) -> tuple[list[MessageRow], int]:
    """Wanted messages of one queue from the group's progress on, and the offset reached."""
    start = max(place.next_offset, place.min_offset)
    end = place.end_offset if wish.wanted.wants_all else min(place.end_offset, start + WINDOW_OFFSETS)
    bounds = {
        "from_key": message_key(place.queue_id, start),
        "to_key": message_key(place.queue_id, end),
        "limit": limit,
    }
    if wish.wanted.wants_all:
        found = _NEXT.rows(tx.conn, bounds)
    else:
        tags = {"hashes": wish.wanted.hashes, "tags": wish.wanted.tags}
        found = _NEXT_WITH_TAG.rows(tx.conn, bounds | tags)
    return found, offset_of(found[-1].message_key) + 1 if len(found) == limit else end


def _deal(tx: Transaction, several: Sequence[Receive], found: Sequence[_Found]) -> list[_Grant]:
    """Who gets what: each request in turn as many as it asked for, with a fresh hold on each."""
    takers = chain.from_iterable(repeat(request, request.batch_size) for request in several)
    return [
        _Grant(
            each, Receipt(taker.group.group_id, each.row.message_key, hold_id, tx.now_ms + taker.invisible_ms), taker
        )
        for each, hold_id, taker in zip(found, _new_holds(len(found)), takers, strict=False)
    ]


def _new_holds(count: int) -> list[int]:
    """Hold ids of fresh random bits; their secrecy is what makes a receipt handle a proof."""
    # One bit less than 64: the databases' integers are signed.
    return [bits >> 1 for bits in struct.unpack(f"{count}Q", os.urandom(8 * count))]


def _grant(tx: Transaction, wish: _Wish, grants: Sequence[_Grant], again: int) -> None:
    """Write the holds: the first `again` deliveries have a row already."""
    if again:
        tx.conn.execute(_GRANT_AGAIN, {"holds": _as_holds(grants[:again])})
    if grants[again:]:
        tx.conn.execute(_GRANT_NEW, {"holds": _as_holds(grants[again:]), "for_topic": wish.topic.topic_id})
    if grants:
        tx.due(min(grant.receipt.ends_at_ms for grant in grants))
    for client_id, several in groupby(grants, key=lambda grant: grant.request.client_id):
        moved = (Moved(each.receipt.message_key, State.READY, each.found.attempt, client_id) for each in several)
        record(tx, wish.group, Event.RECEIVE, moved)


def _as_holds(grants: Sequence[_Grant]) -> str:
    return as_given((*grant.receipt, grant.request.holder.value, grant.request.client_id) for grant in grants)


def _answers(
    tx: Transaction, wish: _Wish, several: Sequence[Receive], grants: Sequence[_Grant], *, left_over: bool
) -> list[Received]:
    stored = stored_messages(tx.conn, (grant.found.row for grant in grants), wish.topic)
    granted = iter(
        [
            Delivery(each, receipt.encode(grant.receipt), grant.found.attempt, grant.receipt.ends_at_ms)
            for each, grant in zip(stored, grants, strict=True)
        ]
    )
    dealt = [list(islice(granted, request.batch_size)) for request in several]
    return [
        Received(mine, left_over or len(mine) == request.batch_size)
        for mine, request in zip(dealt, several, strict=True)
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
_HOLDS = given("holds", "group_id", "message_key", "hold_id", "ends_at_ms", text=("holder", "client_id"))
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
        visible_at_ms=_HOLDS.c.ends_at_ms,
        holder=_HOLDS.c.holder,
        client_id=_HOLDS.c.client_id,
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
        _HOLDS.c.ends_at_ms,
        _HOLDS.c.holder,
        _HOLDS.c.client_id,
    ),
)


def _next(every: Select[Any]) -> Select[Any]:
    inside = message.c.message_key >= bindparam("from_key"), message.c.message_key < bindparam("to_key")
    return every.where(*inside).order_by(message.c.message_key).limit(bindparam("limit"))


# The hash first: an integer comparison that settles nearly every row before any text is read.
_WITH_TAG = (
    message.c.tag_hash.in_(bindparam("hashes", expanding=True)),
    message.c.tag.in_(bindparam("tags", expanding=True)),
)
_NEXT = MessageLook(_next)
_NEXT_WITH_TAG = MessageLook(lambda every: _next(every).where(*_WITH_TAG))
_MOVE_ON = (
    update(progress)
    .where(progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("for_queue"))
    .values(next_offset=bindparam("reached"))
)
assert OFFSET_BITS == 40, "the views spell the mask of 40 bits out"
