"""How much a look may do before it lets others in: offsets it passes over, and messages it asks a SQL filter about.

What a filter costs is worked out from the filter and the messages (`SqlFilter.cost`), not measured: the same look ends
at the same message everywhere.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, func, select

from popserver.database.columns import column_as_one_value, json_text
from popserver.database.dialect import PerDialect, dialect_of
from popserver.database.schema import message
from popserver.filters import SqlFilter, TagFilter
from popserver.filters.sql import TAG_PROPERTY

# How far one look goes in one queue.
WINDOW_OFFSETS = 1_000
# So many messages a SQL filter is asked about at once.
_MESSAGES_MAX = 4_000
# In units of about 0.1 µs, over all queues.
JUDGED_UNITS = 100_000
# After so many units the thread sleeps: only then is the interpreter given to a thread that waits for it. To ask for it
# takes 5 ms each time otherwise, and a request needs it often.
_BREATH_UNITS = 30_000
_BREATH_S = 0.000_1
_NEVER = threading.Event()
# Before it is known how large messages are, a look fetches so many; the next one at most so many times more.
_FIRST_MESSAGES = 256
_GROWTH = 4


class Work:
    """What one look may do, or several one after the other, and what they have learned of the messages' size."""

    def __init__(self, units: int = JUDGED_UNITS) -> None:
        self._units = units
        self._asked = _FIRST_MESSAGES
        self._breath = _BREATH_UNITS
        self.left = units
        self.unit_each = 0  # what the last messages cost on average

    def again(self) -> None:
        """Begin the next look."""
        self.left = self._units

    @property
    def is_done(self) -> bool:
        return self.left <= 0

    @property
    def used(self) -> int:
        """What was done of this look."""
        return self._units - self.left

    def messages(self, wanted: SqlFilter) -> int:
        """How many messages are fetched next: no more than can be judged, as far as is known, and at least one."""
        each = max(self.unit_each, wanted.cost_of_all(1, 0))
        # With room to spare: to count what each message costs is a work of its own.
        count = max(1, min(_MESSAGES_MAX, self._asked, self.left * 3 // 4 // each))
        self._asked = min(_MESSAGES_MAX, self._asked * _GROWTH)
        return count

    def judge(self, wanted: SqlFilter, rows: Sequence[Judged], characters: int) -> tuple[list[int], int]:
        """The keys of those that the filter wants, and how many it was asked about, from the first on.

        That is all of them, or as many as the work allows, and always one. Their tags and properties have at most
        `characters` characters together.
        """
        cost = wanted.cost_of_all(len(rows), characters)
        if cost > self.left:
            return self._judge_counting(wanted, rows)
        # The usual case: nothing need be counted.
        self.left -= cost
        self.unit_each = cost // max(1, len(rows))
        step = max(1, _BREATH_UNITS // max(1, self.unit_each))
        keys = wanted.keys_of(rows[:step])
        for start in range(step, len(rows), step):
            _NEVER.wait(_BREATH_S)
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
        """So much was done."""
        self.left -= units
        self._breathe(units)

    def _breathe(self, units: int) -> None:
        self._breath -= units
        if self._breath <= 0:
            _NEVER.wait(_BREATH_S)
            self._breath = _BREATH_UNITS


# Queries for what a SQL filter reads: a message's key, its tag, and the properties that the filter names.
#
# A whole result travels as one row (see `database.columns`). Where that is cheaper the database picks the properties
# that the filter names out of all that a message has.

# Of a filter that names more the properties are fetched whole.
PICKED_MAX = 16
_SOURCES = ("message_key", "tag", "properties")

# Message key, tag, properties; of a property that is missing there may be a None.
Judged = tuple[int, str | None, Mapping[str, str | None]]


class Unjudged(NamedTuple):
    """Messages, and at most how many characters their tags and properties have together."""

    rows: Sequence[Judged]
    characters: int


class FilterQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        found = narrow(select(*(message.c[name] for name in _SOURCES))).subquery()
        self._whole = PerDialect(
            lambda dialect: select(*(column_as_one_value(dialect, name, found.c[name]) for name in _SOURCES))
        )
        self._picked = [_picking(found, count) for count in range(PICKED_MAX + 1)]

    def rows(self, conn: Connection, wanted: SqlFilter, names: Mapping[str, Any]) -> Unjudged:
        """What it finds, in its order."""
        named = [each for each in wanted.names if each != TAG_PROPERTY]
        if dialect_of(conn).picks_json and len(named) <= PICKED_MAX:
            columns: Sequence[str] = conn.execute(self._picked[len(named)], {**names, **_picks(named)}).one()
        else:
            columns = list(map(json_text, _SOURCES, conn.execute(self._whole.of(conn), names).one()))
        return Unjudged(list(zip(*map(json.loads, columns), strict=True)), sum(map(len, columns)))


def _picking(found: Any, count: int) -> Select[Any]:
    """JSON lists; in place of the properties stands an object of so many of them."""
    pairs: list[Any] = []
    for number in range(count):
        pairs += [bindparam(f"name_{number}"), func.json_extract(found.c.properties, bindparam(f"path_{number}"))]
    return select(*map(func.json_group_array, (found.c.message_key, found.c.tag, func.json_object(*pairs))))


def _picks(named: Sequence[str]) -> dict[str, str]:
    """Each property by its name, and as a path: letters, digits, _ and $ have no meaning inside the quotes."""
    picks: dict[str, str] = {}
    for number, name in enumerate(named):
        picks |= {f"name_{number}": name, f"path_{number}": f'$."{name}"'}
    return picks


# A stretch of a queue: the messages between two keys, and which of them a filter wants.

# Of so many messages the SQL filter is asked first, for each one wanted; then of as many as it took for each that it
# let through, and some more.
_ASKED_PER_WANTED = 8
_AND_MORE = 1.25

INSIDE = message.c.message_key >= bindparam("from_key"), message.c.message_key < bindparam("to_key")
# The hash first: an integer comparison that settles nearly every row before any text is read.
WITH_TAG = (
    message.c.tag_hash.in_(bindparam("hashes", expanding=True)),
    message.c.tag.in_(bindparam("tags", expanding=True)),
)


def narrowed(*conditions: Any) -> Callable[[Select[Any]], Select[Any]]:
    """A look's narrowing to the first `limit` messages from `from_key` up to `to_key` that meet the conditions."""

    def narrow(found: Select[Any]) -> Select[Any]:
        return found.where(*INSIDE, *conditions).order_by(message.c.message_key).limit(bindparam("limit"))

    return narrow


def of_tags(wanted: TagFilter) -> dict[str, Any]:
    """The parameters of `WITH_TAG`."""
    return {"hashes": wanted.hashes, "tags": wanted.tags}


def judge(
    conn: Connection, query: FilterQuery, wanted: SqlFilter, names: Mapping[str, Any], work: Work
) -> tuple[list[int], int]:
    """The keys of the first `limit` messages that the filter wants, and the key that it has come to.

    It ends early where the work it may do is done.
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
