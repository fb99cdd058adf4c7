"""Statements as they are executed, with their plans: both in a form that only a change of either changes.

A plan is asked for in the transaction that executes the statement, right before it: so the session's own settings
count.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import Connection, event

from popserver.database.database import Database

NOT_CAUGHT = "popmq_not_caught"  # an execution option
WIDTH = 120
LONG, SHOWN = 2_000, 1_200  # characters: of a longer statement the first ones are shown, and a digest of it
# One of the hundreds of `database.invariants`, which may name every table.
_INVARIANT = re.compile(r"\)\ss\sWHERE\ss\.group_id\sIN\s\(0,\s")
_PLANNED = ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
_PARAMETER = re.compile(r"(?:%\(\w+\)s|%s|\?)(?:::\w+)?")
_LIST = re.compile(r"IN \(\?(?:, \?)*\)")
_ROW = r"\((?:\?(?:, )?)+\)"
_ROWS = re.compile(rf"VALUES {_ROW}(?:, {_ROW})*")
_SAME_NAME = re.compile(r"\.(\w+) AS \1\b")
# Columns of a table that are only selected, more than three in a row.
_COLUMN = r"\w+\.\w+"
_COLUMNS = re.compile(rf"({_COLUMN})(?:, {_COLUMN}){{2,}}, ({_COLUMN})(?![\w ]* ?[=<>*+-])")
# Rows that a statement takes as one parameter (`database.rows`).
_FIELD = r"CAST\(anon_\d+\.value ->> \d+ AS \w+\) AS (\w+)"
_ELEMENTS = r"jsonb_array_elements\(CAST\(\? AS jsonb\)\) WHERE jsonb_typeof\(value\) = 'array'"
_ARRAY = rf"(?:\(SELECT value FROM {_ELEMENTS}\)|json_each\(\?\)) AS anon_\d+"
_GIVEN = re.compile(rf"\(SELECT ({_FIELD}(?:, {_FIELD})*) FROM {_ARRAY}\)")

# In a plan of Postgres: what is kept of the lines below a node, and what a given row, a value, a number look like.
_KEPT = ("Index Cond: ", "TID Cond: ", "Sort Key: ")
_VALUE = r"\(jsonb_array_elements(?:_\d+)?\.value ->> '?(\d+)'?\)"
_GIVEN_FIELD = re.compile(rf"\({_VALUE}\)::\w+|{_VALUE}")
_QUOTED = re.compile(r"'(?:[^']|'')*'(?:::(?:\"\w+\"|[a-z ]+\b)(?:\[\])?)?")
_NUMBER = re.compile(r"(?<![\w$.\"])-?\d+(?:\.\d+)?\b")
_RETURNED = re.compile(r" \(returns [^)]*\)")
_COUNTED = re.compile(r"(\banon_|\bSUBQUERY |Plan |\$)\d+")  # names that only say how many there are before
_ROWS_OF_VALUES = re.compile(r"SCAN \d+(?: CONSTANT ROWS?|-ROW VALUES CLAUSE)")


class Block:
    """A statement with what the database does for it: each other plan with the act in which it first came."""

    def __init__(self, act: str) -> None:
        self.act = act
        self.plans: dict[str, str] = {}

    def shown(self, text: str) -> str:
        lines = [text]
        for plan, act in self.plans.items():
            if act != self.act:
                lines.append(f"  {act}:")
            if plan:
                lines.append(textwrap.indent(plan, "    "))
        return "\n".join(lines)


class Catcher:
    """The statements of acts; a plan is asked for once in each act."""

    def __init__(self) -> None:
        self.caught: dict[str, Block] = {}  # by the text
        self._act = ""
        self._seen: set[str] = set()

    @contextmanager
    def act(self, name: str, database: Database) -> Iterator[None]:
        """What the writer and the readers of the database execute in this block."""
        self._act, self._seen = name, set()
        engines = {database.writing, database.reading}
        for each in engines:
            event.listen(each, "before_cursor_execute", self._catch)
        try:
            yield
        finally:
            for each in engines:
                event.remove(each, "before_cursor_execute", self._catch)

    def blocks(self, *, but: Collection[str] = ()) -> Iterator[tuple[str, str]]:
        """Each statement's act, and its text with its plans, without those that `but` has."""
        for text, block in self.caught.items():
            if (shown := block.shown(text)) not in but:
                yield block.act, shown

    def _catch(self, conn: Connection, _cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if context.execution_options.get(NOT_CAUGHT) or not statement.lstrip().startswith(_PLANNED):
            return
        if (text := readable(statement)) not in self._seen and not _INVARIANT.search(text):
            self._seen.add(text)
            plan = _explain(conn, statement, parameters[0] if many else parameters)
            self.caught.setdefault(text, Block(self._act)).plans.setdefault(plan, self._act)


@cache
def readable(statement: str) -> str:
    """The text of a statement in lines: `?` for a parameter, `(?…)` for a list of them, `rows(…)` for given rows."""
    text = _PARAMETER.sub("?", " ".join(statement.split())).replace("%%", "%")
    text = _ROWS.sub("VALUES (?…)", _LIST.sub("IN (?…)", text))
    text = _GIVEN.sub(lambda found: f"rows({', '.join(re.findall(_FIELD, found[1]))})", text)
    text = _SAME_NAME.sub(r".\1", text)
    text = _COLUMNS.sub(r"\1, …, \2", text)
    if len(text) > LONG:
        text = f"{text[:SHOWN]} … {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return "\n".join(textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _explain(conn: Connection, statement: str, parameters: Any) -> str:
    driver: Any = conn.connection.driver_connection
    if conn.dialect.name == "sqlite":
        return _tree_of_sqlite(driver.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall())
    # A prepared one would be kept by the session.
    rows = driver.execute(f"EXPLAIN (COSTS OFF) {statement}", parameters or None, prepare=False).fetchall()
    return _tree_of_postgres([line for (line,) in rows])


def _tree_of_sqlite(rows: Sequence[tuple[int, int, int, str]]) -> str:
    depth = {0: -1}
    lines = []
    for number, parent, _, detail in rows:
        depth[number] = depth[parent] + 1
        if not _ROWS_OF_VALUES.fullmatch(detail):  # how many there are changes nothing
            lines.append("  " * depth[number] + _without_numbers(detail))
    return "\n".join(lines)


def _tree_of_postgres(plan: Sequence[str]) -> str:
    """Each node with the conditions by which it finds rows; filters are in the statement."""
    lines: list[str] = []
    above: list[int] = []  # how far the nodes above are indented
    for line in plan:
        detail = line.lstrip(" ")
        indent = len(line) - len(detail)
        if not lines or detail.startswith(("->  ", "CTE ", "InitPlan ", "SubPlan ")):
            while above and above[-1] >= indent:
                above.pop()
            lines.append("  " * len(above) + _without_numbers(detail.removeprefix("->  ")))
            above.append(indent)
        elif detail.startswith(_KEPT):
            lines[-1] += f"; {_without_values(detail)}"
    return "\n".join(lines)


def _without_numbers(detail: str) -> str:
    return _COUNTED.sub(lambda found: found[1].rstrip("_ "), _RETURNED.sub("", detail))


def _without_values(condition: str) -> str:
    name, colon, rest = condition.partition(": ")
    rest = _GIVEN_FIELD.sub(lambda found: f"given.{found[1] or found[2]}", rest)
    return f"{name}{colon}{_NUMBER.sub('?', _without_numbers(_QUOTED.sub('?', rest)))}"
