"""What a request holds, before it is decoded: decoding takes many times the size of a list of empty entries."""

from __future__ import annotations

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def has_more_fields(data: bytes, most: int) -> bool:
    """Whether an encoded message has more than `most` fields, each entry of a list counted; nested ones are not.

    Bytes that are no message have as many fields as can be read of them.
    """
    place, size = 0, len(data)
    for _ in range(most):
        if place >= size:
            return False
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == _VARINT:
            _, place = _varint(data, place)
        elif kind == _BYTES:
            length, place = _varint(data, place)
            place += length
        elif kind in (_FIXED64, _FIXED32):
            place += 8 if kind == _FIXED64 else 4
        else:
            return False
    return place < size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """The number that stands there, and the place after it; beyond the end of the data it ends there."""
    value = shift = 0
    while place < len(data):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            break
    return value, place
