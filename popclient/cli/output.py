"""Prints results: one JSON document with --json, else aligned tables for people.

People get local times, and text with visible control characters: a message's body must not control a terminal.
JSON gets UTC times (ISO 8601), durations in milliseconds, and a body as text, or as base64 if it is no text.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, TypeVar

from popclient.cli import streams
from popclient.errors import BadRequest, NotFound
from popclient.message import MessageView

EXCERPT = 60
GONE: Final = "(deleted)"
# Delete, the second set of controls, and those that turn the direction of writing.
_UNPRINTED = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_UNITS_MS = (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def report(arguments: argparse.Namespace, document: Any, lines: Iterable[str]) -> int:
    """Print the document or the lines; returns the exit code of success."""
    if arguments.json:
        print(_escaped(json.dumps(document, ensure_ascii=False)))
    else:
        for line in lines:
            print(visible(line))
    return 0


def print_error(sentence: object) -> None:
    """Print a sentence on standard error; it may have several lines."""
    try:
        for line in str(sentence).split("\n"):
            print(visible(line), file=sys.stderr, flush=True)
    except OSError:
        streams.discard(2)


def visible(text: str) -> str:
    """The text with escapes in place of control characters: printed text must not control a terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], nothing: str = "none") -> list[str]:
    """Rows under headings, numbers right-aligned; `nothing` instead of an empty table."""
    given = list(rows)
    if not given:
        return [nothing]
    cells = [[_cell(value) for value in row] for row in given]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    is_number = [all(isinstance(row[index], int) for row in given) for index in range(len(columns))]

    def line(texts: Sequence[str]) -> str:
        padded = zip(texts, widths, is_number, strict=True)
        return "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in padded).rstrip()

    return [line([column.upper() for column in columns]), *map(line, cells)]


Cell = str | Callable[[Any], object]


def table_of(found: Iterable[Any], columns: str, nothing: str = "none", **cells: Cell) -> list[str]:
    """A row for each of them. columns: the headings, with `_` for spaces, which are also the names of the attributes.

    cells: by heading another attribute (`a.b` is one of an attribute), or a function.
    """
    names = columns.split()
    wanted = [cells.get(name, name) for name in names]
    reads = [attrgetter(cell) if isinstance(cell, str) else cell for cell in wanted]
    rows = [[read(each) for read in reads] for each in found]
    return table([name.replace("_", " ") for name in names], rows, nothing)


def fields(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """One `name  value` per line, names aligned, without empty values."""
    shown = [(name, _cell(value)) for name, value in pairs]
    width = max((len(name) for name, text in shown if text), default=0)
    return [f"{name:<{width}}  {text}" for name, text in shown if text]


def hint_lines(hints: Sequence[str]) -> list[str]:
    """The lines for hints, below the result."""
    return ["", *(f"hint: {each}" for each in hints)] if hints else []


def utc(moment: datetime | None) -> str | None:
    """For programs: `2026-11-20T14:02:11.250Z`."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(moment: datetime | None) -> str:
    """For people: `2026-11-20T15:02:11+01:00`, in the time zone of this machine."""
    return "" if moment is None else moment.astimezone().isoformat(timespec="seconds")


def picked(facts: object, names: str) -> dict[str, Any]:
    """The values of these names for a document: times as `utc`."""
    found = {name: getattr(facts, name) for name in names.split()}
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in found.items()}


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def duration_text(duration: timedelta) -> str:
    """As users type it: `1h30m`, `10s`, `500ms`."""
    rest, parts = milliseconds(duration), ""
    for unit, size in _UNITS_MS:
        count, rest = divmod(rest, size)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


def size(octets: int) -> str:
    """In the largest unit that gives at least 1: `512 B`, `1.4 KiB`, `12.0 MiB`."""
    number, units = float(octets), ["KiB", "MiB", "GiB", "TiB"]
    if number < 1_024:
        return f"{octets} B"
    while (number := number / 1_024) >= 1_024 and len(units) > 1:
        units.pop(0)
    return f"{number:.1f} {units[0]}"


def body_of(message: MessageView) -> bytes | None:
    """The body; None if it is marked as compressed and cannot be decompressed."""
    try:
        return message.body
    except zlib.error:
        return None


def excerpt(message: MessageView) -> str:
    """The body in one short line: text, or hexadecimal digits if it is no text."""
    body = body_of(message)
    if body is None:
        return "(damaged GZIP)"
    try:
        text = body.decode() if len(body) <= 4 * EXCERPT else _leading_text(body)
    except UnicodeDecodeError:
        shown = body[: EXCERPT // 4].hex()
        return f"0x{shown}{'…' if len(body) > EXCERPT // 4 else ''} ({len(body)} bytes)"
    return text if len(text) <= EXCERPT else f"{text[: EXCERPT - 1]}…"


def body_lines(message: MessageView) -> list[str]:
    """The whole body, line by line, if it is text; else its excerpt."""
    try:
        text = (body_of(message) or b"\xff").decode()
    except UnicodeDecodeError:
        return [excerpt(message)]
    return [visible(line) for line in text.split("\n")]


def message_document(message: MessageView) -> dict[str, Any]:
    """A message as every command's JSON shows it."""
    origin = message.dead_letter_queue
    return {
        **picked(
            message,
            "message_id topic queue_id queue_offset message_type tag keys properties message_group lite_topic priority",
        ),
        "born_at": utc(message.born_timestamp),
        "born_host": message.born_host,
        "stored_at": utc(message.store_timestamp),
        "deliver_at": utc(message.delivery_timestamp),
        "dead_letter_of": None if origin is None else {"topic": origin.topic, "message_id": origin.message_id},
        **body_document(body_of(message)),
    }


def message_fields(message: MessageView) -> list[tuple[str, Any]]:
    """A message for `fields`, without its body."""
    body, origin = body_of(message), message.dead_letter_queue
    return [
        ("message id", message.message_id),
        ("topic", message.topic),
        ("queue", f"{message.queue_id} at offset {message.queue_offset}"),
        ("dead letter of", "" if origin is None else f"{origin.topic} {origin.message_id}"),
        ("type", message.message_type),
        ("tag", message.tag),
        ("keys", ", ".join(message.keys)),
        ("properties", properties_text(message)),
        ("message group", message.message_group),
        ("lite topic", message.lite_topic),
        ("priority", message.priority),
        ("born", f"{local(message.born_timestamp)} on {message.born_host or 'an unnamed host'}"),
        ("stored", message.store_timestamp),
        ("was due", message.delivery_timestamp),
        ("size", "" if body is None else f"{len(body)} bytes"),
    ]


def properties_text(message: MessageView) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(message.properties.items()))


# Columns of a table of stored messages, and their cells.
STORED: Final = "message_id queue offset stored tag"
STORED_CELLS: Final[dict[str, Cell]] = {"queue": "queue_id", "offset": "queue_offset", "stored": "store_timestamp"}


def with_lite_topics(columns: str, messages: Iterable[MessageView | None], before: str) -> str:
    """The columns, with `lite_topic` before another one if any of the messages has a lite topic."""
    has_any = any(message is not None and message.lite_topic for message in messages)
    return columns.replace(before, f"lite_topic {before}") if has_any else columns


def body_document(body: bytes | None) -> dict[str, Any]:
    """A body and its size: as text, or as base64 if it is no text."""
    if body is None:
        return {"size": None, "body": None}
    try:
        return {"size": len(body), "body": body.decode()}
    except UnicodeDecodeError:
        return {"size": len(body), "body": None, "body_base64": base64.b64encode(body).decode("ascii")}


def _leading_text(body: bytes) -> str:
    """The first characters of a long body; raises UnicodeDecodeError if it is no text."""
    head = body[: 4 * EXCERPT]
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        # The cut may go through a character; anything earlier is not text.
        if error.start < len(head) - 3:
            raise
        return head[: error.start].decode()


def _cell(value: Any) -> str:
    return local(value) if isinstance(value, datetime) else "" if value is None else visible(str(value))


def _escaped(text: str) -> str:
    """JSON without control characters; the encoder leaves those beyond ASCII as they are."""
    return text if text.isprintable() else _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


EVERY_S: Final = 1.0


class ProgressLog:
    """Writes the progress of a long task to standard error: each `write`, and at most one `progress` a second.

    has_progress: was there any progress yet?
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._written_at = now()
        self.has_progress = False

    def write(self, sentence: str) -> None:
        self._written_at = self._now()
        print_error(sentence)

    def progress(self, sentence: str) -> None:
        self.has_progress = True
        if self._now() - self._written_at >= EVERY_S:
            self.write(sentence)


# ---- --if-not-exists of the commands that create something ----

T = TypeVar("T")


def made_or_found(arguments: argparse.Namespace, make: Callable[[], T], find: Callable[[str], T]) -> tuple[T, bool]:
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
    """Words for each option that was given and differs. options: by name, what was given and what is there."""
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
