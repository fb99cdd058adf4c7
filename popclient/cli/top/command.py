"""`popmq top`: the groups of a server, live on a terminal, or once."""

from __future__ import annotations

import sys
from argparse import Namespace
from datetime import timedelta
from typing import Any

from popclient.admin import Admin
from popclient.cli import OK
from popclient.cli.arguments import UsageError, client_config
from popclient.cli.output import GONE, hint_lines, report, table_of
from popclient.cli.top.sample import TopRow, TopSample, heading, in_order, oldest_text, rows_of, sample


def top(arguments: Namespace) -> int:
    """Show the groups until `q` is pressed, or with `--once` one frame."""
    with Admin(client_config(arguments)) as admin:
        if arguments.once or arguments.json:
            now = sample(admin)
            rows = in_order(rows_of(now, None), arguments.sort)
            return report(arguments, [_document(row) for row in rows], _lines(now, rows))
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("popmq top needs a terminal; print one frame with --once, or JSON with --json")
        from popclient.cli.top.screen import watch  # it needs the extra cli

        watch(admin, arguments)
    return OK


def _lines(now: TopSample, rows: list[TopRow]) -> list[str]:
    """One frame; without rates, which need two samples."""
    table = table_of(
        rows,
        "group topic ready inflight waiting_retry commit dlq oldest_ready members state",
        "no group has received from a topic yet",
        topic=lambda row: row.topic or GONE,
        oldest_ready=oldest_text,
        state=lambda row: "paused" if row.is_paused else "",
    )
    return ["".join(heading(now, rows)), *table, *hint_lines(now.status.hints)]


def _document(row: TopRow) -> dict[str, Any]:
    oldest = None if row.oldest_ready is None else row.oldest_ready // timedelta(milliseconds=1)
    named = row._asdict()
    del named["oldest_ready"]
    return {**named, "topic": row.topic or None, "oldest_ready_ms": oldest}
