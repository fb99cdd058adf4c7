"""Queries for the messages in a range of a queue, with a limit for the work of one query.

A range is from_key <= key < to_key. The primary key finds its messages, in their order. The index `message_of_group`,
which has only originals, finds the messages of a message group.

The limit counts offsets, and the cost of evaluating a SQL filter. This cost is computed from the filter and the
messages (`SqlFilter.cost`), not measured, so the same query ends at the same message on every server.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, func, or_, select

from popserver.database.dialect import PerDialect, dialect_of
from popserver.database.rows import RowQuery, encode_rows, rows_parameter
from popserver.database.schema import IS_ORIGINAL, message
from popserver.filters import SqlFilter, TagFilter
from popserver.filters.sql import TAG_PROPERTY
from popserver.messages.by_key import Narrowing
from popserver.messages.columns import SIZE, column_as_one_value, json_text

# How many offsets one query reads in one queue.
WINDOW_OFFSETS = 1_000
# How many messages are read at once for a SQL filter.
_MESSAGES_MAX = 4_000
# In units of about 0.1 µs, over all queues.
JUDGED_UNITS = 100_000
# After so many units the thread sleeps, which releases the GIL. Otherwise each other thread waits 5 ms for the GIL each
# time, and a request needs it often.
_YIELD_UNITS = 30_000
_YIELD_S = 0.000_1
_NEVER = threading.Event()
# The first read fetches so many messages, because their size is unknown; each next read at most `_GROWTH` times more.
_FIRST_MESSAGES = 256
_GROWTH = 4


class Work:
    """The work that one query may do, or several in sequence, and the average cost of the messages that were read."""

    def __init__(self, units: int = JUDGED_UNITS) -> None:
        self._units = units
        self._asked = _FIRST_MESSAGES
        self._until_yield = _YIELD_UNITS
        self.left = units
        self.unit_each = 0  # average cost of the last messages

    def start_again(self) -> None:
        """Begin the next query with the full amount of work."""
        self.left = self._units

    @property
    def is_done(self) -> bool:
        return self.left <= 0

    @property
    def used(self) -> int:
        """How much was used since the last start."""
        return self._units - self.left

    def messages(self, wanted: SqlFilter) -> int:
        """How many messages to fetch next: as many as the remaining work probably allows, and at least one."""
        each = max(self.unit_each, wanted.cost_of_all(1, 0))
        # With a margin, because counting the cost of each message is expensive too.
        count = max(1, min(_MESSAGES_MAX, self._asked, self.left * 3 // 4 // each))
        self._asked = min(_MESSAGES_MAX, self._asked * _GROWTH)
        return count

    def judge(self, wanted: SqlFilter, rows: Sequence[Judged], characters: int) -> tuple[list[int], int]:
        """The keys of the matching messages, and how many messages were evaluated, from the first on.

        Evaluates all messages, or as many as the remaining work allows, but at least one. Their tags and properties
        have at most `characters` characters together.
        """
        cost = wanted.cost_of_all(len(rows), characters)
        if cost > self.left:
            return self._judge_counting(wanted, rows)
        # The usual case: there is enough work left for all, so the cost of each message is not needed.
        self.left -= cost
        self.unit_each = cost // max(1, len(rows))
        step = max(1, _YIELD_UNITS // max(1, self.unit_each))
        keys = wanted.keys_of(rows[:step])
        for start in range(step, len(rows), step):
            _NEVER.wait(_YIELD_S)
            keys += wanted.keys_of(rows[start : start + step])
        return keys, len(rows)

    def _judge_counting(self, wanted: SqlFilter, rows: Sequence[Judged]) -> tuple[list[int], int]:
        keys: list[int] = []
        costs: list[int] = []
        for row in rows:
            keys += wanted.keys_of((row,))
            costs.append(wanted.cost(row[1], row[2]))
            self.spend(costs[-1])
            if self.is_done:
                break
        self.unit_each = sum(costs) // len(costs)
        return keys, len(costs)

    def spend(self, units: int) -> None:
        """Subtract work that was done."""
        self.left -= units
        self._yield_gil(units)

    def _yield_gil(self, units: int) -> None:
        self._until_yield -= units
        if self._until_yield <= 0:
            _NEVER.wait(_YIELD_S)
            self._until_yield = _YIELD_UNITS


# Queries for the values that a SQL filter needs: a message's key, its tag, and the properties in the filter.
#
# The result is one row (`messages.columns`). If it is cheaper, the database extracts only the properties in the filter.

# For a filter with more properties, all properties are fetched.
PICKED_MAX = 16
_SOURCES = ("message_key", "tag", "properties")

# Message key, tag, properties; a missing property may be None.
Judged = tuple[int, str | None, Mapping[str, str | None]]


class Unjudged(NamedTuple):
    """Messages, and an upper bound of the characters in all their tags and properties."""

    rows: Sequence[Judged]
    characters: int


class FilterQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select."""

    def __init__(self, narrow: Narrowing) -> None:
        found = narrow(select(*(message.c[name] for name in _SOURCES))).subquery()
        self._whole = PerDialect(
            lambda dialect: select(*(column_as_one_value(dialect, name, found.c[name]) for name in _SOURCES))
        )
        self._picked = [_picking(found, count) for count in range(PICKED_MAX + 1)]

    def rows(self, conn: Connection, wanted: SqlFilter, names: Mapping[str, Any]) -> Unjudged:
        """The messages that it finds, in its order."""
        named = [each for each in wanted.names if each != TAG_PROPERTY]
        if dialect_of(conn).picks_json and len(named) <= PICKED_MAX:
            columns: Sequence[str] = conn.execute(self._picked[len(named)], {**names, **_picks(named)}).one()
        else:
            columns = list(map(json_text, _SOURCES, conn.execute(self._whole.of(conn), names).one()))
        return Unjudged(list(zip(*map(json.loads, columns), strict=True)), sum(map(len, columns)))


def _picking(found: Any, count: int) -> Select[Any]:
    """The query that returns keys, tags and `count` of the properties, each as a JSON list."""
    pairs: list[Any] = []
    for number in range(count):
        pairs += [bindparam(f"name_{number}"), func.json_extract(found.c.properties, bindparam(f"path_{number}"))]
    return select(*map(func.json_group_array, (found.c.message_key, found.c.tag, func.json_object(*pairs))))


def _picks(named: Sequence[str]) -> dict[str, str]:
    """The parameters of a `_picking` query: each property's name and its JSON path. Names need no escapes there."""
    picks: dict[str, str] = {}
    for number, name in enumerate(named):
        picks |= {f"name_{number}": name, f"path_{number}": f'$."{name}"'}
    return picks


# Ranges of a queue: the messages between two keys, and which of them match a filter.

# The first read fetches so many messages for each wanted message. The next reads fetch as many as each match needed
# before, times a margin.
_ASKED_PER_WANTED = 8
_AND_MORE = 1.25
_INSIDE = message.c.message_key >= bindparam("from_key"), message.c.message_key < bindparam("to_key")
# The hash first: comparing integers decides nearly every row without reading its text.
WITH_TAG = (
    message.c.tag_hash.in_(bindparam("hashes", expanding=True)),
    message.c.tag.in_(bindparam("tags", expanding=True)),
)


_BOUNDS = rows_parameter("bounds", "number", "from_key", "to_key")
_OF_GROUPS = rows_parameter("bounds", "number", "from_key", "to_key", text=("message_group",))
_other = message.alias("other")
# The key of the first message after the message group's share.
_END_OF_SHARE = (
    select(_other.c.message_key)
    .where(
        _other.c.message_group == _OF_GROUPS.c.message_group,
        _other.c.copy_of.is_(None),
        _other.c.message_key >= _OF_GROUPS.c.from_key,
        _other.c.message_key < _OF_GROUPS.c.to_key,
    )
    .order_by(_other.c.message_key)
    .limit(1)
    .offset(bindparam("share"))
    .correlate(_OF_GROUPS)
    .scalar_subquery()
)
# The keys and message groups of the messages from `from_key` to before `to_key`. No further condition: with the
# conditions of the index `message_of_group`, Postgres might read all of that index.
PASSED = select(message.c.message_key, message.c.message_group).where(*_INSIDE).subquery("passed")


def narrowed(*conditions: Any) -> Narrowing:
    """Narrow a query to the first `limit` messages from `from_key` to before `to_key` that meet the conditions."""

    def narrow(found: Select[Any]) -> Select[Any]:
        return found.where(*_INSIDE, *conditions).order_by(message.c.message_key).limit(bindparam("limit"))

    return narrow


def inside(found: Select[Any]) -> Select[Any]:
    """Narrow a query to all messages from `from_key` to before `to_key`."""
    return found.where(*_INSIDE).order_by(message.c.message_key)


def within_room(*conditions: Any) -> Narrowing:
    """A narrowing like `narrowed`: to the first messages that have together at most the size `room`, at least one."""
    upto = func.sum(SIZE).over(order_by=message.c.message_key)

    def narrow(found: Select[Any]) -> Select[Any]:
        names = found.selected_columns.keys()
        every = narrowed(*conditions)(found.add_columns(SIZE.label("own"), upto.label("upto"))).subquery()
        has_room = or_(every.c.upto <= bindparam("room"), every.c.upto == every.c.own)
        return select(*(every.c[name] for name in names)).where(has_room).order_by(every.c.message_key)

    return narrow


def in_bounds(found: Select[Any]) -> Select[Any]:
    """Narrow a query to the messages in any of the ranges `bounds` (number, from_key, to_key)."""
    is_inside = and_(message.c.message_key >= _BOUNDS.c.from_key, message.c.message_key < _BOUNDS.c.to_key)
    return found.select_from(_BOUNDS).join(message, is_inside)


class RangeTotal(NamedTuple):
    """How many messages a range has, and how many bytes their bodies."""

    number: int
    messages: int
    size: int


def totals(conn: Connection, bounds: Sequence[tuple[int, int, int]]) -> list[RangeTotal]:
    """The totals of these ranges (number, from_key, to_key), without those that have no messages."""
    return _TOTALS.rows(conn, {"bounds": encode_rows(bounds)}) if bounds else []


_TOTALS = RowQuery(
    RangeTotal,
    in_bounds(
        select(
            _BOUNDS.c.number,
            func.count(message.c.message_key).label("messages"),
            func.sum(func.length(message.c.body)).label("size"),
        )
    ).group_by(_BOUNDS.c.number),
)


def shares(found: Select[Any]) -> Select[Any]:
    """Narrow a query to the first `share` messages of each message group in `bounds` (number, from_key, to_key,
    message_group), in that order, and to `limit` messages together."""
    is_in_share = and_(
        message.c.message_group == _OF_GROUPS.c.message_group,
        IS_ORIGINAL,
        message.c.message_key >= _OF_GROUPS.c.from_key,
        message.c.message_key < func.coalesce(_END_OF_SHARE, _OF_GROUPS.c.to_key),
    )
    joined = found.select_from(_OF_GROUPS).join(message, is_in_share)
    return joined.order_by(_OF_GROUPS.c.number, message.c.message_key).limit(bindparam("limit"))


def of_tags(wanted: TagFilter) -> dict[str, Any]:
    """The parameters of `WITH_TAG`."""
    return {"hashes": wanted.hashes, "tags": wanted.tags}


def judge(
    conn: Connection, query: FilterQuery, wanted: SqlFilter, names: Mapping[str, Any], work: Work
) -> tuple[list[int], int]:
    """The keys of the first `limit` matching messages, and the key at which the next query begins.

    It ends early if the allowed work is done.
    """
    keys: list[int] = []
    start, room, judged = names["from_key"], names["limit"], 0
    while len(keys) < room and start < names["to_key"]:
        per_wanted = judged / max(1, len(keys)) * _AND_MORE if judged else _ASKED_PER_WANTED
        asked = min(work.messages(wanted), math.ceil(per_wanted * (room - len(keys))))
        found = query.rows(conn, wanted, {**names, "from_key": start, "limit": asked})
        if not found.rows:
            return keys, names["to_key"]
        wanted_keys, done = work.judge(wanted, *found)
        judged += done
        if len(keys) + len(wanted_keys) >= room:
            keys += wanted_keys[: room - len(keys)]
            return keys, keys[-1] + 1
        keys += wanted_keys
        start = found.rows[done - 1][0] + 1
        if done < len(found.rows) or work.is_done:
            break
        if done < asked:
            return keys, names["to_key"]
    return keys, start
