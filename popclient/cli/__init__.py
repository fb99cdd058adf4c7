"""The `popmq` command: finds its commands, runs one, and turns a failure into a sentence and an exit code.

Commands come from the entry points of group "popmq.commands", so that the client's code never imports the server's.
The exit codes are in the help of `popmq`.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, Final, NoReturn

from popclient.cli import streams
from popclient.cli.arguments import UsageError, confirm, in_options, is_about_tls
from popclient.cli.output import print_error
from popclient.config import parse_endpoints
from popclient.errors import NotFound, PopError, Unauthorized, Unreachable

OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_FOUND: Final = 4
INTERRUPTED: Final = 130  # as a shell reports SIGINT
OUTPUT_CLOSED: Final = 141  # as a shell reports SIGPIPE: the reader of the output has closed it

GROUP: Final = "popmq.commands"
# Commands of extras. Listed here, because without the extra their code cannot be loaded.
COMMANDS_OF: Final = {"server": ("serve", "backup", "restore", "db"), "console": ("console",)}
_EXTRA_OF_MODULE: Final = {
    "psycopg": "postgres",
    "pyspark": "spark",
    "pyarrow": "spark",
    "starlette": "console",
    "uvicorn": "console",
    "jinja2": "console",
    "rich": "cli",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    # gRPC reads it when it is loaded. Its log of a server that ends ("Got goaway") does not belong in the output.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    streams.prepare()
    try:
        return _run(parser().parse_args(argv))
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, SystemExit):  # --help and usage errors end by SystemExit
        failure = streams.output_failure()
        if failure is None:
            raise
        streams.discard(1)
        if isinstance(failure, BrokenPipeError):
            return OUTPUT_CLOSED
        return _fail(f"the output cannot be written: {failure.strerror}", REFUSED)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands of this installation."""
    root = _Parser(prog="popmq", description="PopMQ: a RocketMQ 5 compatible message broker.", epilog=_EPILOG)
    root.add_argument("--version", action="version", version=f"popmq {metadata.version('popmq')}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            add_commands: Callable[[Any], None] = entry.load()
        except ModuleNotFoundError as missing:
            _add_missing(commands, entry.name, missing)
        else:
            add_commands(commands)
    return root


def _run(arguments: argparse.Namespace) -> int:
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _fail(error, USAGE)
    except Unreachable as error:
        return _fail(_unreachable(error.sentence), UNREACHABLE)
    except NotFound as error:
        return _fail(error.sentence, NOT_FOUND)
    except Unauthorized as error:
        return _fail(f"{error.sentence}; popmq reads them from POPMQ_ACCESS_KEY and POPMQ_ACCESS_SECRET", REFUSED)
    except PopError as error:
        return _fail(in_options(error.sentence), REFUSED)
    except ModuleNotFoundError as missing:
        return _fail(_needs(arguments.command, _extra_of(arguments, missing)), REFUSED)


def _unreachable(sentence: str) -> str:
    if is_about_tls(sentence) or "through the proxy" in sentence or "port of the server for clients" in sentence:
        return in_options(sentence)
    if "popmq serve" in sentence:
        return f"{sentence} with --endpoint"
    return f"{sentence}; start a server with: popmq serve, or name another with --endpoint"


def _fail(sentence: object, status: int) -> int:
    print_error(f"popmq: {sentence}")
    return status


def _extra_of(arguments: argparse.Namespace, missing: ModuleNotFoundError) -> str:
    module = (missing.name or "").partition(".")[0]
    if module in _EXTRA_OF_MODULE:
        return _EXTRA_OF_MODULE[module]
    if arguments.run.__module__.startswith("popserver") and module not in {"popserver", "popclient", "popproto"}:
        return "server"
    if module == "sqlalchemy":
        return "sql"
    raise missing


def _needs(command: str, extra: str) -> str:
    return f"'{command}' needs the extra {extra} of PopMQ: {_install(extra)}"


def _install(extra: str) -> str:
    """PopMQ is not on PyPI, so its extras come from a checkout, as in README.md."""
    return f"pip install '.[{extra}]' in a checkout"


def _add_missing(commands: Any, extra: str, missing: ModuleNotFoundError) -> None:
    """Adds commands that only report which extra to install."""

    def refuse(arguments: argparse.Namespace) -> int:
        return _fail(_needs(arguments.command, extra), REFUSED)

    for name in COMMANDS_OF.get(extra, ()):
        command = commands.add_parser(name, help=f"needs {_install(extra)} ({missing.name} is missing)")
        command.instead = refuse


_EPILOG = (
    "The global options may stand anywhere. Durations are written 500ms, 10s, 5m, 2h or 1h30m."
    " Exit codes: 0 ok, 1 refused, 2 usage, 3 unreachable, 4 not found, 130 interrupted by Ctrl-C,"
    " 141 if the reader of the output has closed it."
)


_WRONG_CHOICE: Final = re.compile("invalid choice: '([^']*)'")


class _Parser(argparse.ArgumentParser):
    """Takes the global options at every level, and reports wrong arguments in one sentence.

    With `instead` set, it accepts any arguments and runs that function.
    """

    instead: Callable[[argparse.Namespace], int] | None = None

    def __init__(self, **options: Any) -> None:
        is_root = options.get("prog") == "popmq"
        super().__init__(allow_abbrev=False, **options)
        self._words: list[str] = []
        self._add_globals(shown=is_root)
        if is_root:
            self.set_defaults(endpoint=None, access_key=None, namespace="", json=False)
            self.set_defaults(ca=None, client_cert=None, client_key=None)
            self.set_defaults(confirm=confirm)  # for the server's commands, which do not import the client

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments, rest = self.parse_known_args(args, namespace)
        if rest:
            arguments.parser.refuse(rest)
        return arguments

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End with a sentence that names the unknown arguments, and the options that were probably meant."""
        wrong = [each.partition("=")[0] for each in unknown if each.startswith("--")]
        meant = dict.fromkeys(filter(None, (_nearest(each, self._option_string_actions) for each in wrong)))
        hint = f"; did you mean {' and '.join(meant)}?" if meant else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.instead is not None:
            return argparse.Namespace(run=self.instead), []
        self._words = list(sys.argv[1:] if args is None else args)
        arguments, rest = super().parse_known_args(args, namespace)
        # The innermost parser is first: it has the options of the command.
        arguments.parser = getattr(arguments, "parser", self)
        return arguments, rest

    def error(self, message: str) -> NoReturn:
        hint = ""
        if wrong := _WRONG_CHOICE.search(message):
            # The value of an unknown option was taken for the command.
            if unknown := self._unknown_options_before(wrong[1]):
                self._words = []  # `refuse` ends here again
                self.refuse(unknown)
            choices = [str(each) for action in self._actions for each in action.choices or ()]
            meant = difflib.get_close_matches(wrong[1], choices, 1)
            hint = f"; did you mean {meant[0]}?" if meant else ""
        print_error(f"popmq: {message}{hint} (see {self.prog} --help)")  # argparse would leave the sentence in a buffer
        sys.exit(USAGE)

    def _unknown_options_before(self, word: str) -> list[str]:
        before = self._words[: self._words.index(word)] if word in self._words else []
        is_option = [each for each in before if each.startswith("-") and each not in ("-", "--")]
        return [each for each in is_option if each.partition("=")[0] not in self._option_string_actions]

    def _add_globals(self, *, shown: bool) -> None:
        def add(*names: str, text: str, **kind: Any) -> None:
            # Suppressed defaults: the parser of a command must not reset an option that was given before it.
            described = text if shown else argparse.SUPPRESS
            self.add_argument(*names, default=argparse.SUPPRESS, help=described, **kind)

        add(
            "--endpoint",
            metavar="HOST:PORT",
            type=_endpoint,
            text="the server; several separated by ';' (POPMQ_ENDPOINT, else ROCKETMQ_ENDPOINTS, else 127.0.0.1:8081)",
        )
        add(
            "--ca",
            metavar="FILE",
            text="use TLS, and trust this CA or this certificate of the server, PEM; 'public': trust the public CAs;"
            " 'any': trust any certificate (environment POPMQ_CA)",
        )
        add("--client-cert", metavar="FILE", text="the client's certificate, PEM (POPMQ_CLIENT_CERT)")
        add("--client-key", metavar="FILE", text="the key of the client's certificate, PEM (POPMQ_CLIENT_KEY)")
        add(
            "--access-key",
            metavar="KEY",
            text="the user (environment POPMQ_ACCESS_KEY; secret: POPMQ_ACCESS_SECRET, else popmq asks for it)",
        )
        add("--namespace", metavar="NAME", text="the namespace of topics and groups")
        add("--json", action="store_true", text="print one JSON document")


def _nearest(wrong: str, options: Iterable[str]) -> str | None:
    """The option that has all words of the wrong one, or else the most similar one."""
    names = {each.strip("-"): each for each in options}
    words = {"database" if word == "db" else word for word in wrong.strip("-").split("-")}
    containing = [each for each in names if words <= set(each.split("-"))]
    found = containing or difflib.get_close_matches(wrong.strip("-"), names, 1, cutoff=0.65)
    return names[found[0]] if found else None


def _endpoint(written: str) -> str:
    try:
        parse_endpoints(written)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return written
