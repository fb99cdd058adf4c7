"""The command `popmq size`: its options, and its answer in plain words or JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from popserver.model.retry import HOUR_MS, SECOND_MS
from popserver.model.times import parse_duration_ms, span
from popserver.serve.settings import OK, USAGE
from popserver.sizing.load import BadLoad, Load, check

if TYPE_CHECKING:
    from popserver.sizing.need import Need

_DATABASES = ("sqlite", "postgres")
_MIB, _GIB, _TIB = 1 << 20, 1 << 30, 1 << 40


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database", choices=_DATABASES, default="sqlite", help="the kind of database (sqlite)")
    _add(parser, "rate", _number, "messages sent in a second, at the peak")
    _add(parser, "average_rate", _number, "the same over a day, for the disk and what is counted in days (--rate)")
    _add(parser, "body", _count, "bytes of a message's body, keys and properties")
    _add(parser, "groups", _count, "consumer groups that get the messages")
    _add(parser, "delivered", _number, "per cent of the messages that each group gets")
    _add(parser, "dead", _number, "per cent of the deliveries that become dead letters")
    _add(parser, "hold_ms", _duration, "from a delivery to its ack")
    _add(parser, "retention_ms", _duration, "how long messages are stored")
    _add(parser, "message_groups", _count, "message groups; 0: the messages are in none")
    _add(parser, "idle_polls", _count, "receives that wait for a message")
    _add(parser, "per_send", _count, "messages in a send request")
    _add(parser, "per_receive", _count, "messages in a receive")
    _add(parser, "queues", _count, "queues of all topics together")
    _add(parser, "postgres_cores", _count, "cores of the machine of Postgres")
    parser.set_defaults(run=size)


def size(arguments: argparse.Namespace) -> int:
    """Print what the load needs. The exit code is OK too if it does not fit: that is an answer."""
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
    found = need(load, figures.of[arguments.database], is_sqlite=arguments.database == "sqlite")
    if arguments.json:
        limits = [limit._asdict() for limit in found.limits]
        measured_on = {"machine": figures.machine, "at": figures.at}
        planned = dataclasses.asdict(load) | {"average_rate": load.average}
        document = {"database": arguments.database, "load": planned, **found._asdict()}
        print(json.dumps(document | {"limits": limits, "fits": found.fits, "measured_on": measured_on}))
    else:
        print("\n".join(_lines(arguments.database, load, found, f"{figures.machine}, {figures.at}")))
    return OK


def _lines(database: str, load: Load, found: Need, measured_on: str) -> Iterator[str]:
    kept = span(load.retention_ms)
    yield f"{load.rate:,.6g} messages a second, stored for {kept}, to {_several(load.groups, 'group')}, on {database}:"
    yield ""
    yield f"disk        {_bytes(found.disk_bytes)}: {found.stored:,.0f} messages of {found.message_bytes:,.0f} bytes;"
    yield f"            plan {_bytes(found.disk_planned_bytes)}, for the log and for free pages"
    if found.dead_letters_per_day:
        yield (
            f"            and {_bytes(found.dead_letter_bytes_per_day)} more each day:"
            f" {found.dead_letters_per_day:,.0f} dead letters, until they are deleted"
        )
    usual = _cores(database, found.server_cores, found.database_cores)
    yield f"processors  {usual}, if many send and receive at a time;"
    most = _cores(database, found.server_cores_max, found.database_cores_max)
    yield f"            up to {most}, if each request comes alone and so has a transaction of its own"
    filled = _bytes(found.memory_bytes_max)
    yield f"memory      {_bytes(found.memory_bytes)} for the server, up to {filled} with full buffers"
    yield f"servers     {_processes(database, found.workers)}"
    yield ""
    first = found.limits[0]
    yield f"first limit {first.name}: {first.used:.0%} of it is used"
    if found.fits:
        yield f"            beyond it: {first.advice}"
    for limit in found.limits:
        if limit.used > 1:
            yield f"            this load does not fit {limit.name}: {limit.advice}"
    for each in found.beyond:
        yield f"            more than was measured, so it is computed: {each}"
    yield ""
    yield f"From figures of {measured_on}; another machine differs: make bench ARGS=sizes measures it."


def _cores(database: str, server: float, postgres: float) -> str:
    return f"{server:.2f} cores for the server" + ("" if database == "sqlite" else f" and {postgres:.2f} for Postgres")


def _processes(database: str, workers: int) -> str:
    if database == "sqlite":
        return "1 process, because a SQLite file has one writer"
    if workers == 1:
        return "1 process on one Postgres"
    return f"{workers:,} workers on one Postgres (popmq serve --workers {workers})"


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _bytes(count: float) -> str:
    """In MiB, GiB or TiB."""
    if count >= _TIB:
        return f"{count / _TIB:,.1f} TiB"
    return f"{count / _GIB:,.1f} GiB" if count >= _GIB else f"{count / _MIB:,.1f} MiB"


def _add(parser: argparse.ArgumentParser, name: str, kind: Callable[[str], Any], words: str) -> None:
    """An option for a field of the load; its default is the field's."""
    (default,) = (field.default for field in dataclasses.fields(Load) if field.name == name)
    if default is not None and default is not dataclasses.MISSING:
        words += f" ({_as_typed(default) if kind is _duration else f'{default:g}'})"
    option = f"--{name.removesuffix('_ms').replace('_', '-')}"
    shown = "DURATION" if kind is _duration else "N"
    required = default is dataclasses.MISSING
    parser.add_argument(option, dest=name, type=kind, metavar=shown, help=words, required=required)


def _as_typed(ms: float) -> str:
    return f"{ms / HOUR_MS:g}h" if ms >= HOUR_MS else f"{ms / SECOND_MS:g}s"


# Commas of thousands; a comma elsewhere is a decimal comma, which is not understood.
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d*)?")


def _plain(written: str) -> str:
    if "," in written and not _THOUSANDS.fullmatch(written):
        raise ValueError(written)
    return written.replace(",", "")


def _number(written: str) -> float:
    try:
        return float(_plain(written))
    except ValueError:
        whole, comma, part = written.partition(",")
        example = f"{whole}.{part}" if comma and whole.isdecimal() and part.isdecimal() else "500 or 0.5"
        raise argparse.ArgumentTypeError(f"'{written}' is no number; write {example}") from None


def _count(written: str) -> int:
    try:
        return int(_plain(written))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{written}' is no whole number; write 10000") from None


def _duration(written: str) -> int:
    try:
        return parse_duration_ms(written)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from None
