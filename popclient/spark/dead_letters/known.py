"""Refuses a group, a topic or a plan that does not exist: no rows would look like no dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final

from sqlalchemy import Connection, column, select, table
from sqlalchemy.sql.selectable import TableClause

from popclient.spark.dead_letters.options import DeadLetterOptions

_SHOWN_MAX: Final = 20


def require_known(conn: Connection, options: DeadLetterOptions) -> None:
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
