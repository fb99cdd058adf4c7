"""Reading on: new messages, from the group's progress in each queue.

The progress row is the lock: it is taken before the queue is read, so two receives never look at the same stretch. What
a SQL filter says of the messages was asked before, without the lock (`receiving.survey`): here is granted what it
wants. A filter judges a message once, before its first grant; what it refuses is passed over and so consumed. A message
whose message group is locked is passed over too, but left behind: the group gets a row of its own (`leave`), from which
it is taken up again when it opens (`receiving.message_groups`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    and_,
    bindparam,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import delivery, message, progress, queue
from popserver.database.schema import message_group_progress as behind
from popserver.delivery.message_groups import Member
from popserver.engine.transaction import Transaction
from popserver.filters import SqlFilter, TagFilter
from popserver.messages.ranges import INSIDE, WINDOW_OFFSETS, WITH_TAG, narrowed, of_tags
from popserver.messages.read import MessageQuery, MessageRow
from popserver.model.names import owner_of
from popserver.model.states import State
from popserver.model.topic import message_key, offset_of
from popserver.receiving.batch import Found, PlaceRow, Wish

# Of so many looks at a topic's priorities one begins anywhere: what is urgent must not starve the rest.
FAIR_EVERY = 8
# So many offsets one look passes over for messages that its filter wants, in all queues together.
_LOOK_OFFSETS = 4 * WINDOW_OFFSETS
# Some may be in locked message groups: so many that a SQL filter wants are looked at for each that there is room for.
_FREE_OF_WANTED = 4
# Beside open message groups it looks at so many offsets for each message that there is room for, and at least so many.
_BESIDE_RUNS = 2
_BESIDE_RUNS_MIN = 32


class Scanned(NamedTuple):
    """New messages, and whether a queue was not read to its end."""

    found: list[Found]
    left_over: bool


def lock_places(tx: Transaction, wish: Wish) -> list[PlaceRow]:
    """The queues where something may wait for the group and no other server reads, the first to read in front."""
    return _in_turn(wish, (_PLACES_IN_ORDER if takes_groups(wish) else _PLACES).rows(tx.conn, wish.names))


def places_of(conn: Connection, wish: Wish) -> list[PlaceRow]:
    """The same of all queues, to be looked at and not to be read: nothing is locked."""
    return _in_turn(wish, (_SEEN_IN_ORDER if takes_groups(wish) else _SEEN).rows(conn, wish.names))


def _in_turn(wish: Wish, rows: Sequence[PlaceRow]) -> list[PlaceRow]:
    if is_by_priority(wish):
        return list(reversed(rows))
    start = wish.rotation % len(rows) if rows else 0
    return [*rows[start:], *rows[:start]]


def is_by_priority(wish: Wish) -> bool:
    """Whether the places come with the most urgent first."""
    return wish.topic.has_priorities and wish.rotation % FAIR_EVERY != 0


def is_more(tx: Transaction, wish: Wish) -> bool:
    """Whether something waits for the group after all, hidden from it by another server's lock."""
    return tx.conn.execute(_IS_MORE_IN_ORDER if takes_groups(wish) else _IS_MORE, wish.names).first() is not None


def read_on(tx: Transaction, wish: Wish, places: Sequence[PlaceRow], limit: int, *, beside_runs: bool) -> Scanned:
    """Up to `limit` messages at the group's progress, which moves on.

    `beside_runs`: open message groups have something to give. Then it does not look far: where groups are locked, the
    less is passed over the less is left behind, each to be found again by its group.
    """
    found: list[Found] = []
    left_over = False
    window = max(_BESIDE_RUNS_MIN, _BESIDE_RUNS * limit) if beside_runs else _LOOK_OFFSETS
    for place in places:
        # On Postgres the end may be older than the locked row beside it: never move back to it.
        if place.next_offset >= place.end_offset:
            continue
        if len(found) == limit or window <= 0:
            left_over = True
            break
        rows, next_offset = _read_on(tx, wish, place, limit - len(found), min(window, WINDOW_OFFSETS))
        if next_offset == place.next_offset and is_by_priority(wish):
            # The filter was not asked about what is urgent: less urgent messages must not go before it.
            left_over = True
            break
        if takes_groups(wish) or not wish.wanted.wants_all:
            window -= next_offset - place.next_offset + _cost_of_asking(wish)
        found += [_found(wish, place, row) for row in _not_in_hand(tx, wish, rows)]
        left_over = left_over or next_offset < place.end_offset
        if next_offset > place.next_offset:
            names = {"for_group": wish.group.group_id, "for_queue": place.queue_id, "reached": next_offset}
            tx.conn.execute(_MOVE_ON, names)
    return Scanned(found, left_over)


def leave(tx: Transaction, wish: Wish, left: Iterable[Found]) -> None:
    """Leave messages behind that were found and not granted: their groups are locked by what was."""
    first: dict[Member, int] = {}
    for each in left:
        if each.member is not None:
            first.setdefault(each.member, offset_of(each.row.message_key))
    if first:
        rows = encode_rows([(each.queue_id, offset, each.message_group) for each, offset in first.items()])
        tx.conn.execute(_LEAVE, wish.names | {"left": rows})


def _found(wish: Wish, place: PlaceRow, row: MessageRow) -> Found:
    if row.message_group is None or not wish.keeps_order:
        return Found(row, 1)
    return Found(row, 1, Member(wish.topic.topic_id, place.queue_id, row.message_group))


def _not_in_hand(tx: Transaction, wish: Wish, rows: list[MessageRow]) -> list[MessageRow]:
    """Without those that were redriven to the group, which reads its own topic: they have their deliveries already."""
    if wish.keeps_order or not rows or owner_of(wish.topic.name) != wish.group.name:
        return rows
    names = wish.names | {"keys": encode_rows([(row.message_key,) for row in rows])}
    in_hand = set(tx.conn.execute(_IN_HAND, names).scalars())
    return [row for row in rows if row.message_key not in in_hand]


def takes_groups(wish: Wish) -> bool:
    """Whether messages may be in message groups here."""
    return wish.keeps_order and wish.topic.has_message_groups


def _read_on(tx: Transaction, wish: Wish, place: PlaceRow, limit: int, window: int) -> tuple[list[MessageRow], int]:
    """Wanted messages of one queue from the group's progress on, and the offset reached."""
    start = max(place.next_offset, place.min_offset)
    if wish.wanted.wants_all and not takes_groups(wish):
        names = _between(place, start, place.end_offset, limit)
        rows = _NEXT.rows(tx.conn, names, bodies=wish.bodies)
        # A topic's types are remembered, and may have grown since: the messages themselves say what they are.
        if not (wish.keeps_order and any(row.message_group for row in rows)):
            return rows, offset_of(rows[-1].message_key) + 1 if len(rows) == limit else place.end_offset
    return _read_window(tx, wish, place, limit, range(start, min(place.end_offset, start + window)))


def _read_window(
    tx: Transaction, wish: Wish, place: PlaceRow, limit: int, offsets: range
) -> tuple[list[MessageRow], int]:
    names = _between(place, offsets.start, offsets.stop, limit)
    names |= wish.names | {"for_queue": place.queue_id, "queue_key": message_key(place.queue_id, 0)}
    if isinstance(wish.wanted, SqlFilter):
        rows, reached = _read_judged(tx, wish, names)
    else:
        rows, reached = _read_tagged(tx, wish, wish.wanted, names)
    if wish.keeps_order and reached - offsets.start > len(rows):
        # Before anything is granted: what is granted now does not count as locked.
        tx.conn.execute(_LEAVE_LOCKED, names | {"to_key": message_key(place.queue_id, reached)})
    return rows, reached


def _read_tagged(tx: Transaction, wish: Wish, wanted: TagFilter, names: dict[str, Any]) -> tuple[list[MessageRow], int]:
    looks = _FREE if wish.keeps_order else _ALL
    look, names = (looks.every, names) if wanted.wants_all else (looks.tagged, names | of_tags(wanted))
    rows = look.rows(tx.conn, names, bodies=wish.bodies)
    is_full = len(rows) == names["limit"]
    return rows, (rows[-1].message_key + 1 if is_full else names["to_key"]) - names["queue_key"]


def _read_judged(tx: Transaction, wish: Wish, names: dict[str, Any]) -> tuple[list[MessageRow], int]:
    """What the filter wants, as far as it was asked already."""
    judged = wish.judged.stretch(names["for_queue"], names["from_key"])
    if judged is None:
        return [], names["from_key"] - names["queue_key"]
    to_key = min(names["to_key"], judged.to_key)
    keys = judged.wanted[: bisect_left(judged.wanted, to_key)]
    at_once = names["limit"] * (_FREE_OF_WANTED if takes_groups(wish) else 1)
    if len(keys) > at_once:
        keys, to_key = keys[:at_once], keys[at_once]
    look = (_FREE if wish.keeps_order else _ALL).chosen
    rows = (
        look.rows(tx.conn, names | {"keys": encode_rows([(key,) for key in keys])}, bodies=wish.bodies) if keys else []
    )
    reached = rows[-1].message_key + 1 if len(rows) == names["limit"] else to_key
    return rows, reached - names["queue_key"]


def _cost_of_asking(wish: Wish) -> int:
    """What one queue costs beside its messages, as so many of them: a filter may name thousands of tags."""
    return len(wish.wanted.tags) if isinstance(wish.wanted, TagFilter) else 1


def _between(place: PlaceRow, start: int, end: int, limit: int) -> dict[str, Any]:
    return {
        "from_key": message_key(place.queue_id, start),
        "to_key": message_key(place.queue_id, end),
        "limit": limit,
    }


# Of the whole topic, so that it is one look: to find out of each queue would mean going through all that are open.
_HAS_OPEN = (
    select(behind.c.queue_id)
    .where(
        behind.c.group_id == bindparam("group_id"),
        behind.c.topic_id == bindparam("topic_id"),
        behind.c.open_since_ms.is_not(None),
    )
    .exists()
)
_OF_WISH = queue.c.topic_id == bindparam("topic_id"), progress.c.group_id == bindparam("group_id")
_PLACE_COLUMNS = (
    progress.c.group_id,
    progress.c.queue_id,
    progress.c.next_offset,
    queue.c.min_offset,
    queue.c.next_offset.label("end_offset"),
)
_IS_BEHIND = progress.c.next_offset < queue.c.next_offset


def _places(columns: Iterable[Any], is_behind: Any) -> Select[Any]:
    return (
        select(*columns)
        .select_from(queue)
        .join(progress, progress.c.queue_id == queue.c.queue_id)
        .where(*_OF_WISH, is_behind)
        # By number, which is by key: their index gives that order, so that other topics' queues are not even looked at.
        .order_by(queue.c.number)
    )


_seen = _places([*_PLACE_COLUMNS, literal(0).label("has_open")], _IS_BEHIND)
_seen_in_order = _places([*_PLACE_COLUMNS, _HAS_OPEN.label("has_open")], or_(_IS_BEHIND, _HAS_OPEN))
_SEEN = RowStatement(PlaceRow, _seen)
_SEEN_IN_ORDER = RowStatement(PlaceRow, _seen_in_order)
_PLACES = RowStatement(PlaceRow, _seen.with_for_update(of=progress, skip_locked=True))
_PLACES_IN_ORDER = RowStatement(PlaceRow, _seen_in_order.with_for_update(of=progress, skip_locked=True))
_READY_AGAIN = (
    select(delivery.c.message_key)
    .where(
        delivery.c.group_id == bindparam("group_id"),
        delivery.c.topic_id == bindparam("topic_id"),
        delivery.c.state == literal_column(f"'{State.READY}'"),
        delivery.c.message_group.is_(None),
    )
    .exists()
)
_IS_MORE: Select[Any] = select(literal_column("1")).where(
    or_(_READY_AGAIN, _places([progress.c.queue_id], _IS_BEHIND).order_by(None).exists())
)
_IS_MORE_IN_ORDER: Select[Any] = select(literal_column("1")).where(
    or_(_READY_AGAIN, _HAS_OPEN, _places([progress.c.queue_id], _IS_BEHIND).order_by(None).exists())
)
_KEYS = rows_parameter("keys", "message_key")
_IN_HAND = select(delivery.c.message_key).where(
    delivery.c.group_id == bindparam("group_id"), delivery.c.message_key.in_(select(_KEYS.c.message_key))
)
_MOVE_ON = (
    update(progress)
    .where(progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("for_queue"))
    .values(next_offset=bindparam("reached"))
)

# Scalars instead of EXISTS, which Postgres would turn around: it would read all that the group holds, not one row each.
_ANY_DELIVERY = (
    select(delivery.c.message_key)
    .where(
        delivery.c.group_id == bindparam("group_id"),
        delivery.c.topic_id == bindparam("topic_id"),
        delivery.c.message_group == message.c.message_group,
    )
    .limit(1)
    .scalar_subquery()
)
_ANY_ROW_BEHIND = (
    select(behind.c.queue_id)
    .where(
        behind.c.group_id == bindparam("group_id"),
        behind.c.queue_id == bindparam("for_queue"),
        behind.c.message_group == message.c.message_group,
    )
    .scalar_subquery()
)
_IS_FREE = or_(message.c.message_group.is_(None), and_(_ANY_DELIVERY.is_(None), _ANY_ROW_BEHIND.is_(None)))


class _Looks(NamedTuple):
    """The ways to look at a stretch of a queue."""

    every: MessageQuery
    tagged: MessageQuery
    chosen: MessageQuery  # among `keys`


def _looks(*conditions: Any) -> _Looks:
    every = narrowed(*conditions)
    among = message.c.message_key.in_(select(_KEYS.c.message_key))
    return _Looks(
        MessageQuery(every),
        MessageQuery(narrowed(*conditions, *WITH_TAG)),
        MessageQuery(
            lambda found: found.where(among, *conditions).order_by(message.c.message_key).limit(bindparam("limit"))
        ),
    )


_ALL = _looks()
_FREE = _looks(_IS_FREE)
_NEXT = _ALL.every
_BEHIND_COLUMNS = ["group_id", "queue_id", "message_group", "topic_id", "next_offset"]
# A message group whose messages are held, and which has no row yet, is behind the scan from the first one passed over.
_LEAVE_LOCKED = insert(behind).from_select(
    _BEHIND_COLUMNS,
    select(
        bindparam("group_id", type_=BigInteger),
        bindparam("for_queue", type_=BigInteger),
        message.c.message_group,
        bindparam("topic_id", type_=BigInteger),
        func.min(message.c.message_key) - bindparam("queue_key", type_=BigInteger),
    )
    .where(*INSIDE, message.c.message_group.is_not(None), _ANY_DELIVERY.is_not(None), _ANY_ROW_BEHIND.is_(None))
    .group_by(message.c.message_group),
)
_LEFT = rows_parameter("left", "queue_id", "next_offset", text=("message_group",))
_LEAVE = insert(behind).from_select(
    _BEHIND_COLUMNS,
    select(
        bindparam("group_id", type_=BigInteger),
        _LEFT.c.queue_id,
        _LEFT.c.message_group,
        bindparam("topic_id", type_=BigInteger),
        _LEFT.c.next_offset,
    ),
)
