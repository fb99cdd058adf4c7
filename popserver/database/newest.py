"""Finds rows on Postgres at once, however many old versions they have.

Each update leaves the old version of its row behind, for transactions that may still read it. A user's transaction that
stays open keeps them all, of counters some hundreds a second. By the equality of a key Postgres looks at the oldest
version first. A range that has one key can be read backward, so the newest version comes first.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Table,
    and_,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from popserver.database.dialect import Dialect
from popserver.postgres.sessions import BY_INDEX, settings_text

# How a transaction of a reader begins; the second one reads by index. Postgres plans some statements once, when the
# tables are small or its statistics are old, and would read whole tables ever after. And the larger old versions make a
# table, the more it prefers a bitmap, which reads all versions of a key.
BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_LOOKING_UP = f"{BEGIN_READING}; {settings_text(BY_INDEX, local=True)}"


class _GroupOf(FunctionElement[int]):
    type = BigInteger()
    inherit_cache = True


@compiles(_GroupOf, "sqlite")
def _group_by_sqlite(group: _GroupOf, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(group.clauses, **kw)


@compiles(_GroupOf, "postgresql")
def _group_by_postgres(group: _GroupOf, compiler: SQLCompiler, **kw: Any) -> str:
    return f"({compiler.process(group.clauses, **kw)} + 0)"


def group_of(rows: FromClause) -> ColumnElement[int]:
    """The `group_id` of rows that are looked for by message group, or by the time since which they are READY or open.

    On Postgres it is an expression that only the indexes for that have. By the column Postgres may take the primary
    key, read all rows of the group, and sort what it finds: if it believes that the table has few rows, it prefers the
    index with the fewest levels, or with the fewest pages for a row.
    """
    return _GroupOf(rows.c.group_id)


def unindexed(column: ColumnElement[int]) -> ColumnElement[int]:
    """The column's value in a condition that Postgres can only check, not look for. Indexes have `group_id + 0`
    (`group_of`) and, for first positions, `group_id * 1`."""
    return column - literal_column("0")


def newest(row: FromClause, *columns: ColumnElement[Any], **key: Any) -> Select[Any]:
    """A query for these columns of the row with that key, which an index must have in that order."""
    *leading, (name, value) = key.items()
    last = row.c[name]
    equal = [row.c[each] == wanted for each, wanted in leading]
    return select(*columns).where(*equal, last >= value, last <= value).order_by(last.desc()).limit(literal_column("1"))


def joined(
    dialect: Dialect, keys: FromClause, table: Table, *key: str, locks: bool = False, skips_locked: bool = False
) -> tuple[FromClause, FromClause]:
    """The rows of a table with the keys in `keys`: what to select from, and the rows; on Postgres with their `address`
    (ctid). An index has the columns of the key, in that order.

    `locks`: each row, in the order of `keys`, waiting for others. `skips_locked`: it leaves out what others locked.
    """
    if not dialect.has_other_writers:
        return keys.join(table, and_(*(table.c[name] == keys.c[name] for name in key))), table
    versions = table.alias("versions")
    address: ColumnElement[Any] = literal_column("versions.ctid").label("address")
    found = newest(versions, *versions.c, address, **{name: keys.c[name] for name in key})
    if locks or skips_locked:
        found = found.with_for_update(skip_locked=skips_locked)
    row = found.correlate(keys).lateral(table.name)
    return keys.join(row, true()), row


def is_newest(table: Table, **key: Any) -> ColumnElement[bool]:
    """The condition that a row of the table is the newest version of that key; for UPDATE.

    While another transaction changes the row, no row may fulfil it: repeat the statement with the plain key.
    """
    address: ColumnElement[Any] = literal_column("newest.ctid")
    return literal_column(f"{table.name}.ctid") == newest(table.alias("newest"), address, **key).scalar_subquery()


def is_locked(dialect: Dialect, table: Table, **key: Any) -> ColumnElement[bool]:
    """The condition that a row of the table has that key; for UPDATE. This transaction has locked the row."""
    if dialect.has_other_writers:
        return is_newest(table, **key)
    return and_(*(table.c[name] == value for name, value in key.items()))


def are_newest(dialect: Dialect, table: Table, rows: FromClause, *key: str) -> ColumnElement[bool]:
    """The condition that rows of the table are the newest versions of those with the keys in `rows`; for UPDATE. No
    other transaction may change them now."""
    if not dialect.has_other_writers:
        return and_(*(table.c[name] == rows.c[name] for name in key))
    address: ColumnElement[Any] = literal_column("newest.ctid").label("address")
    last = newest(table.alias("newest"), address, **{name: rows.c[name] for name in key})
    # Not by the keys, by which Postgres meets the oldest versions first.
    are_these = (unindexed(table.c[name]) == rows.c[name] for name in key)
    return and_(literal_column(f"{table.name}.ctid") == last.correlate(rows).scalar_subquery(), *are_these)


def matches_for_delete(dialect: Dialect, table: Table, rows: FromClause, *key: str) -> ColumnElement[bool]:
    """The same for DELETE, and for an UPDATE that takes no values from `rows`: SQLite has no DELETE with a join."""
    if dialect.has_other_writers:
        return are_newest(dialect, table, rows, *key)
    # In this order SQLite uses the whole key.
    return tuple_(*(table.c[name] for name in key)).in_(select(*(rows.c[name] for name in key)))
