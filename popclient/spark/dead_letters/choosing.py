"""Which rows of a view the options ask for: its queries, for a reader of the database's own driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnClause, ColumnElement, Connection, Select, column, literal_column, select, table

from popclient.spark.dead_letters.columns import VIEWS, Source
from popclient.spark.dead_letters.options import Options


def chosen(options: Options, dialect: str, sources: Sequence[Source]) -> Select[Any]:
    """The query for these columns, under their own names, in no order."""
    view = VIEWS[options.view]
    fetched: list[ColumnElement[Any]] = [literal_column(each.sql(dialect)).label(each.name) for each in sources]
    return _narrowed(select(*fetched).select_from(table(view.name)), options)


def key_of(options: Options) -> ColumnClause[Any]:
    """What the view is read in ranges of."""
    return column(VIEWS[options.view].key.name)


class Ids:
    """The keys of the rows that the options ask for, as they are now."""

    def __init__(self, conn: Connection, options: Options) -> None:
        self._conn = conn
        self._key = key_of(options)
        self._all = select(self._key).select_from(table(options.view))
        self._chosen = _narrowed(self._all, options)

    def newest(self) -> int:
        """The newest of all, whoever asks for it; 0 where there is none."""
        return self._conn.execute(self._all.order_by(self._key.desc()).limit(1)).scalar() or 0

    def first(self) -> int | None:
        return self._conn.execute(self._chosen.order_by(self._key).limit(1)).scalar()

    def last(self, after: int | None = None, until: int | None = None) -> int | None:
        """The last of those with after < id <= until."""
        return self._conn.execute(self._between(after, until).order_by(self._key.desc()).limit(1)).scalar()

    def nth(self, after: int, until: int, count: int) -> int | None:
        """The count-th of those with after < id <= until; None where there are fewer."""
        query = self._between(after, until).order_by(self._key)
        return self._conn.execute(query.offset(count - 1).limit(1)).scalar()

    def _between(self, after: int | None, until: int | None) -> Select[Any]:
        query = self._chosen if after is None else self._chosen.where(self._key > after)
        return query if until is None else query.where(self._key <= until)


def _narrowed(query: Select[Any], options: Options) -> Select[Any]:
    names = {
        "group_namespace": options.namespace,
        "consumer_group": options.consumer_group,
        "topic_namespace": options.namespace if options.topic is not None else None,
        "topic": options.topic,
        "plan_id": options.plan_id,
    }
    for name, value in names.items():
        if value is not None:
            # The empty suffix keeps planners from starting at the name: a page is cheap only in the order of ids.
            query = query.where(column(name).concat("") == value)
    bounds: tuple[tuple[ColumnElement[Any], int | None, int | None], ...] = (
        (key_of(options), options.starting_id, options.ending_id),
        (column("dead_at_ms"), options.starting_ms, options.ending_ms),
    )
    for bounded, start, end in bounds:
        if start is not None:
            query = query.where(bounded >= start)
        if end is not None:
            query = query.where(bounded < end)
    return query
