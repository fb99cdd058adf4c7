"""How a command is laid out: its parser, and where its work is done."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any


def add_actions(commands: Any, name: str, text: str) -> Any:
    """A command that has commands of its own."""
    return commands.add_parser(name, help=text, description=text).add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True
    )


def add_command(commands: Any, name: str, text: str, work: str, *, alias: str | None = None) -> argparse.ArgumentParser:
    """A command, and where its work is done: `module:function`, loaded when it is run."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        aliases=() if alias is None else (alias,),
        help=text,
        description=text,
        epilog="Everywhere: --endpoint, --namespace, --json; see popmq --help.",
    )
    parser.set_defaults(run=_later(*work.split(":")))
    return parser


def _later(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"popclient.cli.{module}"), function)(arguments)
        return status

    return run
