"""`--if-not-exists` of the commands that create something."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from popclient.cli.output import duration_text
from popclient.errors import BadRequest, NotFound

T = TypeVar("T")


def made_or_found(arguments: Namespace, make: Callable[[], T], find: Callable[[str], T]) -> tuple[T, bool]:
    """What `make` has created, and True; or with --if-not-exists what has this name already, and False."""
    if arguments.if_not_exists:
        with suppress(NotFound):
            return find(arguments.name), False
    try:
        return make(), True
    except BadRequest:
        if arguments.if_not_exists:  # another command may have created it meanwhile
            with suppress(NotFound):
                return find(arguments.name), False
        raise


def differing(options: Mapping[str, tuple[object, object]]) -> list[str]:
    """A part of a sentence for each option that was given and differs; options: by name what was given, what is."""
    return [
        f"{name} is {_shown(there)}, not {_shown(wanted)}"
        for name, (wanted, there) in options.items()
        if wanted not in (None, "", []) and wanted != there
    ]


def unchanged(what: str, name: str, differs: list[str]) -> list[str]:
    """The lines about what was there: a topic or a group."""
    lines = [f"{what} {name} exists and was not changed"]
    if differs:
        lines.append(f"it differs: {'; '.join(differs)}; see popmq {what.split()[-1]} update")
    return lines


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    if isinstance(value, timedelta):
        return duration_text(value)
    return "never" if value is None else str(value)
