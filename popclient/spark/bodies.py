"""Bodies, unpacked where their senders packed them: what they unpack to is what counts for the memory they take."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# A packed body larger than this is handed over packed: 4 MiB can unpack to 4 GiB.
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
# Of the bodies in one record batch; a single one may be larger.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


def unpacked(bodies: pa.Array, encodings: pa.Array) -> Iterator[pa.Array]:
    """Those whose encoding is GZIP unpacked, the others as they are; in order, in arrays that a batch may have."""
    packed = pc.equal(encodings, "GZIP").fill_null(False)
    if not pc.any(packed).as_py():
        yield bodies
        return
    part: list[bytes] = []
    size = 0
    for each, is_packed in zip(bodies.to_pylist(), packed.to_pylist(), strict=True):
        body = unpack(each) if is_packed else each
        if part and size + len(body) > BATCH_BYTES_MAX:
            yield pa.array(part, pa.binary())
            part, size = [], 0
        part.append(body)
        size += len(body)
    yield pa.array(part, pa.binary())


def unpack(packed: bytes) -> bytes:
    """The body; as it came where it does not unpack, for that may be why it is a dead letter."""
    stream = zlib.decompressobj(47)  # a gzip or a zlib stream, whichever it is
    try:
        body = stream.decompress(packed, UNPACKED_BYTES_MAX)
    except zlib.error:
        return packed
    return body if stream.eof else packed
