"""Queries for redriven messages: the place of each, and its original.

A message that was redriven only to its group has its delivery at another place than its first: at the copy in the dead
letter topic, or at a new message in the group's retry topic. The row of the redrive has both places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, select

from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import delivery, redrive
from popserver.model.group import Group


class RedriveOrigin(NamedTuple):
    """The origin of a redriven message: its first place, and the redrive plan."""

    origin_key: int
    plan_id: str


def of_places(conn: Connection, keys: Sequence[int]) -> dict[int, RedriveOrigin]:
    """The origins of the redriven messages at these places, for all groups. For several redrives, the last one."""
    rows = conn.execute(_OF_PLACES, {"keys": encode_rows([(key,) for key in keys])})
    return {row.redriven_key: RedriveOrigin(row.origin_key, row.plan_id) for row in rows}


def places_of(conn: Connection, origin_key: int) -> list[int]:
    """The places (keys) of a message after redrives to its groups, the oldest first."""
    return list(conn.execute(_PLACES_OF, {"for_origin": origin_key}).scalars())


def delivered_at(conn: Connection, group: Group, origin_key: int) -> int | None:
    """The place of the redriven message's delivery in the group; None if it has none."""
    names = {"for_group": group.group_id, "for_origin": origin_key}
    found: int | None = conn.execute(_DELIVERED_AT, names).scalar()
    return found


def first_delivered(conn: Connection, first: int, end: int) -> int | None:
    """The first place in this range with a delivery of a redriven message; None if there is none."""
    found: int | None = conn.execute(_FIRST_DELIVERED, {"first": first, "end": end}).scalar()
    return found


_KEYS = rows_parameter("keys", "message_key")
_TO_ITS_GROUP = and_(redrive.c.redriven_key.is_not(None), redrive.c.target_topic_id.is_(None))
_OF_PLACES = (
    select(redrive.c.redriven_key, redrive.c.origin_key, redrive.c.plan_id)
    .select_from(_KEYS)
    .join(redrive, and_(redrive.c.redriven_key == _KEYS.c.message_key, _TO_ITS_GROUP))
    .order_by(redrive.c.redriven_at_ms, redrive.c.dead_letter_id)
)
_PLACES_OF = (
    select(redrive.c.redriven_key)
    .where(redrive.c.origin_key == bindparam("for_origin"), _TO_ITS_GROUP)
    .order_by(redrive.c.redriven_at_ms, redrive.c.dead_letter_id)
)
_HAS_DELIVERY = and_(delivery.c.group_id == redrive.c.group_id, delivery.c.message_key == redrive.c.redriven_key)
_DELIVERED_AT = (
    select(redrive.c.redriven_key)
    .join(delivery, _HAS_DELIVERY)
    .where(redrive.c.origin_key == bindparam("for_origin"), redrive.c.group_id == bindparam("for_group"), _TO_ITS_GROUP)
    .order_by(redrive.c.dead_letter_id.desc())
    .limit(1)
)
_FIRST_DELIVERED = (
    select(func.min(redrive.c.redriven_key))
    .join(delivery, _HAS_DELIVERY)
    .where(redrive.c.redriven_key >= bindparam("first"), redrive.c.redriven_key < bindparam("end"))
)
