"""Converts columns of messages to Arrow IPC streams. Imported at first use: Arrow is an optional dependency."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import pyarrow as pa

from popserver.bulk.rules import CHUNK_BYTES_MAX
from popserver.messages.columns import Columns
from popserver.model.message import RECONSUME_TIME
from popserver.model.names import RETRY_PREFIX
from popserver.model.topic import MessageType, offset_of, queue_of

# A body that would unpack to more bytes is sent packed: 4 MiB can unpack to 4 GiB. popclient has the same limit.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024

_TIME = pa.timestamp("us", tz="UTC")
_FIELDS: dict[str, pa.DataType] = {
    "message_id": pa.string(),
    "topic": pa.string(),
    "tag": pa.string(),
    "keys": pa.list_(pa.string()),
    "message_group": pa.string(),
    "lite_topic": pa.string(),
    "message_type": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "born_timestamp": _TIME,
    "store_timestamp": _TIME,
    "delivery_timestamp": _TIME,
    "delivery_attempt": pa.int32(),
}
# The end of an Arrow IPC stream: a message of length 0.
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class Chunk(NamedTuple):
    """A whole Arrow IPC stream in parts, of `size` bytes together; `next_key`: the key after its last message."""

    parts: Sequence[bytes | pa.Buffer]
    size: int
    messages: int
    next_key: int


class Chunks:
    """Makes chunks of these columns for messages of one topic. `attempts`: the attempts of held messages, by key."""

    def __init__(self, columns: Sequence[str], topic_name: str, attempts: Mapping[int, int] | None = None) -> None:
        self._columns = columns
        self._topic_name = topic_name
        self._attempts = attempts
        self._schema = pa.schema([(name, _FIELDS[name]) for name in columns])
        self._schema_message = self._schema.serialize()

    def of(self, found: Columns, numbers: Mapping[int, int]) -> Iterator[Chunk]:
        """The found messages in one chunk, or in several if their unpacked bodies are too large for one.

        `numbers`: the queue numbers, which are the protocol's queue ids, by queue id.
        """
        if not self.has_packed(found):
            if found.keys:
                yield self._chunk(found, numbers)
            return
        start, size = 0, 0
        bodies: list[bytes] = []
        for index, body in enumerate(_unpacked(found)):
            if bodies and size + len(body) > CHUNK_BYTES_MAX:
                yield self._chunk(_part(found, start, bodies), numbers)
                start, size, bodies = index, 0, []
            bodies.append(body)
            size += len(body)
        yield self._chunk(_part(found, start, bodies), numbers)

    def has_packed(self, found: Columns) -> bool:
        """Whether some bodies must be unpacked, which may take a while."""
        return 1 in found.values.get("is_packed", ())

    def _chunk(self, found: Columns, numbers: Mapping[int, int]) -> Chunk:
        arrays = [self._array(name, found, numbers) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        parts = (self._schema_message, batch.serialize(), _END_OF_STREAM)
        return Chunk(parts, sum(map(len, parts)), len(found.keys), found.keys[-1] + 1)

    def _array(self, name: str, found: Columns, numbers: Mapping[int, int]) -> pa.Array:
        match name:
            case "topic":
                return pa.repeat(pa.scalar(self._topic_name), len(found.keys))
            case "queue_id":
                return pa.array([numbers[queue_of(key)] for key in found.shown_keys or found.keys], pa.int32())
            case "queue_offset":
                return pa.array(list(map(offset_of, found.shown_keys or found.keys)), pa.int64())
            case "delivery_attempt":
                return pa.array(self._attempts_of(found), pa.int32())
            case "body":
                return _binaries(found.bodies, found.body_sizes)
            case "message_group":
                return _strings(_groups(found, are_lite=False))
            case "lite_topic":
                return _strings(_groups(found, are_lite=True))
        return _MAKERS.get(name, pa.array)(found.values[_SOURCES.get(name, name)])

    def _attempts_of(self, found: Columns) -> list[int]:
        if self._attempts is not None:
            return [self._attempts[key] for key in found.keys]
        if not self._topic_name.startswith(RETRY_PREFIX):
            return [1] * len(found.keys)
        return [1 + int(each.get(RECONSUME_TIME, "0")) for each in found.values["properties"]]


def _groups(found: Columns, *, are_lite: bool) -> Sequence[str | None]:
    """The message group of each message, or with `are_lite` its lite topic, which is stored in the same column."""
    kinds, groups = found.values["message_type"], found.values["message_group"]
    if MessageType.LITE not in kinds:
        return [None] * len(groups) if are_lite else groups
    return [
        group if (kind == MessageType.LITE) == are_lite else None for kind, group in zip(kinds, groups, strict=True)
    ]


def _part(found: Columns, start: int, bodies: Sequence[bytes]) -> Columns:
    """The messages from index `start` on, one for each of these bodies."""
    stop = start + len(bodies)
    values = {name: listed[start:stop] for name, listed in found.values.items()}
    sizes = list(map(len, bodies))
    return Columns(found.keys[start:stop], values, b"".join(bodies), sizes, found.shown_keys[start:stop])


def _unpacked(found: Columns) -> Iterator[bytes]:
    ends = accumulate(found.body_sizes)
    for end, size, is_packed in zip(ends, found.body_sizes, found.values["is_packed"], strict=True):
        body = found.bodies[end - size : end]
        yield _unpack(body) if is_packed else body


def _unpack(packed: bytes) -> bytes:
    """The unpacked body, or the stored one if it cannot be unpacked: the server does not check packed bodies."""
    stream = zlib.decompressobj(47)  # 47: detects gzip and zlib
    try:
        body = stream.decompress(packed, UNPACKED_BYTES_MAX)
    except zlib.error:
        return packed
    return body if stream.eof else packed


def _offsets(sizes: Iterable[int]) -> array[int]:
    return array("i", accumulate(sizes, initial=0))


def _binaries(joined: bytes, sizes: Sequence[int]) -> pa.Array:
    """An Arrow array over the joined bodies, without copying them."""
    buffers = [None, pa.py_buffer(_offsets(sizes)), pa.py_buffer(joined)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def _strings(values: Sequence[str | None]) -> pa.Array:
    return pa.array(values, pa.string())


def _lists(values: Sequence[Sequence[str]]) -> pa.Array:
    offsets = pa.array(_offsets(map(len, values)), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(list(chain.from_iterable(values)), pa.string()))


def _maps(values: Sequence[Mapping[str, str]]) -> pa.Array:
    offsets = pa.array(_offsets(map(len, values)), pa.int32())
    keys = pa.array(list(chain.from_iterable(values)), pa.string())
    items = pa.array([value for each in values for value in each.values()], pa.string())
    return pa.MapArray.from_arrays(offsets, keys, items)


def _times(values: Sequence[int | None]) -> pa.Array:
    return pa.array(values, pa.timestamp("ms", tz="UTC")).cast(_TIME)


_MAKERS: dict[str, Callable[..., pa.Array]] = {
    "message_id": _strings,
    "tag": _strings,
    "keys": _lists,
    "message_type": _strings,
    "properties": _maps,
    "born_timestamp": _times,
    "store_timestamp": _times,
    "delivery_timestamp": _times,
}
_SOURCES = {
    "born_timestamp": "born_at_ms",
    "store_timestamp": "stored_at_ms",
    "delivery_timestamp": "deliver_at_ms",
}
