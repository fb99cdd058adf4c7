"""Message ids as their producers wrote them: 17 bytes are one of version 1, a zero byte leads any other text."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_V1_BYTES: Final = 17
_OTHER: Final = b"\x00"


def ids(stored: pa.Array) -> pa.Array:
    """The texts of a page's ids; all at once where all of them are of version 1."""
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
