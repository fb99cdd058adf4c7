"""`popmq group …`, and the lag table that `popmq status` shows as well."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from popclient.admin import Admin, Group, GroupLag
from popclient.cli import OK, REFUSED, UsageError
from popclient.cli.arguments import client_config, confirm
from popclient.cli.output import fields, local, milliseconds, say, table, utc, written


def create(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        made = admin.create_group(
            arguments.name,
            max_attempts=arguments.max_attempts or 0,
            retry_intervals=arguments.retry,
            consume_from=(arguments.consume_from or "").upper(),
            history=arguments.history or "",
        )
    return say(arguments, _document(made), [f"made consumer group {made.name}: {_policy(made)}"])


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        groups = admin.list_groups()
    columns = ["group", "namespace", "attempts", "consume from", "history", "mode", "created"]
    rows = [
        (
            each.name,
            each.namespace,
            each.max_attempts,
            each.consume_from,
            each.history,
            each.mode or "unused",
            local(each.created_at),
        )
        for each in groups
    ]
    return say(arguments, [_document(each) for each in groups], table(columns, rows, "no consumer groups"))


def show(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        group = admin.get_group(arguments.name)
    lines = fields(
        [
            ("group", group.name),
            ("namespace", group.namespace),
            ("attempts", group.max_attempts),
            ("retry after", _ladder(group)),
            ("consume from", group.consume_from),
            ("history", group.history),
            ("mode", group.mode or "unused"),
            ("created", local(group.created_at)),
        ]
    )
    document = {**_document(group), "lag": lag_documents(group.lag)}
    return say(arguments, document, [*lines, "", *lag_table(group.lag)])


def update(arguments: Namespace) -> int:
    if arguments.max_attempts is None and not arguments.retry and arguments.history is None:
        raise UsageError("nothing to change; give --max-attempts, --retry or --history")
    with Admin(client_config(arguments)) as admin:
        changed = admin.update_group(
            arguments.name,
            max_attempts=arguments.max_attempts,
            retry_intervals=arguments.retry,
            history=arguments.history,
        )
    return say(arguments, _document(changed), [f"consumer group {changed.name}: {_policy(changed)}"])


def delete(arguments: Namespace) -> int:
    if not confirm(arguments, f"deleting consumer group {arguments.name} with its progress and its dead letters"):
        return say(arguments, {"name": arguments.name, "deleted": False}, ["nothing deleted"]) or REFUSED
    with Admin(client_config(arguments)) as admin:
        admin.delete_group(arguments.name)
    return say(arguments, {"name": arguments.name, "deleted": True}, [f"deleted consumer group {arguments.name}"]) or OK


def lag_table(lag: Sequence[GroupLag]) -> list[str]:
    columns = ["group", "topic", "ready", "inflight", "waiting retry", "dead letters", "oldest ready"]
    rows = [
        (
            each.group,
            each.topic,
            each.ready,
            each.inflight,
            each.waiting_retry,
            each.dead_letters,
            local(each.oldest_ready),
        )
        for each in lag
    ]
    return table(columns, rows, "no group has met a topic")


def lag_documents(lag: Sequence[GroupLag]) -> list[dict[str, Any]]:
    return [
        {
            "group": each.group,
            "topic": each.topic,
            "ready": each.ready,
            "inflight": each.inflight,
            "waiting_retry": each.waiting_retry,
            "dead_letters": each.dead_letters,
            "oldest_ready_at": utc(each.oldest_ready),
        }
        for each in lag
    ]


def _policy(group: Group) -> str:
    return f"{group.max_attempts} attempts, retry after {_ladder(group)}, history {group.history}"


def _ladder(group: Group) -> str:
    return ",".join(map(written, group.retry_intervals))


def _document(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "namespace": group.namespace,
        "max_attempts": group.max_attempts,
        "retry_intervals_ms": list(map(milliseconds, group.retry_intervals)),
        "consume_from": group.consume_from,
        "history": group.history,
        "mode": group.mode,
        "created_at": utc(group.created_at),
    }
