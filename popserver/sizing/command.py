"""The command `popmq size`: its options, and its answer in plain words or JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from popserver.model.times import parse_duration_ms, span
from popserver.serve.settings import OK, USAGE

_DATABASES = ("sqlite", "postgres")
_MIB, _GIB, _TIB = 1 << 20, 1 << 30, 1 << 40


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database", choices=_DATABASES, default="sqlite", help="the kind of database (sqlite)")
    _add(parser, "rate", _number, "messages sent in a second, at the peak", required=True)
    _add(parser, "body", _count, "bytes of a message's body, keys and properties (1024)")
    _add(parser, "groups", _count, "consumer groups that get the messages (1)")
    _add(parser, "delivered", _number, "per cent of the messages that each group gets (100)")
    _add(parser, "dead", _number, "per cent of the deliveries that become dead letters (0)")
    _add(parser, "hold", _duration, "from a delivery to its ack (1s)", metavar="DURATION")
    _add(parser, "retention", _duration, "how long messages are stored (72h)", metavar="DURATION")
    _add(parser, "message-groups", _count, "message groups; 0: the messages are in none (0)")
    _add(parser, "idle-polls", _count, "receives that wait for a message (0)")
    _add(parser, "per-send", _count, "messages in a send request (1)")
    _add(parser, "per-receive", _count, "messages in a receive (32)")
    _add(parser, "queues", _count, "queues of all topics together (8)")
    _add(parser, "postgres-cores", _count, "cores of the machine of Postgres (8)")
    parser.set_defaults(run=size)


def size(arguments: argparse.Namespace) -> int:
    """Print what the load needs. The exit code is OK too if it does not fit: that is an answer."""
    from popserver.sizing.load import BadLoad, Load, check
    from popserver.sizing.need import need
    from popserver.sizing.units import measured

    fields = [field.name for field in dataclasses.fields(Load)]
    given = {name: value for name in fields if (value := getattr(arguments, name)) is not None}
    load = Load(**given)
    try:
        check(load)
    except BadLoad as refusal:
        print(f"popmq: {refusal}", file=sys.stderr)
        return USAGE
    figures = measured()
    found = need(load, figures.of[arguments.database], figures.reached, is_sqlite=arguments.database == "sqlite")
    if arguments.json:
        limits = [limit._asdict() for limit in found.limits]
        measured_on = {"machine": figures.machine, "at": figures.at}
        document = {"database": arguments.database, "load": dataclasses.asdict(load), **found._asdict()}
        print(json.dumps(document | {"limits": limits, "fits": found.fits, "measured_on": measured_on}))
    else:
        print("\n".join(_lines(arguments.database, load, found, f"{figures.machine}, {figures.at}")))
    return OK


def _lines(database: str, load: Any, found: Any, measured_on: str) -> Iterator[str]:
    kept = span(load.retention)
    yield f"{load.rate:,.6g} messages a second, stored for {kept}, to {load.groups:,} groups, on {database}:"
    yield ""
    yield f"disk        {_bytes(found.disk_bytes)}: {found.stored:,.0f} messages of {found.message_bytes:,.0f} bytes;"
    yield f"            plan {_bytes(found.disk_planned_bytes)}, for the log and for free pages"
    if found.dead_letters_per_day:
        yield (
            f"            and {_bytes(found.dead_letter_bytes_per_day)} more each day:"
            f" {found.dead_letters_per_day:,.0f} dead letters, until they are deleted"
        )
    yield f"processors  {found.server_cores:.2f} cores for the server" + (
        "" if database == "sqlite" else f", {found.database_cores:.2f} for Postgres"
    )
    most = _bytes(found.memory_bytes_max)
    yield f"memory      {_bytes(found.memory_bytes)} for the server, up to {most} with full buffers"
    yield from _processes(database, found)
    yield ""
    first = found.limits[0]
    yield f"first limit {first.name}: {first.used:.0%} of it is used"
    yield f"            {'beyond it' if found.fits else 'this load does not fit'}: {first.advice}"
    for each in found.beyond:
        yield f"            more than was measured, so it is computed: {each}"
    yield ""
    yield f"From figures of {measured_on}; another machine differs: make bench ARGS=sizes measures it."


def _processes(database: str, found: Any) -> Iterator[str]:
    from popserver.sizing.need import CONNECTIONS_DEFAULT

    if database == "sqlite":
        yield "servers     1 process, because a SQLite file has one writer"
    else:
        yield f"servers     {found.workers:,} workers on one Postgres (popmq serve --workers {found.workers})"
    if found.connections > CONNECTIONS_DEFAULT:
        yield (
            f"            up to {found.connections:,} connections, if each client has one poll: set --max-connections"
            f" (now {CONNECTIONS_DEFAULT:,}) and LimitNOFILE or ulimit -n to more than that"
        )


def _bytes(count: float) -> str:
    """In MiB, GiB or TiB."""
    if count >= _TIB:
        return f"{count / _TIB:,.1f} TiB"
    return f"{count / _GIB:,.1f} GiB" if count >= _GIB else f"{count / _MIB:,.1f} MiB"


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    kind: Callable[[str], Any],
    words: str,
    *,
    required: bool = False,
    metavar: str = "N",
) -> None:
    parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=words, required=required)


def _number(written: str) -> float:
    try:
        return float(written.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{written}' is no number; write 500 or 0.5") from None


def _count(written: str) -> int:
    plain = written.replace("_", "").replace(",", "")
    if not plain.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"'{written}' is no whole number; write 10000")
    return int(plain)


def _duration(written: str) -> int:
    try:
        return parse_duration_ms(written)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from None
