"""`popmq status|health|repair|clock`: the state of a server, and what an operator can do about it."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from popclient.admin import Admin, Budget, Status, Storage, StoreRepair
from popclient.cli import OK, REFUSED
from popclient.cli.arguments import client_config
from popclient.cli.groups import dead_documents, lag_documents, lag_table
from popclient.cli.output import (
    duration_text,
    fields,
    hint_lines,
    milliseconds,
    picked,
    report,
    size,
    table,
    table_of,
    utc,
)
from popclient.errors import Unreachable

LOOK_AGAIN_S = 0.5


def status(arguments: Namespace) -> int:
    config = client_config(arguments)
    with Admin(config) as admin:
        found = admin.status()
    up = timedelta(seconds=(found.now - found.started_at) // timedelta(seconds=1))
    lines = fields(
        [
            ("server", f"popmq {found.version} at {config.endpoints}, up {duration_text(up)}"),
            ("store", f"{found.store} ({found.durability}, schema {found.schema_revision})"),
            ("space", _space(found.storage)),
            ("time", found.now),
            ("topics", found.topics),
            ("groups", found.groups),
            ("messages", found.messages),
            ("dead letters", found.dead_letters),
            ("overdue", duration_text(found.oldest_overdue) if found.oldest_overdue else ""),
            ("clients", f"{found.connected_clients} connected, {found.parked_polls} polls parked"),
        ]
    )
    document = {
        "endpoint": config.endpoints,
        **picked(found, "version store durability"),
        "schema": found.schema_revision,
        **picked(found, "started_at now topics groups messages dead_letters connected_clients parked_polls"),
        "oldest_overdue_ms": milliseconds(found.oldest_overdue),
        "hints": list(found.hints),
        "budgets": [asdict(each) for each in found.budgets],
        "storage": asdict(found.storage or Storage()),
        "servers": [{**asdict(each), "last_seen": utc(each.last_seen)} for each in found.servers],
        "lag": lag_documents(found.lag),
        "dead_elsewhere": dead_documents(found.dead_elsewhere),
    }
    shown = [*lines, *hint_lines(found.hints), *_server_lines(found), *_budget_lines(found.budgets)]
    return report(arguments, document, [*shown, "", *lag_table(found.lag, found.dead_elsewhere)])


def health(arguments: Namespace) -> int:
    """Exit code 1 if the server should not get requests."""
    with Admin(client_config(arguments)) as admin:
        found = admin.health()
    answer = "ready" if found.ready else "not ready" if found.live else "not live"
    checks = table_of(found.checks, "ok check reason", ok=lambda check: "yes" if check.ok else "no", check="name")
    report(arguments, asdict(found), [answer, "", *checks, *hint_lines(found.warnings)])
    return OK if found.ready else REFUSED


def drain(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        begun = admin.drain()
        while arguments.wait and _still_leaves(admin, begun.address):
            time.sleep(LOOK_AGAIN_S)
    until = f"it stops in {duration_text(begun.handover)}" if not arguments.wait else "it takes no more calls"
    sentence = f"the clients of {begun.address or 'this server'} go to the other servers; {until}"
    document = {"address": begun.address, "handover_ms": milliseconds(begun.handover), "stopped": arguments.wait}
    return report(arguments, document, [sentence])


def _still_leaves(admin: Admin, address: str) -> bool:
    """By its own status; or, behind a load balancer and under a supervisor, by that of the server that answers now."""
    try:
        servers = admin.status().servers
    except Unreachable:
        return False
    return any(each.address == address and each.leaving and each.running for each in servers)


def repair(arguments: Namespace) -> int:
    """Without --yes it changes nothing. Exit code 1 if something is left to repair."""
    with Admin(client_config(arguments)) as admin:
        done = admin.repair(dry_run=not arguments.yes)
    rows = table_of(
        done.rows,
        "repaired what_is_wrong group topic queue offset message_group the_repair",
        repaired=lambda row: "yes" if row.repaired else "no",
        what_is_wrong="invariant",
        queue="queue_id",
        offset="queue_offset",
        the_repair="repair",
    )
    report(arguments, asdict(done), [_repair_sentence(done, arguments), *(["", *rows] if done.rows else [])])
    return OK if done.repaired == done.found else REFUSED


def _repair_sentence(done: StoreRepair, arguments: Namespace) -> str:
    if not done.found:
        return "nothing keeps messages from being delivered"
    if not arguments.yes:
        return f"{done.found} rows may keep messages from being delivered; repair them with --yes"
    left = done.found - done.repaired
    if not left:
        return f"{done.repaired} rows are repaired"
    return (
        f"{done.repaired} of {done.found} rows are repaired; the others were sound by then, or another transaction has"
        " locked them: repeat the command"
    )


def confirm_clock(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        sentence = admin.confirm_clock()
    return report(arguments, {"sentence": sentence}, [sentence])


def _space(storage: Storage | None) -> str:
    """The sizes that the server knows."""
    if storage is None or storage.database_bytes is None:
        return ""
    parts = [f"database {size(storage.database_bytes)}"]
    if storage.wal_bytes is not None:
        parts.append(f"WAL {size(storage.wal_bytes)}")
    if storage.disk_free_bytes is not None and storage.disk_bytes is not None:
        parts.append(f"{size(storage.disk_free_bytes)} of {size(storage.disk_bytes)} are free on its disk")
    return ", ".join(parts)


def _server_lines(status: Status) -> list[str]:
    """A table of the servers, if there are several."""
    uses = Counter(each.address for each in status.servers)
    rows = [
        # Workers of one `popmq serve` have one address.
        (
            each.address if each.address and uses[each.address] == 1 else f"{each.address} {each.server_id}".strip(),
            "silent" if not each.running else "leaving" if each.leaving else "running",
            duration_text(status.now - each.last_seen),
        )
        for each in status.servers
    ]
    return ["", *table(["server", "state", "last seen ago"], rows)] if len(rows) > 1 else []


def _budget_lines(budgets: Sequence[Budget]) -> list[str]:
    """The budgets that were exhausted or used by more than half; --json has all."""
    shown = [each for each in budgets if each.refused or 2 * each.peak > each.limit]
    columns = "budget unit used peak limit refused option"
    return ["", *table_of(shown, columns, budget="name", option=_option)] if shown else []


def _option(budget: Budget) -> str:
    return f"--{budget.option.replace('_', '-')}"
