"""What people type, read: durations, properties, numbers within limits; and the server they mean."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from datetime import timedelta

from popclient.cli import UsageError
from popclient.config import ClientConfig

_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION_S_MAX = 3_650 * 86_400


def duration(written: str) -> timedelta:
    """`500ms`, `10s`, `1.5m`, `2h`, `3d`, or several in a row such as `1h30m`; at most ten years."""
    parts = _WRITTEN.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        raise argparse.ArgumentTypeError(f"'{written}' is no duration; write 500ms, 10s, 5m, 2h or 1h30m")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    if seconds > _DURATION_S_MAX:
        raise argparse.ArgumentTypeError(f"'{written}' is longer than ten years")
    return timedelta(milliseconds=round(seconds * 1_000))


def durations(written: str) -> list[timedelta]:
    """Several, separated by commas: `10s,30s,1m`."""
    return [duration(part.strip()) for part in written.split(",")]


def number(least: int, most: int) -> Callable[[str], int]:
    """A whole number from `least` to `most`."""

    def read(written: str) -> int:
        try:
            value = int(written)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{written}' is no whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not between {least} and {most}")
        return value

    return read


def key_value(written: str) -> tuple[str, str]:
    """A property: `name=value`."""
    name, equals, value = written.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"'{written}' is no property; write name=value")
    return name, value


def client_config(arguments: argparse.Namespace) -> ClientConfig:
    """The server and the namespace that the global options mean."""
    endpoint = arguments.endpoint or os.environ.get("POPMQ_ENDPOINT", "")
    try:
        return ClientConfig(endpoints=endpoint, namespace=arguments.namespace)
    except ValueError as error:
        raise UsageError(error) from None


def confirm(arguments: argparse.Namespace, what: str) -> bool:
    """Whether to go on with what cannot be undone: `--yes`, or the name typed again on a terminal."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{what} cannot be undone; confirm it with --yes")
    print(f"{what} cannot be undone. Type {arguments.name} to go on: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == str(arguments.name)
