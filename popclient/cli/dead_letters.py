"""`popmq dlq list|show|purge`"""

from __future__ import annotations

from argparse import Namespace
from itertools import islice
from typing import Any

from popclient.admin import Admin, DeadLetter, DeadLetterSelection
from popclient.cli import OK, REFUSED
from popclient.cli.ids import in_any_case
from popclient.cli.output import excerpt, fields, local, message_document, message_fields, say, table, utc, whole
from popclient.cli.selection import GONE, admin_of, selection_of
from popclient.cli.telling import Telling
from popclient.errors import NotFound


def list_some(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        letters = admin.dead_letters(selection_of(arguments), after_id=arguments.after)
        found = list(islice(letters, arguments.max))
    columns = ["id", "message id", "topic", "attempts", "dead since", "reason", "redrive", "body"]
    rows = [
        (
            each.id,
            each.origin_message_id,
            each.topic or GONE,
            each.delivery_attempt,
            local(each.dead_at),
            each.reason,
            _redrive(each),
            excerpt(each.message) if each.message else GONE,
        )
        for each in found
    ]
    return say(arguments, [_document(each) for each in found], table(columns, rows, "no dead letters"))


def show(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        found = _found(admin, arguments.group, arguments.message_id)
    lines = fields(
        [
            ("dead letter", found.id),
            ("group", found.group),
            ("came from", found.topic or GONE),
            ("attempts", found.delivery_attempt),
            ("dead since", local(found.dead_at)),
            ("reason", found.reason),
            ("redrive", _redrive(found)),
            *(message_fields(found.message) if found.message else ()),
        ]
    )
    return say(arguments, _document(found), [*lines, "", *(whole(found.message) if found.message else [GONE])])


def purge(arguments: Namespace) -> int:
    """Exit code 1 where nothing was done, because it was not confirmed."""
    selection = selection_of(arguments)
    with admin_of(arguments) as admin:
        if not arguments.yes:
            return _would_purge(arguments, admin, selection)
        telling = Telling()
        purged = admin.purge_dead_letters(selection, told=lambda so_far: telling.progress(f"{so_far} removed"))
    lines = [f"removed {purged} dead letters of {arguments.group}"]
    return say(arguments, {"group": arguments.group, "purged": purged}, lines)


def _would_purge(arguments: Namespace, admin: Admin, selection: DeadLetterSelection) -> int:
    count = sum(1 for _ in admin.dead_letters(selection, without_bodies=True))
    lines = [f"{count} dead letters of {arguments.group} would be removed for ever; nothing is, without --yes"]
    say(arguments, {"group": arguments.group, "purged": 0, "would_purge": count}, lines)
    return REFUSED if count else OK


def _found(admin: Admin, group: str, written: str) -> DeadLetter:
    """By message id, else by the dead letter's own number; raises `NotFound` of the first."""
    try:
        return in_any_case(lambda each: admin.get_dead_letter(group, each), written)
    except NotFound:
        if not (written.isascii() and written.isdigit() and len(written) < len(str(2**63))):
            raise
        numbered = DeadLetterSelection(group, ids=[int(written)], redriven_too=True)
        for letter in admin.dead_letters(numbered):
            return letter
        raise


def _redrive(letter: DeadLetter) -> str:
    return f"{letter.redrive_state} {letter.plan_id}".strip()


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
        "plan_id": found.plan_id,
        "message": message_document(found.message) if found.message else None,
    }
