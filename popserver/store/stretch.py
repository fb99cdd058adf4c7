"""A stretch of a queue: the messages between two keys, and which of them a filter wants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, Select, bindparam

from popserver.domain.filtering import SqlFilter, TagFilter
from popserver.store.filter_look import FilterQuery
from popserver.store.schema import message
from popserver.store.work import Work

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
    conn: Connection, look: FilterQuery, wanted: SqlFilter, names: Mapping[str, Any], work: Work
) -> tuple[list[int], int]:
    """The keys of the first `limit` messages that the filter wants, and the key that it has come to.

    It ends early where the work it may do is done.
    """
    keys: list[int] = []
    start, room, judged = names["from_key"], names["limit"], 0
    while len(keys) < room and start < names["to_key"]:
        per_wanted = judged / max(1, len(keys)) * _AND_MORE if judged else _ASKED_PER_WANTED
        asked = min(work.messages(wanted), math.ceil(per_wanted * (room - len(keys))))
        found = look.rows(conn, wanted, {**names, "from_key": start, "limit": asked})
        if not found.rows:
            return keys, names["to_key"]
        wanted_keys, looked = work.judge(wanted, *found)
        judged += looked
        if len(keys) + len(wanted_keys) >= room:
            keys += wanted_keys[: room - len(keys)]
            return keys, keys[-1] + 1
        keys += wanted_keys
        start = found.rows[looked - 1][0] + 1
        if looked < len(found.rows) or work.is_done:
            break
        if looked < asked:
            return keys, names["to_key"]
    return keys, start
