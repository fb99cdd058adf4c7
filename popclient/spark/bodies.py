"""Decompresses message bodies that their senders have compressed."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

Item = TypeVar("Item")

# A body that would be larger than this stays compressed: 4 MiB can decompress to 4 GiB.
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
# The bodies of one record batch, decompressed; a single body may be larger.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


def unpacked(bodies: pa.Array, encodings: pa.Array) -> Iterator[pa.Array]:
    """The bodies in order, in arrays of up to BATCH_BYTES_MAX; those whose encoding is GZIP are decompressed."""
    packed = pc.equal(encodings, "GZIP").fill_null(False)
    if not pc.any(packed).as_py():
        yield bodies
        return
    both = zip(bodies.to_pylist(), packed.to_pylist(), strict=True)
    for part in in_parts((unpack(each) if is_packed else each for each, is_packed in both), len, BATCH_BYTES_MAX):
        yield pa.array(part, pa.binary())


def in_parts(
    items: Iterable[Item], size_of: Callable[[Item], int], size_max: int, count_max: int = sys.maxsize
) -> Iterator[list[Item]]:
    """The items in order, in lists of a limited size and number; a larger item is alone."""
    part: list[Item] = []
    size = 0
    for each in items:
        own = size_of(each)
        if part and (len(part) >= count_max or size + own > size_max):
            yield part
            part, size = [], 0
        part.append(each)
        size += own
    if part:
        yield part


def unpack(packed: bytes) -> bytes:
    """The decompressed body; the body as it is if it cannot be decompressed, which may be why it is a dead letter."""
    stream = zlib.decompressobj(47)  # detects gzip and zlib
    try:
        body = stream.decompress(packed, UNPACKED_BYTES_MAX)
    except zlib.error:
        return packed
    return body if stream.eof else packed
