"""What a request holds, before it is decoded: decoding takes many times the size of a list of empty entries."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def has_more_fields(data: bytes, most: int) -> bool:
    """Whether an encoded message has more than `most` fields, each entry of a list counted; nested ones are not.

    What a group holds is counted as well: no message of ours has one, and a decoder takes them. Bytes that are no
    message have as many fields as can be read of them.
    """
    place, size = 0, len(data)
    for _ in range(most):
        if place >= size:
            return False
        place, kind, length = _field(data, place)
        if kind > _FIXED32:
            return False
        place += length
    return place < size


def bytes_beside_bodies(data: bytes, message: Descriptor, fields_max: int) -> int:
    """How many of an encoded message's bytes are not in a field of type `bytes`, of its own or of its entries.

    `message` is its descriptor. After `fields_max` fields all that is left counts.
    """
    beside, ends = len(data), [(len(data), message)]
    place = 0
    for _ in range(fields_max):
        while ends and place >= ends[-1][0]:
            ends.pop()
        if not ends:
            break
        tag, _ = _varint(data, place)
        place, kind, length = _field(data, place)
        field = ends[-1][1].fields_by_number.get(tag >> 3) if kind == _BYTES else None
        inside = None if field is None else field.message_type
        if inside is not None and len(ends) == 1:
            ends.append((place + length, inside))
            continue
        if field is not None and field.type == field.TYPE_BYTES:
            beside -= min(length, len(data) - place)
        place += length
    return beside


def _field(data: bytes, place: int) -> tuple[int, int, int]:
    """Where the content of the field that stands there begins, of which kind it is, and how long its content is."""
    tag, place = _varint(data, place)
    kind = tag & 7
    if kind == _VARINT:
        _, place = _varint(data, place)
    elif kind == _BYTES:
        length, place = _varint(data, place)
        return place, kind, length
    return place, kind, {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)


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
