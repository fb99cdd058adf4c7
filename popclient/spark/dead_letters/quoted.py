"""JSON arrays and objects of strings, a whole page at once.

Where nothing is escaped, what stands between two quotation marks is a word, so one split of the page finds them all. A
page for which that is not so is read by a real parser.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_LIST: Final = pa.list_(pa.string())
_MAP: Final = pa.map_(pa.string(), pa.string())
# What stands between the words of most pages, and what may stand there in any.
_USUAL: Final = pa.array(["[", "]", "][", "{", "}", "}{", ", ", ",", ": ", ":"])
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
    """Where each text's items begin, and one end more; and all words. None where a parser must look."""
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
    if pc.all(pc.is_in(between, _USUAL)).as_py():
        return True
    return not pc.any(pc.match_substring_regex(between, _NO_STRUCTURE)).as_py()


def _every_second(values: pa.Array, first: int) -> pa.Array:
    steps = pa.repeat(pa.scalar(2, pa.int32()), (len(values) - first + 1) // 2)
    return values.take(pc.cumulative_sum(steps, start=first - 2))  # a range of Python's costs more than all the rest
