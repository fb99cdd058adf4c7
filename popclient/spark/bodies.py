"""Bodies, unpacked where their senders packed them."""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# A packed body larger than this is handed over packed: 4 MiB can unpack to 4 GiB.
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024


def unpacked(bodies: pa.Array, encodings: pa.Array) -> pa.Array:
    """Those whose encoding is GZIP unpacked, the others as they are."""
    packed = pc.equal(encodings, "GZIP").fill_null(False)
    if not pc.any(packed).as_py():
        return bodies
    return pa.array(
        [
            unpack(body) if is_packed else body
            for body, is_packed in zip(bodies.to_pylist(), packed.to_pylist(), strict=True)
        ],
        pa.binary(),
    )


def unpack(packed: bytes) -> bytes:
    """The body; as it came where it does not unpack, for that may be why it is a dead letter."""
    stream = zlib.decompressobj(47)  # a gzip or a zlib stream, whichever it is
    try:
        body = stream.decompress(packed, UNPACKED_BYTES_MAX)
    except zlib.error:
        return packed
    return body if stream.eof else packed
