"""How many entries each list of a request may have.

This is checked before anything else in a request. Every list of every request has a number here; a test checks that.
A method may have a lower limit with its own sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

# The key is the message type and the name of the list. If a method has its own limit, this one is higher.
ENTRIES_MAX = {
    "Endpoints.addresses": 64,
    "MessageQueue.accept_message_types": 16,
    "SendMessageRequest.messages": 1_024,
    "Message.user_properties": 1_024,
    "SystemProperties.keys": 1_024,
    "AckMessageRequest.entries": 4_096,
    "CustomizedBackoff.next": 128,
    "Publishing.topics": 1_024,
    "Subscription.subscriptions": 1_024,
    "Settings.client_properties": 64,
    "SyncLiteSubscriptionRequest.lite_topic_set": 4_096,
    "CreateTopicRequest.accept_message_types": 16,
    "UpdateTopicRequest.accept_message_types": 16,
    "CreateGroupRequest.retry_intervals": 128,
    "UpdateGroupRequest.retry_intervals": 128,
    "CancelScheduledRequest.message_ids": 2_000,
    "DeadLetterSelection.ids": 2_000,
    "RedriveDeadLettersRequest.orders": 2_000,
    "Words.words": 1_024,
    "Pairs.pairs": 1_024,
    "ImportOffsetsRequest.offsets": 8_192,
    "ImportMessagesRequest.messages": 2_000,
    "AddPolicyRequest.actions": 16,
    "DescribeGroupAccumulationRequest.topics": 1_024,
    "QueryTimeSpanRequest.topics": 1_024,
    "AdminSendMessageRequest.user_properties": 1_024,
    "AdminSendMessageRequest.ext_info": 1_024,
    "PullBulkRequest.columns": 64,
    "ReceiveBulkRequest.columns": 64,
    # Each queue is one row to write.
    "LockQueuesRequest.queues": 2_048,
    "UnlockQueuesRequest.queues": 2_048,
    "FetchOffsetsRequest.queues": 2_048,
    "CommitOffsetsRequest.offsets": 2_048,
}


# Gets a field of a message, or of a message inside it.
_Field = Callable[[object], Any]


class ListField(NamedTuple):
    """A list in a request: the path of fields to it, and how many entries it may have."""

    path: tuple[FieldDescriptor, ...]
    entries_max: int

    @property
    def name(self) -> str:
        return ".".join(field.name for field in self.path)


class CountedList(NamedTuple):
    """A list to count. If a list on the path to it has several such lists, the longest counts."""

    entries_max: int
    entry_bytes_min: int
    steps: Sequence[_Field]  # to the lists on the path, each from the entries of the one before
    entries: _Field
    name: str


class ListLimits(NamedTuple):
    """How long the lists of a method's requests may be."""

    method: str
    bytes_min: float  # a request of this size or less has no list that is too long
    lists: Sequence[CountedList]


NO_LISTS = ListLimits("", math.inf, ())


def check(method: str, request: Descriptor) -> ListLimits:
    """The limits of a method; `request` is the descriptor of its requests.

    An entry takes at least one byte, and most kinds at least two, so a small request needs no counting.
    """
    lists = [
        CountedList(each.entries_max, _entry_bytes_min(each), *_steps_to(each.path), each.name)
        for each in lists_of(request)
    ]
    return ListLimits(method, min((each.entries_max * each.entry_bytes_min for each in lists), default=math.inf), lists)


def lists_of(
    message: Descriptor, path: tuple[FieldDescriptor, ...] = (), within: frozenset[str] = frozenset()
) -> Iterator[ListField]:
    """Every list in a request and in the messages inside it. Raises `KeyError` for a list without a number."""
    for field in message.fields:
        if field.is_repeated:
            yield ListField((*path, field), ENTRIES_MAX[f"{message.name}.{field.name}"])
        inside = field.message_type
        is_map = inside is not None and inside.GetOptions().map_entry
        if inside is not None and not is_map and inside.full_name not in within:
            yield from lists_of(inside, (*path, field), within | {inside.full_name})


def _entry_bytes_min(each: ListField) -> int:
    """The fewest bytes of an entry: numbers may be packed, every other entry has a tag and a length."""
    field = each.path[-1]
    return 2 if field.type in (field.TYPE_MESSAGE, field.TYPE_STRING, field.TYPE_BYTES) else 1


def _steps_to(path: Sequence[FieldDescriptor]) -> tuple[list[_Field], _Field]:
    """The lists that lead to a list, each as a field of the entries of the one before; and the list itself."""
    *leading, last = [index for index, field in enumerate(path) if field.is_repeated]
    names = [field.name for field in path]
    starts = [0, *(index + 1 for index in leading)]
    steps = [attrgetter(".".join(names[start : index + 1])) for start, index in zip(starts, leading, strict=False)]
    return [*steps], attrgetter(".".join(names[starts[-1] : last + 1]))


# Counting the fields of an encoded request: a decoded list of empty entries would need many times its encoded size.

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def has_more_fields(data: bytes, most: int) -> bool:
    """Whether an encoded message has more than `most` fields.

    Each entry of a list counts as a field; fields of nested messages do not count. Fields inside a protobuf group
    count: our messages have no groups, but a decoder accepts them. In bytes that are not a message, every field before
    the first unreadable one counts.
    """
    position, size = 0, len(data)
    for _ in range(most):
        if position >= size:
            return False
        position, kind, length = _field(data, position)
        if kind > _FIXED32:
            return False
        position += length
    return position < size


def bytes_beside_bodies(data: bytes, message: Descriptor, fields_max: int) -> int:
    """How many bytes of an encoded message are outside of fields of type `bytes`.

    Looks at the message and the messages directly inside it; `message` is its descriptor. All bytes after the first
    `fields_max` fields count.
    """
    beside, ends = len(data), [(len(data), message)]
    position = 0
    for _ in range(fields_max):
        while ends and position >= ends[-1][0]:
            ends.pop()
        if not ends:
            break
        tag, _ = _varint(data, position)
        position, kind, length = _field(data, position)
        field = ends[-1][1].fields_by_number.get(tag >> 3) if kind == _BYTES else None
        inside = None if field is None else field.message_type
        if inside is not None and len(ends) == 1:
            ends.append((position + length, inside))
            continue
        if field is not None and field.type == field.TYPE_BYTES:
            beside -= min(length, len(data) - position)
        position += length
    return beside


def _field(data: bytes, position: int) -> tuple[int, int, int]:
    """The field at `position`: the position of its content, its wire type, and the length of its content in bytes."""
    tag, position = _varint(data, position)
    kind = tag & 7
    if kind == _VARINT:
        _, position = _varint(data, position)
    elif kind == _BYTES:
        length, position = _varint(data, position)
        return position, kind, length
    return position, kind, {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it. A number that is cut off ends with the data."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            break
    return value, position
