"""Which dead letters a command of `popmq dlq` was asked about."""

from __future__ import annotations

from argparse import Namespace

from popclient.admin import DeadLetterSelection
from popclient.cli import UsageError

GONE = "(deleted)"


def selection_of(arguments: Namespace, *, redriven_too: bool = False) -> DeadLetterSelection:
    try:
        return DeadLetterSelection(
            arguments.group,
            arguments.topic,
            arguments.dead_from,
            arguments.dead_until,
            arguments.where,
            arguments.ids,
            redriven_too=redriven_too or getattr(arguments, "redriven_too", False),
        )
    except ValueError:
        raise UsageError(
            f"--from {arguments.dead_from.isoformat()} is not before --until {arguments.dead_until.isoformat()};"
            " nothing can have died between"
        ) from None


def narrows(arguments: Namespace) -> list[str]:
    """The options of a selection that were given, the group apart."""
    given = {
        "--topic": arguments.topic,
        "--from": arguments.dead_from,
        "--until": arguments.dead_until,
        "--where": arguments.where,
        "--id": arguments.ids,
    }
    return [name for name, value in given.items() if value]
