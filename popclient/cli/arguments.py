"""Parses arguments of commands, such as durations, numbers and the server; and adds commands to the parser."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from popclient._arguments import MILLISECOND, parse_duration_ms
from popclient.cli.output import visible
from popclient.config import ClientConfig, Tls

if TYPE_CHECKING:
    from popclient.admin.facts import ExponentialBackoff

_RATE = re.compile(r"([0-9]{1,9})/([smh])")
_RATE_UNIT_S = {"s": 1, "m": 60, "h": 3_600}
_DURATION_MAX = timedelta(days=3_650)
_NO_FILES = ("public", "any")  # values of --ca that are no files
_EDGES = ("BEGINNING", "END")
CLASSIFIERS = ("reason", "tag", "topic", "attempt", "message_group")
PROPERTY = "property:"
_RESOURCE_KINDS = ("topic", "group")


TIMES: Final = "2026-11-20T10:00 (local time of this shell), 2026-11-20T10:00+01:00, or 2h for 2 hours ago"


class UsageError(Exception):
    """The arguments do not fit together; the sentence gives the reason."""


def duration(written: str) -> timedelta:
    """`500ms`, `10s`, `1.5m`, `2h`, `3d`, or several in a row such as `1h30m`; at most ten years."""
    try:
        duration_ms = parse_duration_ms(written)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from None
    if duration_ms > _DURATION_MAX / MILLISECOND:
        raise argparse.ArgumentTypeError(f"'{written}' is longer than ten years")
    return timedelta(milliseconds=duration_ms)


def durations(written: str) -> list[timedelta]:
    """Several, separated by commas: `10s,30s,1m`."""
    return [duration(part.strip()) for part in written.split(",")]


def retry_intervals(written: str) -> list[timedelta] | ExponentialBackoff:
    """`10s,30s,1m`, or `exponential:initial=5s,max=2h,multiplier=2`, where each value is optional."""
    kind, _, given = written.partition(":")
    if kind != "exponential":
        return durations(written)
    from popclient.admin.facts import ExponentialBackoff

    values: dict[str, Any] = {}
    for part in filter(None, given.split(",")):
        name, _, value = part.strip().partition("=")
        if name not in _EXPONENTIAL or not value:
            raise argparse.ArgumentTypeError(
                f"'{part}' is not a valid part of exponential intervals; write"
                " exponential:initial=5s,max=2h,multiplier=2"
            )
        field, read = _EXPONENTIAL[name]
        values[field] = read(value)
    return ExponentialBackoff(**values)


def _factor(written: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{written}' is no number; write a multiplier such as 2 or 1.5") from None


_EXPONENTIAL: dict[str, tuple[str, Callable[[str], Any]]] = {
    "initial": ("initial", duration),
    "max": ("longest", duration),
    "multiplier": ("multiplier", _factor),
}


def position(written: str) -> str | datetime:
    """`beginning`, `end`, or a `moment`."""
    if written.upper() in _EDGES:
        return written.upper()
    try:
        return moment(written)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"'{written}' is not a valid position; write beginning, end, 2026-11-20T10:00, 2026-11-20T10:00+01:00, or a"
            " duration ago: 30m, 2h, 3d"
        ) from None


def moment(written: str) -> datetime:
    """`2026-11-20T10:00`, by default in the time zone of this machine, or a duration before now by its clock: `2h`."""
    try:
        return datetime.fromisoformat(written).astimezone()
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.now().astimezone() - duration(written)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"'{written}' is no time; write 2026-11-20T10:00, 2026-11-20T10:00+01:00, or a duration ago: 30m, 2h, 3d"
        ) from None


def rate(written: str) -> float:
    """`100/s`, `30/m` or `500/h`, as a number per second."""
    found = _RATE.fullmatch(written)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"'{written}' is no rate; write 100/s, 30/m or 500/h")
    return int(found[1]) / _RATE_UNIT_S[found[2]]


def number(least: int, most: int) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""

    def read(written: str) -> int:
        try:
            value = int(written)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{written}' is no whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least:,} and {most:,}")
        return value

    return read


def numbers(least: int, most: int) -> Callable[[str], list[int]]:
    """Whole numbers within limits, separated by commas: `4,7,9`."""
    one = number(least, most)
    return lambda written: [one(part.strip()) for part in written.split(",")]


def classifier(written: str) -> str:
    """A field by which dead letters are classified, or `property:NAME`."""
    if written not in CLASSIFIERS and (not written.startswith(PROPERTY) or written == PROPERTY):
        known = ", ".join(CLASSIFIERS)
        raise argparse.ArgumentTypeError(f"'{written}' is no class of dead letters; write {known} or {PROPERTY}NAME")
    return written


def key_value(written: str) -> tuple[str, str]:
    """A property: `name=value`."""
    name, equals, value = written.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"'{written}' is no property; write name=value")
    return name, value


class Named(NamedTuple):
    """A topic or group as the user typed it. is_assumed: without a kind it is a topic."""

    kind: str
    name: str
    is_assumed: bool


def resource(written: str) -> Named:
    """`topic:orders*` or `group:billing`; a name without a kind is that of a topic."""
    kind, colon, name = written.partition(":")
    if not colon:
        kind, name = "topic", written
    if kind.lower() not in _RESOURCE_KINDS or not name:
        raise argparse.ArgumentTypeError(f"'{written}' is no resource; write topic:NAME, topic:PREFIX* or group:NAME")
    return Named(kind.upper(), name, is_assumed=not colon)


def actions(written: str) -> list[str]:
    """`PUB`, `SUB` or `PUB,SUB`."""
    named = [part.strip().upper() for part in written.split(",")]
    if not set(named) <= {"PUB", "SUB"}:
        raise argparse.ArgumentTypeError(f"'{written}' is no action; write PUB, SUB or PUB,SUB")
    return named


def secret_source(written: str) -> str:
    """`stdin`, `prompt` or `env:NAME`."""
    if written in {"stdin", "prompt"} or (written.startswith("env:") and len(written) > len("env:")):
        return written
    # Without the value: it may be a secret that was typed here by mistake.
    raise argparse.ArgumentTypeError("the value is no source of a secret; write stdin, prompt or env:NAME")


def client_config(arguments: argparse.Namespace) -> ClientConfig:
    """The server, the namespace and the user of the global options."""
    endpoint = arguments.endpoint or os.environ.get("POPMQ_ENDPOINT") or os.environ.get("ROCKETMQ_ENDPOINTS", "")
    access_key, access_secret = _credentials(arguments)
    try:
        return ClientConfig(
            endpoints=endpoint,
            namespace=arguments.namespace,
            access_key=access_key,
            access_secret=access_secret,
            tls=_tls(arguments, endpoint),
        )
    except ValueError as error:
        raise UsageError(error) from None


def _tls(arguments: argparse.Namespace, endpoint: str) -> bool | Tls:
    """How to use TLS, or False. Raises ValueError for options that do not fit together."""

    def given(name: str) -> str | None:
        return getattr(arguments, name) or os.environ.get(f"POPMQ_{name.upper()}") or None

    ca, cert, key = given("ca"), given("client_cert"), given("client_key")
    if ca is None and "https://" in endpoint:
        ca = "public"
    if ca is None:
        if cert or key:
            raise ValueError("a client certificate needs TLS; give the CA to trust with --ca FILE")
        return False
    if (cert is None) != (key is None):
        raise ValueError("a certificate and its key belong together: give both --client-cert and --client-key")
    return Tls(ca=None if ca in _NO_FILES else ca, cert=cert, key=key, insecure=ca == "any")


def prompted(text: str, otherwise: str) -> str:
    """Asks for a secret on the terminal and does not show it. otherwise: the advice if there is no terminal."""
    try:
        return getpass.getpass(text)
    except EOFError:
        raise UsageError(f"no secret was typed; type it, or {otherwise}") from None


def _credentials(arguments: argparse.Namespace) -> tuple[str, str]:
    """Access key and secret; if empty, the client reads its own environment. The secret is never an argument."""
    access_key = arguments.access_key or os.environ.get("POPMQ_ACCESS_KEY", "")
    access_secret = os.environ.get("POPMQ_ACCESS_SECRET", "")
    if arguments.access_key and not access_secret:
        access_secret = os.environ.get("ROCKETMQ_ACCESS_SECRET", "")
        if not access_secret and sys.stdin.isatty():
            access_secret = prompted(f"secret of {access_key}: ", "set POPMQ_ACCESS_SECRET")
    return access_key, access_secret


def add_yes(parser: argparse.ArgumentParser, *more: str) -> None:
    """The option of every command that asks before it removes or moves something; `more`: its other names."""
    parser.add_argument("--yes", *more, action="store_true", help="do not ask")


def add_max(parser: argparse.ArgumentParser, most: int, default: int = 32, text: str = "at most this many") -> None:
    """The option for how many entries of a list to show."""
    parser.add_argument("--max", type=number(1, most), default=default, metavar="N", help=f"{text} ({default})")


def confirm(arguments: argparse.Namespace, what: str, *, for_good: bool = True) -> bool:
    """Whether to continue with a change: with `--yes`, or after a question on a terminal.

    what: the change with counts, such as "deletes topic orders with 18,910 messages". for_good: it cannot be undone.
    Raises `UsageError` without a terminal.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"this {what}; {'it cannot be undone, ' if for_good else ''}confirm it with --yes")
    print(
        visible(f"This {what}.{' It cannot be undone.' if for_good else ''} Continue? [y/N] "),
        end="",
        file=sys.stderr,
        flush=True,
    )
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was changed", file=sys.stderr)
    return False


def counted(number: int, noun: str) -> str:
    """`1 message`, `18,910 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_TRUST: Final = "with --ca FILE, or trust any certificate with --ca any"
_OPTIONS: Final = (
    ("; set tls if it speaks TLS", f"; if it speaks TLS, name the CA, or the server's own certificate, {_TRUST}"),
    ("with Tls(ca=…), or trust any certificate with Tls(insecure=True)", _TRUST),
    ("; leave tls out", "; leave out --ca, POPMQ_CA and https://, or start it with --tls permissive"),
    ("or give it as Tls(server_name=…)", "or trust any certificate with --ca any"),
    ("with Tls(cert=…, key=…)", "with --client-cert FILE --client-key FILE"),
    (", or give its bytes", ""),
)


def in_options(sentence: str) -> str:
    """The sentence with options of the command line instead of arguments of the client."""
    for argument, option in _OPTIONS:
        sentence = sentence.replace(argument, option)
    return sentence


def is_about_tls(sentence: str) -> bool:
    """Is it a failure of TLS?"""
    return "TLS" in sentence or "certificate" in sentence


def add_actions(commands: Any, name: str, text: str) -> Any:
    """A command that has subcommands."""
    return commands.add_parser(name, help=text, description=text).add_subparsers(
        title="actions", metavar="ACTION", dest="action", required=True
    )


def add_command(
    commands: Any, name: str, text: str, work: str, *needed: str, alias: str | None = None
) -> argparse.ArgumentParser:
    """A command. work: `module:function`, loaded when the command runs. needed: its first arguments, in this order."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        aliases=() if alias is None else (alias,),
        help=text,
        description=text,
        epilog="Everywhere: --endpoint, --namespace, --json; see popmq --help.",
    )
    parser.set_defaults(run=_later(*work.split(":")))
    for each in needed:
        parser.add_argument(each, metavar=each.upper())
    return parser


def _later(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"popclient.cli.{module}"), function)(arguments)
        return status

    return run
