"""Which dead letters the options ask for: the queries on the view `dead_letters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, column, select, table

from popclient.spark.dead_letters.columns import COLUMNS, sources_of
from popclient.spark.dead_letters.options import Options

_VIEW = table("dead_letters", *map(column, [*sources_of(COLUMNS), "group_namespace", "topic_namespace"]))
letter_id = _VIEW.c.id


def chosen(options: Options, sources: Sequence[str]) -> Select[Any]:
    """The query for these columns of the view, in no order."""
    query = select(*(_VIEW.c[source] for source in sources))
    names = {
        "group_namespace": options.namespace,
        "consumer_group": options.consumer_group,
        "topic_namespace": options.namespace,
        "topic": options.topic,
    }
    for name, value in names.items():
        if value is not None:
            # The empty suffix keeps planners from starting at the name: a page is cheap only in the order of ids.
            query = query.where(_VIEW.c[name].concat("") == value)
    bounds = (
        (letter_id, options.starting_id, options.ending_id),
        (_VIEW.c.dead_at_ms, options.starting_ms, options.ending_ms),
    )
    for bounded, start, end in bounds:
        if start is not None:
            query = query.where(bounded >= start)
        if end is not None:
            query = query.where(bounded < end)
    return query


class Ids:
    """The ids of the dead letters that the options ask for, as they are now."""

    def __init__(self, conn: Connection, options: Options) -> None:
        self._conn = conn
        self._chosen = chosen(options, ["id"])

    def newest(self) -> int:
        """The newest of all, whoever asks for it; 0 where there is none."""
        return self._conn.execute(select(letter_id).order_by(letter_id.desc()).limit(1)).scalar() or 0

    def first(self) -> int | None:
        return self._conn.execute(self._chosen.order_by(letter_id).limit(1)).scalar()

    def last(self, after: int | None = None, until: int | None = None) -> int | None:
        """The last of those with after < id <= until."""
        return self._conn.execute(self._between(after, until).order_by(letter_id.desc()).limit(1)).scalar()

    def nth(self, after: int, until: int, count: int) -> int | None:
        """The count-th of those with after < id <= until; None where there are fewer."""
        return self._conn.execute(self._between(after, until).order_by(letter_id).offset(count - 1).limit(1)).scalar()

    def _between(self, after: int | None, until: int | None) -> Select[Any]:
        query = self._chosen if after is None else self._chosen.where(letter_id > after)
        return query if until is None else query.where(letter_id <= until)
