"""`popmq dlq …`"""

from __future__ import annotations

from argparse import Namespace
from itertools import islice
from typing import Any

from popclient.admin import Admin, DeadLetter, DeadLetterSelection
from popclient.cli.arguments import client_config
from popclient.cli.ids import in_any_case
from popclient.cli.output import excerpt, fields, local, message_document, message_fields, say, table, utc, whole

_GONE = "(deleted)"


def list_some(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        wanted = DeadLetterSelection(arguments.group, arguments.topic)
        found = list(islice(admin.dead_letters(wanted, after_id=arguments.after), arguments.max))
    columns = ["id", "message id", "topic", "attempts", "dead since", "reason", "redrive", "body"]
    rows = [
        (
            each.id,
            each.origin_message_id,
            each.topic or _GONE,
            each.delivery_attempt,
            local(each.dead_at),
            each.reason,
            each.redrive_state,
            excerpt(each.message) if each.message else _GONE,
        )
        for each in found
    ]
    return say(arguments, [_document(each) for each in found], table(columns, rows, "no dead letters"))


def show(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = in_any_case(lambda each: admin.get_dead_letter(arguments.group, each), arguments.message_id)
    lines = fields(
        [
            ("group", found.group),
            ("came from", found.topic or _GONE),
            ("attempts", found.delivery_attempt),
            ("dead since", local(found.dead_at)),
            ("reason", found.reason),
            ("redrive", found.redrive_state),
            *(message_fields(found.message) if found.message else ()),
        ]
    )
    return say(arguments, _document(found), [*lines, "", *(whole(found.message) if found.message else [_GONE])])


def _document(found: DeadLetter) -> dict[str, Any]:
    return {
        "id": found.id,
        "group": found.group,
        "topic": found.topic,
        "message_id": found.origin_message_id,
        "delivery_attempt": found.delivery_attempt,
        "reason": found.reason,
        "dead_at": utc(found.dead_at),
        "redrive_state": found.redrive_state,
        "message": message_document(found.message) if found.message else None,
    }
