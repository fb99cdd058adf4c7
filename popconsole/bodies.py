"""A message's body as people read it: text, folded JSON, or hexadecimal digits. It is never trusted."""

from __future__ import annotations

import json
import zlib
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from popclient.message import MessageView

PAGE_MAX: Final = 256 * 1_024  # bytes of a body that a page reads
TEXT_MAX: Final = 64 * 1_024  # characters shown of a text
HEX_MAX: Final = 4 * 1_024  # bytes shown in hexadecimal digits
ROW: Final = 16
EXCERPT: Final = 90
DEPTH_MAX: Final = 50  # JSON that is nested deeper is shown as text
NODES_MAX: Final = 2_000  # parts of JSON that are drawn
PARTS_MAX: Final = 200  # of one object or list


@dataclass(slots=True, eq=False)
class Node:
    """A part of JSON as it is drawn. name: in its object. kind: object, list, text or value."""

    name: str | None
    value: Any
    parts: list[Node] = field(default_factory=list)

    @property
    def kind(self) -> str:
        match self.value:
            case dict():
                return "object"
            case list():
                return "list"
            case str():
                return "text"
        return "value"

    @property
    def left_out(self) -> int:
        """How many of its parts are not drawn."""
        return len(self.value) - len(self.parts) if self.kind in ("object", "list") else 0

    @property
    def text(self) -> str:
        """A text or a number, as it is in JSON."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)


@dataclass(frozen=True, slots=True)
class Body:
    """A body; `text` and `tree` are None where it is none. damaged: it says that it is packed, and is not.

    octets: its size, or as many as were unpacked where `is_too_large`.
    """

    octets: int
    text: str | None
    tree: Node | None
    hex_rows: tuple[tuple[str, str, str], ...]
    is_cut: bool
    damaged: bool = False
    is_too_large: bool = False

    @property
    def kinds(self) -> list[str]:
        """The ways to show it, the best first."""
        return [*(["json"] if self.tree else []), *(["text"] if self.text is not None else []), "hex"]


class Unpacked(NamedTuple):
    """A body, or its beginning if it `is_cut`; the stored bytes of a damaged one."""

    raw: bytes
    is_cut: bool = False
    damaged: bool = False


def unpacked(message: MessageView, bytes_max: int) -> Unpacked:
    """At most so many bytes of the body: a small packed one may unpack to gigabytes."""
    stored = message.stored_body
    if message.is_packed:
        stream = zlib.decompressobj(47)  # detects gzip and zlib
        try:
            raw = stream.decompress(stored, bytes_max + 1)
        except zlib.error:
            return Unpacked(stored[:bytes_max], len(stored) > bytes_max, True)
        if stream.eof or len(raw) > bytes_max:
            return Unpacked(raw[:bytes_max], len(raw) > bytes_max)
    return Unpacked(stored[:bytes_max], len(stored) > bytes_max, message.is_packed)


def body_of(message: MessageView) -> Body:
    raw, is_cut, damaged = unpacked(message, PAGE_MAX)
    is_too_large = is_cut and message.is_packed and not damaged
    text = _text(raw)
    return Body(
        len(raw) if is_too_large or not is_cut else len(message.stored_body),
        None if text is None else text[:TEXT_MAX],
        None if is_cut else _tree(text),
        _hex_rows(raw[:HEX_MAX]),
        is_cut or (len(raw) > HEX_MAX if text is None else len(text) > TEXT_MAX),
        damaged,
        is_too_large,
    )


def excerpt(message: MessageView) -> str:
    """The body in one short line."""
    raw, _, damaged = unpacked(message, 4 * EXCERPT)
    if damaged:
        return "(damaged GZIP)"
    text = _text(raw)
    if text is None:
        return f"0x{raw[:24].hex()}{'…' if len(raw) > 24 else ''}"
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else f"{line[: EXCERPT - 1]}…"


def _text(raw: bytes) -> str | None:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        # A cut may have split the last character.
        if error.end != len(raw) or len(raw) - error.start > 3:
            return None
        text = raw[: error.start].decode()
    return None if "\0" in text else text


def _tree(text: str | None) -> Node | None:
    """The JSON of a text; None if it is none, or cannot be drawn."""
    if text is None or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _drawn(value) if _can_be_drawn(value) else None


def _can_be_drawn(value: Any) -> bool:
    """Is it nested no deeper than `DEPTH_MAX`, and are all its texts Unicode? JSON can have half a surrogate pair."""
    waiting = [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        if isinstance(each, str):
            if not each.isascii() and any("\ud800" <= char <= "\udfff" for char in each):
                return False
        elif isinstance(each, dict | list):
            if depth == DEPTH_MAX:
                return False
            waiting += [(part, depth + 1) for part in each]
            if isinstance(each, dict):
                waiting += [(part, depth + 1) for part in each.values()]
    return True


def _drawn(value: Any) -> Node:
    """The parts near the top first, until there are `NODES_MAX`."""
    root = Node(None, value)
    waiting, number = deque([root]), 1
    while waiting:
        node = waiting.popleft()
        taken = min(PARTS_MAX, NODES_MAX - number)
        if isinstance(node.value, dict):
            node.parts = [Node(name, each) for name, each in islice(node.value.items(), taken)]
        elif isinstance(node.value, list):
            node.parts = [Node(None, each) for each in node.value[:taken]]
        number += len(node.parts)
        waiting += node.parts
    return root


def _hex_rows(raw: bytes) -> tuple[tuple[str, str, str], ...]:
    """(offset, digits, characters) of each row of sixteen bytes."""
    rows = []
    for at in range(0, len(raw), ROW):
        part = raw[at : at + ROW]
        digits = " ".join(f"{each:02x}" for each in part)
        rows.append((f"{at:06x}", digits, "".join(chr(each) if 32 <= each < 127 else "·" for each in part)))
    return tuple(rows)
