"""Purge dead letters: remove them with their copies. This leaves holes in their queue; its beginning moves up.

Dead letters whose copy is held, or that were redriven and are not done yet, stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    bindparam,
    delete,
    false,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from popserver.catalog import topics
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import (
    KEY_SHIFT,
    consumer_group,
    dead_letter,
    delivery,
    in_states,
    message,
    progress,
    queue,
    redrive,
)
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.messages.append import lock_queue
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.group import Group, Mode
from popserver.model.names import dead_letter_topic
from popserver.model.states import LetterState, RedriveState, State, shown_as
from popserver.model.topic import message_key, offset_of

DIED_AGAIN = "it died again, and was purged"


@dataclass(frozen=True, slots=True)
class PurgeLetters(Request[int]):
    """Remove dead letters of one group by id; at most one step of them."""

    phase: ClassVar = Phase.PURGE_DEAD_LETTERS
    group: Group
    ids: Sequence[int]


@carries_out(PurgeLetters)
def purge_letters(tx: Transaction, requests: Sequence[PurgeLetters]) -> list[int | PopError]:
    """Remove dead letters. Returns how many. Refused with `TooManyRequests` while another server uses their queue."""
    return [_purge_letters(tx, request) for request in requests]


def _purge_letters(tx: Transaction, request: PurgeLetters) -> int | PopError:
    group = request.group
    topic = topics.find_topic(tx.conn, dead_letter_topic(group.name))
    if topic is None or not request.ids:
        return 0
    (place,) = topic.queues
    if lock_queue(tx, place.queue_id) is None:
        return TooManyRequests(f"another server uses the dead letters of group '{group.name}'; repeat the request")
    names = {"for_group": group.group_id, "ids": encode_rows([(each,) for each in request.ids])}
    free = _FREE_OF_PULL if group.mode is Mode.PULL else _FREE
    letters = {row.copy_key: row.dead_letter_id for row in tx.conn.execute(free, names)}
    gone = _not_held(tx, sorted(letters))
    if not gone:
        return 0
    keys = encode_rows([(key,) for key in gone])
    _note_purged(tx, [letters[key] for key in gone])
    tx.conn.execute(_FORGET, {"ids": encode_rows([(letters[key],) for key in gone])})
    tx.conn.execute(_REMOVE, {"keys": keys})
    bounds = {"first": message_key(place.queue_id, 0), "end": message_key(place.queue_id + 1, 0)}
    first = tx.conn.execute(_FIRST_LEFT, bounds).scalar()
    tx.conn.execute(_MOVE_UP, {"of_queue": place.queue_id, "first_left": None if first is None else offset_of(first)})
    return len(gone)


def _note_purged(tx: Transaction, ids: Sequence[int]) -> None:
    """Note in the records of redrives that these dead letters, which had been redriven before, died again.

    Without the dead letter, the record would look like that of a message that was consumed.
    """
    died = tx.conn.execute(_DIED_AS, {"ids": encode_rows([(each,) for each in ids])}).all()
    if died:
        tx.conn.execute(_NOTE, [{"of_plan": row.plan_id, "of_id": row.dead_letter_id} for row in died])


def _not_held(tx: Transaction, keys: Sequence[int]) -> list[int]:
    """The keys that no group holds. Deliveries of them that are READY again are removed too."""
    if not keys:
        return []
    held: set[int] = set()
    ready: list[tuple[int, int]] = []
    for group_id in tx.conn.execute(_GROUPS_THERE, {"first": keys[0], "last": keys[-1]}).scalars().all():
        names = {"of_group": group_id, "keys": encode_rows([(key,) for key in keys])}
        free = set(tx.conn.execute(_READY_FREE, names).scalars())
        held |= set(tx.conn.execute(_DELIVERIES, names).scalars()) - free
        ready += [(group_id, key) for key in sorted(free)]
    tx.conn.execute(_END, {"ending": encode_rows([each for each in ready if each[1] not in held])})
    return [key for key in keys if key not in held]


_IDS = rows_parameter("ids", "dead_letter_id")
_RECORD = (
    redrive.c.plan_id == dead_letter.c.plan_id,
    redrive.c.dead_letter_id == dead_letter.c.dead_letter_id,
    redrive.c.target_topic_id.is_(None),
)
_IS_DELIVERED = (
    select(literal_column("1"))
    .select_from(redrive)
    .join(delivery, and_(delivery.c.group_id == redrive.c.group_id, delivery.c.message_key == redrive.c.redriven_key))
    .where(*_RECORD)
    .exists()
)
_QUEUE_ID = redrive.c.redriven_key.op(">>")(KEY_SHIFT)
_IS_UNREAD = (
    select(literal_column("1"))
    .select_from(redrive)
    .outerjoin(progress, and_(progress.c.group_id == redrive.c.group_id, progress.c.queue_id == _QUEUE_ID))
    .where(
        *_RECORD,
        redrive.c.redriven_key
        >= _QUEUE_ID.op("<<")(KEY_SHIFT).op("|")(func.coalesce(progress.c.next_offset, literal_column("0"))),
    )
    .exists()
)


def _free(*not_done: ColumnElement[bool]) -> Select[Any]:
    is_back = dead_letter.c.redrive_state == literal_column(f"'{LetterState.REDRIVEN}'")
    return (
        select(dead_letter.c.dead_letter_id, dead_letter.c.copy_key)
        .where(
            dead_letter.c.group_id == bindparam("for_group"),
            dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id)),
            ~and_(func.coalesce(is_back, false()), or_(*not_done)),
        )
        .with_for_update(of=dead_letter, skip_locked=True)
    )


_FREE = _free(_IS_DELIVERED)
_FREE_OF_PULL = _free(_IS_DELIVERED, _IS_UNREAD)
_KEYS = rows_parameter("keys", "message_key")
_FIRST_THERE = (
    select(delivery.c.message_key)
    .where(
        delivery.c.group_id == consumer_group.c.group_id,
        delivery.c.message_key >= bindparam("first"),
        delivery.c.message_key <= bindparam("last"),
    )
    .limit(1)
    .scalar_subquery()
)
_GROUPS_THERE = select(consumer_group.c.group_id).where(_FIRST_THERE.is_not(None)).order_by(consumer_group.c.group_id)
# Each row by its whole key: there may be many other rows between two named ones.
_DELIVERIES = (
    select(delivery.c.message_key)
    .where(delivery.c.group_id == bindparam("of_group"), delivery.c.message_key.in_(select(_KEYS.c.message_key)))
    .order_by(delivery.c.message_key)
)
_READY_FREE = _DELIVERIES.where(in_states(delivery.c.state, *shown_as(State.READY))).with_for_update(
    of=delivery, skip_locked=True
)
_ENDING = rows_parameter("ending", "group_id", "message_key")
_END = delete(delivery).where(
    tuple_(delivery.c.group_id, delivery.c.message_key).in_(select(_ENDING.c.group_id, _ENDING.c.message_key))
)
_FORGET = delete(dead_letter).where(dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id)))
_REMOVE = delete(message).where(message.c.message_key.in_(select(_KEYS.c.message_key)))
_FIRST_LEFT = select(func.min(message.c.message_key)).where(
    message.c.message_key >= bindparam("first"), message.c.message_key < bindparam("end")
)
_MOVE_UP = (
    update(queue)
    .where(queue.c.queue_id == bindparam("of_queue"))
    .values(min_offset=func.coalesce(bindparam("first_left", type_=BigInteger), queue.c.next_offset))
)
_NOTE = (
    update(redrive)
    .where(redrive.c.plan_id == bindparam("of_plan"), redrive.c.dead_letter_id == bindparam("of_id"))
    .values(note=literal_column(f"'{DIED_AGAIN}'"))
)
_DIED_AS = (
    select(redrive.c.plan_id, redrive.c.dead_letter_id)
    .select_from(dead_letter)
    .join(
        redrive,
        and_(
            redrive.c.group_id == dead_letter.c.group_id,
            redrive.c.dead_letter_id < dead_letter.c.dead_letter_id,
            redrive.c.state == literal_column(f"'{RedriveState.REDRIVEN}'"),
            or_(
                and_(redrive.c.origin_key == dead_letter.c.origin_key, redrive.c.target_topic_id.is_(None)),
                and_(redrive.c.redriven_key == dead_letter.c.origin_key, redrive.c.target_topic_id.is_not(None)),
            ),
        ),
    )
    .where(dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id)))
)
