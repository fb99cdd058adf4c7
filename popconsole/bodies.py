"""A message's body as people read it: text, folded JSON, or hexadecimal digits. It is never trusted."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from popclient.message import MessageView

PAGE_MAX: Final = 256 * 1_024  # bytes of a body that a page reads
TEXT_MAX: Final = 64 * 1_024  # characters shown of a text
HEX_MAX: Final = 4 * 1_024  # bytes shown in hexadecimal digits
ROW: Final = 16
EXCERPT: Final = 90


@dataclass(frozen=True, slots=True)
class Body:
    """A body; `text` and `tree` are None where it is none. damaged: it says that it is packed, and is not.

    octets: its size, or as many as were unpacked where `is_too_large`.
    """

    octets: int
    text: str | None
    tree: Any
    is_json: bool
    hex_rows: tuple[tuple[str, str, str], ...]
    is_cut: bool
    damaged: bool = False
    is_too_large: bool = False

    @property
    def kinds(self) -> list[str]:
        """The ways to show it, the best first."""
        return [*(["json"] if self.is_json else []), *(["text"] if self.text is not None else []), "hex"]


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
    is_json, tree = (False, None) if is_cut else _json(text)
    return Body(
        len(raw) if is_too_large or not is_cut else len(message.stored_body),
        None if text is None else text[:TEXT_MAX],
        tree,
        is_json,
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


def _json(text: str | None) -> tuple[bool, Any]:
    if text is None or text.lstrip()[:1] not in ("{", "["):
        return False, None
    try:
        return True, json.loads(text)
    except (ValueError, RecursionError):
        return False, None


def _hex_rows(raw: bytes) -> tuple[tuple[str, str, str], ...]:
    """(offset, digits, characters) of each row of sixteen bytes."""
    rows = []
    for at in range(0, len(raw), ROW):
        part = raw[at : at + ROW]
        digits = " ".join(f"{each:02x}" for each in part)
        rows.append((f"{at:06x}", digits, "".join(chr(each) if 32 <= each < 127 else "·" for each in part)))
    return tuple(rows)
