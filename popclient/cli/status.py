"""`popmq status`"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from popclient.admin import Admin, Budget
from popclient.cli.arguments import client_config
from popclient.cli.groups import lag_documents, lag_table
from popclient.cli.output import fields, hint_lines, local, milliseconds, say, table, utc, written


def show(arguments: Namespace) -> int:
    config = client_config(arguments)
    with Admin(config) as admin:
        status = admin.status()
    up = timedelta(seconds=(status.now - status.started_at) // timedelta(seconds=1))
    lines = fields(
        [
            ("server", f"popmq {status.version} at {config.endpoints}, up {written(up)}"),
            ("store", f"{status.store} ({status.durability}, schema {status.schema_revision})"),
            ("time", local(status.now)),
            ("topics", status.topics),
            ("groups", status.groups),
            ("messages", status.messages),
            ("dead letters", status.dead_letters),
            ("overdue", written(status.oldest_overdue) if status.oldest_overdue else ""),
            ("clients", f"{status.connected_clients} connected, {status.parked_polls} polls parked"),
        ]
    )
    document = {
        "endpoint": config.endpoints,
        "version": status.version,
        "store": status.store,
        "durability": status.durability,
        "schema": status.schema_revision,
        "started_at": utc(status.started_at),
        "now": utc(status.now),
        "topics": status.topics,
        "groups": status.groups,
        "messages": status.messages,
        "dead_letters": status.dead_letters,
        "connected_clients": status.connected_clients,
        "parked_polls": status.parked_polls,
        "oldest_overdue_ms": milliseconds(status.oldest_overdue),
        "hints": list(status.hints),
        "budgets": [asdict(each) for each in status.budgets],
        "lag": lag_documents(status.lag),
    }
    shown = [*lines, *hint_lines(status.hints), *_budget_lines(status.budgets), "", *lag_table(status.lag)]
    return say(arguments, document, shown)


def confirm_clock(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        sentence = admin.confirm_clock()
    return say(arguments, {"sentence": sentence}, [sentence])


def _budget_lines(budgets: Sequence[Budget]) -> list[str]:
    """Those that were or may soon be exhausted; --json has all."""
    rows = [
        (each.name, each.unit, each.used, each.peak, each.limit, each.refused, f"--{each.option.replace('_', '-')}")
        for each in budgets
        if each.refused or 2 * each.peak > each.limit
    ]
    return ["", *table(["budget", "unit", "used", "peak", "limit", "refused", "option"], rows)] if rows else []
