"""`popmq dlq list|show|purge|classify`"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from popclient.admin import Admin, DeadLetter, DeadLetterSelection
from popclient.cli import REFUSED
from popclient.cli.arguments import PROPERTY, confirm, counted
from popclient.cli.dead_letters.selection import UserFunction, admin_of, selection_of
from popclient.cli.messages import in_any_case
from popclient.cli.output import (
    GONE,
    ProgressLog,
    body_lines,
    excerpt,
    fields,
    message_document,
    message_fields,
    picked,
    report,
    table,
    table_of,
    utc,
    with_lite_topics,
)
from popclient.errors import NotFound


def list_some(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        letters = admin.dead_letters(selection_of(arguments), after_id=arguments.after)
        found = list(islice(letters, arguments.max))
    columns = "id message_id topic attempts dead_since reason redrive body"
    lines = table_of(
        found,
        with_lite_topics(columns, [each.message for each in found], "attempts"),
        "no dead letters",
        message_id="origin_message_id",
        topic=lambda each: each.topic or GONE,
        lite_topic=lambda each: each.message and each.message.lite_topic,
        attempts="delivery_attempt",
        dead_since="dead_at",
        redrive=_redrive,
        body=lambda each: excerpt(each.message) if each.message else GONE,
    )
    return report(arguments, list(map(_document, found)), lines)


def show(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        found = _found(admin, arguments.group, arguments.message_id)
    lines = fields(
        [
            ("dead letter", found.id),
            ("group", found.group),
            ("came from", found.topic or GONE),
            ("attempts", found.delivery_attempt),
            ("dead since", found.dead_at),
            ("reason", found.reason),
            ("redrive", _redrive(found)),
            *(message_fields(found.message) if found.message else ()),
        ]
    )
    return report(arguments, _document(found), [*lines, "", *(body_lines(found.message) if found.message else [GONE])])


def purge(arguments: Namespace) -> int:
    """Exit code 1 if the user does not confirm."""
    selection = selection_of(arguments)
    with admin_of(arguments) as admin:
        if not arguments.yes and (count := sum(1 for _ in admin.dead_letters(selection, without_bodies=True))):
            what = f"deletes {counted(count, 'dead letter')} of {arguments.group} with their copies"
            if not confirm(arguments, what):
                return REFUSED
        progress_log = ProgressLog()
        purged = admin.purge_dead_letters(selection, told=lambda so_far: progress_log.progress(f"{so_far:,} removed"))
    lines = [f"removed {counted(purged, 'dead letter')} of {arguments.group}"]
    return report(arguments, {"group": arguments.group, "purged": purged}, lines)


def _found(admin: Admin, group: str, written: str) -> DeadLetter:
    """By message id, or else by the number of the dead letter; raises the `NotFound` of the first."""
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
        **picked(found, "id group topic"),
        "message_id": found.origin_message_id,
        **picked(found, "delivery_attempt reason dead_at redrive_state plan_id"),
        "message": message_document(found.message) if found.message else None,
    }


Classifier = Callable[[DeadLetter], object | None]


@dataclass(slots=True)
class Class:
    """Statistics of the dead letters of one class."""

    example_id: str
    oldest: datetime
    newest: datetime
    count: int = 0

    def add(self, letter: DeadLetter) -> None:
        self.count += 1
        self.oldest = min(self.oldest, letter.dead_at)
        self.newest = max(self.newest, letter.dead_at)


def classify(arguments: Namespace) -> int:
    classes_by: Classifier = _by(arguments.by)
    if arguments.function:
        classes_by = UserFunction(arguments.function, str)
    with admin_of(arguments) as admin:
        letters = admin.dead_letters(selection_of(arguments), without_bodies=not arguments.function)
        classes = classified(letters, classes_by)
    return _report(arguments, classes)


def classified(letters: Iterable[DeadLetter], by: Classifier) -> dict[object | None, Class]:
    """The largest class first; None: the dead letters without a class."""
    classes: dict[object | None, Class] = {}
    for letter in letters:
        name = by(letter)
        if name not in classes:
            classes[name] = Class(letter.origin_message_id, letter.dead_at, letter.dead_at)
        classes[name].add(letter)
    return dict(sorted(classes.items(), key=lambda each: -each[1].count))


def _by(what: str) -> Classifier:
    if what.startswith(PROPERTY):
        name = what.removeprefix(PROPERTY)
        return lambda letter: letter.message and letter.message.properties.get(name)
    return {
        "reason": lambda letter: letter.reason or None,
        "topic": lambda letter: letter.topic or None,
        "attempt": lambda letter: letter.delivery_attempt,
        "tag": lambda letter: letter.message and letter.message.tag,
        "message_group": lambda letter: letter.message and letter.message.message_group,
    }[what]


def _report(arguments: Namespace, classes: dict[object | None, Class]) -> int:
    total = sum(each.count for each in classes.values())
    columns = ["class", "count", "share", "oldest", "newest", "example"]
    rows = [
        (
            "(none)" if name is None else name,
            each.count,
            f"{each.count / total:.1%}",
            each.oldest,
            each.newest,
            each.example_id,
        )
        for name, each in classes.items()
    ]
    documents = [
        {
            "class": name,
            "count": each.count,
            "share": each.count / total,
            "oldest_at": utc(each.oldest),
            "newest_at": utc(each.newest),
            "example_id": each.example_id,
        }
        for name, each in classes.items()
    ]
    lines = table(columns, rows, "no dead letters")
    if total:
        kinds = "1 class" if len(classes) == 1 else f"{len(classes):,} classes"
        lines += ["", f"{counted(total, 'dead letter')} in {kinds}"]
    return report(arguments, {"group": arguments.group, "count": total, "classes": documents}, lines)
