"""Which dead letters a command of `popmq dlq` was asked about, and of whom."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Final

from popclient.admin import Admin, DeadLetterSelection
from popclient.cli import UsageError
from popclient.cli.arguments import client_config

GONE: Final = "(deleted)"
# Steps over many dead letters take their time; whether a server is there at all is still told fast.
PATIENCE_S: Final = 60.0


def admin_of(arguments: Namespace) -> Admin:
    return Admin(replace(client_config(arguments), request_timeout=PATIENCE_S))


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
