"""Queries about the messages in a part of a queue: the first ones, the newest ones, how many, and their keys.

A part is a range of message keys: first <= key < end. The primary key finds its messages, in their order. The index
`message_of_group`, which has only originals, finds the messages of a message group or lite topic. No body is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, ScalarSelect, Select, bindparam, func, literal_column, select

from popserver.database.rows import RowStatement
from popserver.database.schema import IS_ORIGINAL, message
from popserver.messages.by_key import HeadRow


def page(
    conn: Connection, first: int, end: int, limit: int, *, message_group: str | None = None, newest_first: bool = False
) -> list[HeadRow]:
    """The first messages, or the newest ones, newest first; of one message group or (None) of all."""
    names = _names(first, end, message_group) | {"limit": limit}
    return _PAGES[message_group is not None, newest_first].rows(conn, names)


def keys(conn: Connection, first: int, end: int, limit: int, *, before_ms: int | None = None) -> Sequence[int]:
    """The keys of the first messages, or of the first of those that were stored before `before_ms`."""
    names = _names(first, end) | {"limit": limit, "before_ms": before_ms}
    return conn.execute(_KEYS if before_ms is None else _OLD_KEYS, names).scalars().all()


def first_key(conn: Connection, first: int, end: int, *, message_group: str | None = None) -> int | None:
    """The key of the first message, of one message group or (None) of any."""
    query = _FIRST if message_group is None else _FIRST_OF_GROUP
    return conn.execute(query, _names(first, end, message_group)).scalar()


def key_after(conn: Connection, first: int, end: int, count: int) -> int | None:
    """The key of the message after the first `count` messages; None if there is none."""
    return conn.execute(_KEY_AFTER, _names(first, end) | {"count": count}).scalar()


def first_key_since(conn: Connection, first: int, end: int, message_group: str, since_ms: int) -> int | None:
    """The key of the first message of the message group that was stored at `since_ms` or later."""
    names = _names(first, end, message_group) | {"since_ms": since_ms}
    return conn.execute(_FIRST_SINCE, names).scalar()


def first_key_of_last(conn: Connection, first: int, end: int, message_group: str, count: int) -> int | None:
    """The key of the first of the last `count` messages of the message group."""
    return conn.execute(_FIRST_OF_LAST, _names(first, end, message_group) | {"count": count}).scalar()


def count(conn: Connection, first: int, end: int, message_group: str, limit: int) -> int:
    """How many messages of the message group there are, at most `limit`."""
    return conn.execute(_COUNT, _names(first, end, message_group) | {"limit": limit}).scalar_one()


def keys_as_sent(conn: Connection, first: int, end: int) -> Sequence[tuple[int, str]]:
    """The messages that have keys, in order: the message key, and the keys as JSON."""
    return [(row.message_key, row[1]) for row in conn.execute(_WITH_KEYS, _names(first, end))]


def first_key_in(first: ColumnElement[int], end: ColumnElement[int]) -> ScalarSelect[int]:
    """The key of the first message as a subquery; NULL if there is none."""
    found = select(message.c.message_key).where(message.c.message_key >= first, message.c.message_key < end)
    return found.order_by(message.c.message_key).limit(literal_column("1")).scalar_subquery()


def _names(first: int, end: int, message_group: str | None = None) -> dict[str, Any]:
    return {"first": first, "end": end, "of_group": message_group}


_key = message.c.message_key
_INSIDE = _key >= bindparam("first"), _key < bindparam("end")
_OF_GROUP = *_INSIDE, IS_ORIGINAL, message.c.message_group == bindparam("of_group")


def _page(*, of_group: bool, newest_first: bool) -> RowStatement[HeadRow]:
    columns = (message.c[name] for name in HeadRow._fields)
    found = select(*columns).where(*(_OF_GROUP if of_group else _INSIDE))
    return RowStatement(HeadRow, found.order_by(_key.desc() if newest_first else _key).limit(bindparam("limit")))


_PAGES = {
    (of_group, newest_first): _page(of_group=of_group, newest_first=newest_first)
    for of_group in (False, True)
    for newest_first in (False, True)
}
_in_order = select(_key).where(*_INSIDE).order_by(_key)
_KEYS = _in_order.limit(bindparam("limit"))
_OLD_KEYS = _KEYS.where(message.c.stored_at_ms < bindparam("before_ms"))
_KEY_AFTER = _in_order.offset(bindparam("count")).limit(1)
_FIRST = select(func.min(_key)).where(*_INSIDE)
_FIRST_OF_GROUP = select(func.min(_key)).where(*_OF_GROUP)
_FIRST_SINCE = _FIRST_OF_GROUP.where(message.c.stored_at_ms >= bindparam("since_ms"))
_last: Select[Any] = select(_key).where(*_OF_GROUP).order_by(_key.desc()).limit(bindparam("count"))
_FIRST_OF_LAST = select(func.min(_last.subquery("last").c.message_key))
_COUNT = select(func.count()).select_from(select(_key).where(*_OF_GROUP).limit(bindparam("limit")).subquery())
_WITH_KEYS = select(_key, message.c["keys"]).where(*_INSIDE, message.c["keys"].is_not(None)).order_by(_key)
# The originals in message groups, to be joined by message group and key.
IN_GROUPS = select(message.c.message_group, _key).where(IS_ORIGINAL).subquery("in_group")
# The newest `limit` messages of a message group; parameters as in `page`.
NEWEST_OF_GROUP = (
    select(_key, message.c.stored_at_ms)
    .where(*_OF_GROUP)
    .order_by(_key.desc())
    .limit(bindparam("limit"))
    .subquery("newest_of_group")
)
