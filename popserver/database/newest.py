"""Conditions that let Postgres find the newest version of a row first, before all old versions.

Each update leaves the old version of its row in the table, for transactions that may still read it. A user's
transaction that stays open keeps all of them: of a counter, hundreds a second. With an equality of the key, Postgres
reads the oldest version first. A range that has one key can be read backward, and so the newest version comes first.
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

# How a transaction of a reader begins; the second one reads by index only. Postgres plans some statements once. If the
# tables are small then, or its statistics are old, it would read whole tables from then on. And the more old versions a
# table has, the more Postgres prefers a bitmap scan, which reads all versions of a key.
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
    """The `group_id` in a search by message group, or by the time since which rows are READY or open.

    On Postgres it is an expression, which only the indexes for these searches have. With the plain column Postgres may
    take the primary key, read all rows of the group, and sort them: if it believes that the table has few rows, it
    prefers the index with the fewest levels, or with the fewest pages for a row.
    """
    return _GroupOf(rows.c.group_id)


def unindexed(column: ColumnElement[int]) -> ColumnElement[int]:
    """The column in a condition for which Postgres cannot use an index: no index has this expression. Indexes have
    `group_id + 0` (`group_of`) and, for first positions, `group_id * 1`."""
    return column - literal_column("0")


def newest(row: FromClause, *columns: ColumnElement[Any], **key: Any) -> Select[Any]:
    """A query for columns of the row with this key. An index must have the key's columns, in this order.

    The last column is a range with one value, read backward: so the newest version comes first.
    """
    *leading, (name, value) = key.items()
    last = row.c[name]
    equal = [row.c[each] == wanted for each, wanted in leading]
    return select(*columns).where(*equal, last >= value, last <= value).order_by(last.desc()).limit(literal_column("1"))


def joined(
    dialect: Dialect, keys: FromClause, table: Table, *key: str, locks: bool = False, skips_locked: bool = False
) -> tuple[FromClause, FromClause]:
    """`keys` joined with the rows of a table that have these keys: what to select from, and the rows. On Postgres a row
    also has its `address` (ctid). An index must have the key's columns, in this order.

    `locks`: locks each row, in the order of `keys`, and waits for other transactions. `skips_locked`: locks each row
    that no other transaction has locked, and leaves out the others.
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
    """The condition that a row of the table is the newest version of this key; for UPDATE.

    While another transaction changes the row, it may be true for no row: then repeat the statement with the plain key.
    """
    address: ColumnElement[Any] = literal_column("newest.ctid")
    return literal_column(f"{table.name}.ctid") == newest(table.alias("newest"), address, **key).scalar_subquery()


def is_locked(dialect: Dialect, table: Table, **key: Any) -> ColumnElement[bool]:
    """The condition that a row of the table has this key; for UPDATE. This transaction has locked the row."""
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
    # The address finds each row. No index fits the conditions on the key: by these, Postgres would read the oldest
    # versions first.
    have_keys = (unindexed(table.c[name]) == rows.c[name] for name in key)
    return and_(literal_column(f"{table.name}.ctid") == last.correlate(rows).scalar_subquery(), *have_keys)


def matches_for_delete(dialect: Dialect, table: Table, rows: FromClause, *key: str) -> ColumnElement[bool]:
    """The same for DELETE, and for an UPDATE that takes no values from `rows`: SQLite has no DELETE with a join."""
    if dialect.has_other_writers:
        return are_newest(dialect, table, rows, *key)
    # With a list of whole keys, in the order of the primary key, SQLite uses all columns of the key.
    return tuple_(*(table.c[name] for name in key)).in_(select(*(rows.c[name] for name in key)))
