"""`popmq dlq classify`: how many dead letters there are of each kind."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from popclient.admin import DeadLetter
from popclient.cli.arguments import PROPERTY
from popclient.cli.output import local, say, table, utc
from popclient.cli.selection import admin_of, selection_of
from popclient.cli.user_function import UserFunction

Classifier = Callable[[DeadLetter], object | None]


@dataclass(slots=True)
class Class:
    """What is known of the dead letters of one kind."""

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
    return _say(arguments, classes)


def classified(letters: Iterable[DeadLetter], by: Classifier) -> dict[object | None, Class]:
    """The largest class first; None is what the classifier has no word for."""
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


def _say(arguments: Namespace, classes: dict[object | None, Class]) -> int:
    total = sum(each.count for each in classes.values())
    columns = ["class", "count", "share", "oldest", "newest", "example"]
    rows = [
        (
            "(none)" if name is None else name,
            each.count,
            f"{each.count / total:.1%}",
            local(each.oldest),
            local(each.newest),
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
        lines += ["", f"{total} dead letters in {len(classes)} classes"]
    return say(arguments, {"group": arguments.group, "count": total, "classes": documents}, lines)
