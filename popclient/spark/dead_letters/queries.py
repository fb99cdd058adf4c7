"""The queries for the rows of a view that the options select, and for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnClause, ColumnElement, Connection, FromClause, Select, column, func, select, table, text
from sqlalchemy.sql.selectable import TableClause

from popclient.spark.dead_letters.columns import BODY, VIEWS, ViewSource
from popclient.spark.dead_letters.options import DEAD_LETTERS, DeadLetterOptions

# The view `dead_letters` without the columns of its messages. Each row has a message, so the rows are the same, and the
# database need not look each message up. A join on a key whose columns are not asked for costs Postgres nothing.
_FACTS: Final = text(f"""
SELECT l.dead_letter_id AS id, g.namespace AS group_namespace, g.name AS consumer_group,
       t.namespace AS topic_namespace, t.name AS topic, oq.number AS queue_id,
       l.origin_key & {(1 << 40) - 1} AS queue_offset, l.dead_at_ms, l.attempt AS delivery_attempt, l.reason,
       l.redrive_state, l.plan_id
FROM dead_letter l
LEFT JOIN consumer_group g ON g.group_id = l.group_id
LEFT JOIN topic t ON t.topic_id = l.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (l.origin_key >> 40)
""")  # noqa: S608
_OF_FACTS: Final = frozenset(
    "id group_namespace consumer_group topic_namespace topic queue_id queue_offset dead_at_ms delivery_attempt reason"
    " redrive_state plan_id".split()
)


class Statement(NamedTuple):
    """SQL for the driver, and its parameters; `first` and `last` are the keys of a page."""

    sql: str
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, conn: Connection, query: Select[Any]) -> Statement:
        compiled = query.compile(dialect=conn.dialect)
        return cls(str(compiled), compiled.params)


def chosen(options: DeadLetterOptions, sources: Sequence[ViewSource]) -> Select[Any]:
    """The query for these columns, without an order."""
    names = [each.name for each in sources]
    fetched: list[ColumnElement[Any]] = [column(each) for each in names]
    return _narrowed(select(*fetched).select_from(_rows(options.view, names)), options)


def _rows(view: str, names: Iterable[str]) -> FromClause:
    """The view; or, if these columns are in it, what stands in for it."""
    if view == DEAD_LETTERS and _OF_FACTS.issuperset(names):
        return _FACTS.columns(*map(column, sorted(_OF_FACTS))).subquery(view)
    return table(view)


def up_to(query: Select[Any], sources: Sequence[ViewSource], bytes_max: int) -> Select[Any]:
    """The first rows in the order of the key; the row that exceeds `bytes_max` of bodies is the last. For Postgres."""
    if BODY not in sources:
        return query
    rows = query.subquery("found")
    key, size = rows.c[sources[0].name], func.octet_length(rows.c.body)
    before = func.sum(size).over(order_by=key, rows=(None, 0)) - size
    sized = select(rows, before.label("bytes_before")).subquery("sized")
    fetched = (sized.c[source.name] for source in sources)
    return select(*fetched).where(sized.c.bytes_before < bytes_max).order_by(sized.c[sources[0].name])


def key_of(options: DeadLetterOptions) -> ColumnClause[Any]:
    """The key by which the view is read in ranges."""
    return column(VIEWS[options.view].key.name)


class Ids:
    """The keys of the rows that the options select, as they are now."""

    def __init__(self, conn: Connection, options: DeadLetterOptions) -> None:
        self._conn = conn
        self._key = key_of(options)
        self._all = select(self._key).select_from(_rows(options.view, [self._key.name]))
        self._chosen = _narrowed(self._all, options)

    def newest(self) -> int:
        """The newest key of the whole view; 0 if it is empty."""
        return self._conn.execute(self._all.order_by(self._key.desc()).limit(1)).scalar() or 0

    def first(self) -> int | None:
        return self._conn.execute(self._chosen.order_by(self._key).limit(1)).scalar()

    def last(self, after: int | None = None, until: int | None = None) -> int | None:
        """The last selected key with after < id <= until."""
        return self._conn.execute(self._between(after, until).order_by(self._key.desc()).limit(1)).scalar()

    def nth(self, after: int, until: int, count: int) -> int | None:
        """The count-th selected key with after < id <= until; None if there are fewer."""
        query = self._between(after, until).order_by(self._key)
        return self._conn.execute(query.offset(count - 1).limit(1)).scalar()

    def _between(self, after: int | None, until: int | None) -> Select[Any]:
        query = self._chosen if after is None else self._chosen.where(self._key > after)
        return query if until is None else query.where(self._key <= until)


def _narrowed(query: Select[Any], options: DeadLetterOptions) -> Select[Any]:
    names = {
        "group_namespace": options.namespace,
        "consumer_group": options.consumer_group,
        "topic_namespace": options.namespace if options.topic is not None else None,
        "topic": options.topic,
        "plan_id": options.plan_id,
    }
    for name, value in names.items():
        if value is not None:
            # With the empty suffix planners cannot use an index of the name: a page is cheap only in the order of ids.
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


# ---- Names that do not exist: no rows would look like no dead letters ----

_SHOWN_MAX: Final = 20


def require_existing(conn: Connection, options: DeadLetterOptions) -> None:
    """For options that select no rows. Raises `ValueError` with the names that are known."""
    if options.plan_id is not None:
        _require(
            options.plan_id, "planId", _names(conn, table("redrive_plan", column("plan_id")), "plan_id"), "database"
        )
    for given, option, name in (
        (options.consumer_group, "consumerGroup", "consumer_group"),
        (options.topic, "topic", "topic"),
    ):
        if given is not None:
            there = table(name, column("name"), column("namespace"), column("deleted_at_ms"))
            known = _names(conn, there, "name", there.c.namespace == options.namespace, there.c.deleted_at_ms.is_(None))
            _require(given, option, known, f"namespace {options.namespace!r}" if options.namespace else "database")


def _names(conn: Connection, of: TableClause, name: str, *conditions: Any) -> list[str]:
    rows = conn.execute(select(of.c[name]).where(*conditions).order_by(of.c[name])).scalars()
    return [each for each in rows if not each.startswith("%")]


def _require(given: str, option: str, known: Sequence[str], where: str) -> None:
    if given in known:
        return
    near = get_close_matches(given, known, 1)
    alike = f"did you mean {near[0]}? " if near else ""
    more = len(known) - _SHOWN_MAX
    named = ", ".join(known[:_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
    raise ValueError(f"option {option}={given!r} is unknown; {alike}this {where} has {named or 'none'}")
