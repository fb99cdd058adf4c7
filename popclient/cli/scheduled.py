"""`popmq message scheduled|cancel`: what is in no queue yet."""

from __future__ import annotations

from argparse import Namespace
from itertools import islice
from typing import Any

from popclient.admin import Admin, ScheduledMessage
from popclient.cli import UsageError
from popclient.cli.arguments import client_config
from popclient.cli.output import excerpt, local, message_document, say, table, utc
from popclient.errors import NotFound


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = list(islice(admin.scheduled(arguments.topic), arguments.max))
    columns = ["message id", "kind", "due", "checks", "tag", "keys", "body"]
    rows = [
        (
            each.message.message_id,
            each.kind,
            local(each.due_at),
            each.checks if each.kind == "HALF" else "",
            each.message.tag,
            ",".join(each.message.keys),
            excerpt(each.message),
        )
        for each in found
    ]
    return say(arguments, [_document(each) for each in found], table(columns, rows, "nothing is scheduled"))


def cancel(arguments: Namespace) -> int:
    """By id or by key; exit code 4 where there is nothing to cancel."""
    if bool(arguments.message_id) == (arguments.key is not None):
        raise UsageError("name the messages by their ids, or all with a key by --key")
    with Admin(client_config(arguments)) as admin:
        cancelled = admin.cancel_scheduled(arguments.topic, arguments.message_id, key=arguments.key)
    if not cancelled:
        named = ", ".join(arguments.message_id) or f"with key {arguments.key}"
        raise NotFound(f"nothing of that name is scheduled in {arguments.topic}: {named}")
    lines = [f"cancelled {each}" for each in cancelled]
    return say(arguments, {"topic": arguments.topic, "cancelled": cancelled}, lines)


def _document(each: ScheduledMessage) -> dict[str, Any]:
    return {
        **message_document(each.message),
        # It has no place yet.
        "queue_id": None,
        "queue_offset": None,
        "kind": each.kind,
        "due_at": utc(each.due_at),
        "checks": each.checks,
        "transaction_id": each.transaction_id,
    }
