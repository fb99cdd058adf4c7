"""Finds rows on Postgres at once, however many old versions they have.

Each update leaves the old version of its row behind, for transactions that may still read it. A user's transaction that
stays open keeps them all, of counters some hundreds a second. By the equality of a key Postgres looks at the oldest
version first. A range that has one key can be read backward, so the newest version comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import CTE, ColumnElement, FromClause, Select, Table, literal_column, select, true

from popserver.database.schema import queue

# All statements of the writer find few rows by an index. Postgres plans some of them once, when the tables are small or
# its statistics are old, and would read whole tables ever after: as large as an open transaction beside it makes them.
_PLANS = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit")
READ_BY_INDEX = "; ".join(f"SET {each} = off" for each in _PLANS)


def newest(row: FromClause, *columns: ColumnElement[Any], **key: Any) -> Select[Any]:
    """A query for these columns of the row with that key, which an index must have in that order."""
    *leading, (name, value) = key.items()
    last = row.c[name]
    equal = [row.c[each] == wanted for each, wanted in leading]
    return select(*columns).where(*equal, last >= value, last <= value).order_by(last.desc()).limit(literal_column("1"))


def is_newest(table: Table, **key: Any) -> ColumnElement[bool]:
    """The condition that a row of the table is the newest version of that key; for UPDATE.

    While another transaction changes the row, no row may fulfil it: repeat the statement with the plain key.
    """
    place: ColumnElement[Any] = literal_column("newest.ctid")
    return literal_column(f"{table.name}.ctid") == newest(table.alias("newest"), place, **key).scalar_subquery()


def newest_queues(topics: FromClause, names: Sequence[str]) -> CTE:
    """These columns of the newest version of each queue of the topics (`topic_id`): from the last number to the first,
    which takes one lookup for each queue. The names must include `topic_id` and `number`."""
    last = (
        select(*(queue.c[each] for each in names))
        .where(queue.c.topic_id == topics.c.topic_id)
        .order_by(queue.c.number.desc())
        .limit(literal_column("1"))
        .correlate(topics)
        .lateral("last")
    )
    found = select(last).select_from(topics.join(last, true())).cte("queues", recursive=True)
    below = queue.alias("below")
    one_below = (
        select(*(below.c[each] for each in names))
        .where(below.c.topic_id == found.c.topic_id, below.c.number < found.c.number)
        .order_by(below.c.number.desc())
        .limit(literal_column("1"))
        .lateral("one_below")
    )
    return found.union_all(select(one_below).select_from(found.join(one_below, true())))
