"""Decodes message ids and JSON columns, a whole page at once.

A stored message id of 17 bytes is one of version 1; a zero byte before it marks any other text. JSON arrays and objects
of strings are split at quotation marks if the page has no escapes; else a JSON parser reads the page.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_V1_BYTES: Final = 17
_OTHER: Final = b"\x00"


def ids(stored: pa.Array) -> pa.Array:
    """The texts of a page's ids; fast if all are of version 1."""
    if not len(stored) or not _are_v1(stored):
        return pa.array(map(_text, stored.to_pylist()), pa.string())
    fixed = stored.cast(pa.binary(_V1_BYTES))
    begin, end = fixed.offset * _V1_BYTES, (fixed.offset + len(fixed)) * _V1_BYTES
    digits = fixed.buffers()[1][begin:end].to_pybytes().hex().upper().encode()
    lengths = pa.repeat(pa.scalar(2 * _V1_BYTES, pa.int32()), len(fixed))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.Array.from_buffers(pa.string(), len(fixed), [None, offsets.buffers()[1], pa.py_buffer(digits)])


def _are_v1(stored: pa.Array) -> bool:
    of_length = pc.equal(pc.binary_length(stored), _V1_BYTES)
    others = pc.equal(pc.binary_slice(stored, 0, 1), _OTHER)
    return stored.null_count == 0 and pc.all(of_length).as_py() and not pc.any(others).as_py()


def _text(stored: bytes | None) -> str | None:
    if stored is None:
        return None
    return stored[1:].decode() if stored[:1] == _OTHER else stored.hex().upper()


_LIST: Final = pa.list_(pa.string())
_MAP: Final = pa.map_(pa.string(), pa.string())
# The usual texts between two strings, and the characters that may be in others. No array yet: the first one imports
# pandas where that is installed, which costs a process that only plans a quarter of a second.
_USUAL: Final = ("[", "]", "][", "{", "}", "}{", ", ", ",", ": ", ":")
_NO_STRUCTURE: Final = r"[^\[\]{},: \n\t]"


def lists(texts: pa.Array) -> pa.Array:
    """Lists of strings; an empty one for NULL."""
    found = _words(texts, per_item=1)
    if found is None:
        return pa.array([json.loads(text) if text else [] for text in texts.to_pylist()], _LIST)
    offsets, words = found
    return pa.ListArray.from_arrays(offsets, words)


def maps(texts: pa.Array) -> pa.Array:
    """Maps of strings to strings; an empty one for NULL."""
    found = _words(texts, per_item=2)
    if found is None:
        return pa.array([list(json.loads(text).items()) if text else [] for text in texts.to_pylist()], _MAP)
    offsets, words = found
    return pa.MapArray.from_arrays(offsets, _every_second(words, 0), _every_second(words, 1))


def _words(texts: pa.Array, per_item: int) -> tuple[pa.Array, pa.Array] | None:
    """The offsets of each text's items, and all strings; None if a parser is needed."""
    page = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.fill_null("")), "")
    if pc.match_substring(page, "\\")[0].as_py():
        return None
    marks = pc.count_substring(texts.fill_null(""), '"')
    whole = pc.multiply(pc.divide(marks, 2 * per_item), 2 * per_item)
    pieces = pc.split_pattern(page, '"')[0].values
    if not pc.all(pc.equal(marks, whole)).as_py() or not _is_structure(_every_second(pieces, 0)):
        return None
    items = pc.cumulative_sum(pc.divide(marks, 2 * per_item))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), items.cast(pa.int32())])
    return offsets, _every_second(pieces, 1)


def _is_structure(between: pa.Array) -> bool:
    if pc.all(pc.is_in(between, pa.array(_USUAL))).as_py():
        return True
    return not pc.any(pc.match_substring_regex(between, _NO_STRUCTURE)).as_py()


def _every_second(values: pa.Array, first: int) -> pa.Array:
    steps = pa.repeat(pa.scalar(2, pa.int32()), (len(values) - first + 1) // 2)
    return values.take(pc.cumulative_sum(steps, start=first - 2))  # a Python range would cost more than the rest
