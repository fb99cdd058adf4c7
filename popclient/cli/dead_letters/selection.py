"""The dead letters that a command of `popmq dlq` selects, its server, and the function of the user."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from popclient._arguments import is_async
from popclient.admin import Admin, DeadLetter, DeadLetterSelection
from popclient.cli.arguments import UsageError, client_config
from popclient.errors import PopError

# A step over many dead letters may take long. A server that is not there is still reported early.
PATIENCE_S: Final = 60.0


def admin_of(arguments: Namespace) -> Admin:
    return Admin(replace(client_config(arguments), request_timeout=PATIENCE_S))


def selection_of(arguments: Namespace) -> DeadLetterSelection:
    try:
        return DeadLetterSelection(
            arguments.group,
            arguments.topic,
            arguments.dead_from,
            arguments.dead_until,
            arguments.where,
            arguments.ids,
            redriven_too=getattr(arguments, "redriven_too", False),
        )
    except ValueError:
        raise UsageError(
            f"--from {arguments.dead_from.isoformat()} is not before --until {arguments.dead_until.isoformat()};"
            " no message can have died between them"
        ) from None


def given_options(arguments: Namespace) -> list[str]:
    """The options of a selection that were given, without the group."""
    given = {
        "--topic": arguments.topic,
        "--from": arguments.dead_from,
        "--until": arguments.dead_until,
        "--where": arguments.where,
        "--id": arguments.ids,
    }
    return [name for name, value in given.items() if value]


Result = TypeVar("Result")


class FunctionFailed(PopError):
    """A user's function raised, or returned a value of a wrong type."""


class UserFunction(Generic[Result]):
    """Takes a DeadLetter, returns a `kind` or None. The error of a failure names the dead letter."""

    def __init__(self, written: str, kind: type[Result]) -> None:
        self._written = written
        self._kind = kind
        self._call = _loaded(written)

    def __call__(self, letter: DeadLetter) -> Result | None:
        try:
            result = self._call(letter)
        except Exception as error:
            raise FunctionFailed(f"{self._at(letter)} raised {type(error).__name__}: {error}") from error
        if result is not None and not isinstance(result, self._kind):
            raise FunctionFailed(f"{self._at(letter)} returned {result!r}; it must be a {self._kind.__name__} or None")
        return result

    def _at(self, letter: DeadLetter) -> str:
        return f"{self._written}, given dead letter {letter.id} (message {letter.origin_message_id}),"


def _loaded(written: str) -> Callable[[DeadLetter], Any]:
    module_name, colon, name = written.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(f"'{written}' names no function; write module:function, such as fixes:repair")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise UsageError(f"module '{module_name}' needs '{missing.name}', which is not installed here") from missing
        raise UsageError(
            f"module '{missing.name}' is not found, neither in {here} nor among the installed packages"
        ) from None
    except Exception as error:
        raise UsageError(f"module '{module_name}' cannot be loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        what = "no" if function is None else "no callable"
        raise UsageError(f"module '{module_name}' has {what} '{name}'; define it there: def {name}(letter): ...")
    if is_async(function):
        raise UsageError(f"{written} is a coroutine function; it must be an ordinary one")
    found: Callable[[DeadLetter], Any] = function
    return found
