"""Requests of any method, drawn from its descriptor: what a field's name makes likely, or anything its type allows."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from popproto.v2 import definition_pb2 as pb
from proof.fuzz.target import a_number, a_text

# The server puts what it gave last in the place of these.
RECEIPT, RECALL, TRANSACTION, MESSAGE_ID, PLAN = "@receipt", "@recall", "@transaction", "@message", "@plan"
TOPICS = ("orders", "in-order", "delayed", "halves", "lite", "any", "new", "%DLQ%billing", "%RETRY%billing")
# The type of a topic's messages, and the property that only this type has.
_TYPES: Mapping[str, tuple[pb.MessageType.ValueType, str]] = {
    "orders": (pb.NORMAL, "born_host"),
    "in-order": (pb.FIFO, "message_group"),
    "delayed": (pb.DELAY, "delivery_timestamp"),
    "halves": (pb.TRANSACTION, "orphaned_transaction_recovery_duration"),
    "lite": (pb.LITE, "lite_topic"),
}
_RESOURCES: Mapping[str, Sequence[str]] = {"topic": TOPICS, "group": ("billing", "billing", "shipping", "new")}
_OFFSETS = (0, 0, 1, 2, 5, 100)
_LIKELY: Mapping[str, Sequence[Any]] = {
    "receipt_handle": (RECEIPT,),
    "recall_handle": (RECALL,),
    "transaction_id": (TRANSACTION,),
    "message_id": (MESSAGE_ID, MESSAGE_ID, "m1", "01AABBCCDDEEFF0011223344556677889900"),
    "message_ids": (MESSAGE_ID, "m1"),
    "plan_id": (PLAN,),
    "attempt_id": ("a1", "a2"),
    "topic": ("orders", "in-order"),
    "resource_namespace": ("",),
    "message_group": ("x", "y"),
    "lite_topic": ("l1", "l2"),
    "lite_topic_set": ("l1", "l2"),
    "tag": ("A", "B"),
    "keys": ("k",),
    "expression": ("*", "A", "A || B", "a = 1", "a IS NULL OR TAGS = 'A'", "NOT (a > 1)"),
    "where": ("a = 1", "TAGS = 'A'"),
    "type": (1, 1, 2),
    "message_type": (1, 1, 2, 3, 4, 5),
    "client_type": (1, 2, 3, 4, 5),
    "resolution": (1, 2),
    "source": (0, 1, 2),
    "permission": (1, 2, 3),
    "action": (1, 2),
    "actions": ("PUB", "SUB"),
    "effect": ("ALLOW", "DENY"),
    "resource_kind": ("TOPIC", "GROUP"),
    "secret": ("correct-horse",),
    "access_key": ("alice", "bob"),
    "client_id": ("c1", "c2"),
    "body_encoding": (1, 1, 2),
    "id": (0, 0, 1),
    "queue_id": (0, 0, 1),
    "queue_count": (1, 2, 8),
    "batch_size": (1, 32),
    "max_messages": (1, 32),
    "max_message_nums": (1, 32),
    "page_size": (1, 20),
    "page_num": (1, 2),
    "max_attempts": (1, 16),
    "max_bytes": (1_000_000,),
    "offset": _OFFSETS,
    "queue_offset": _OFFSETS,
    "from_offset": _OFFSETS,
    "to_offset": _OFFSETS,
    "begin": (True, False),
    "priority": (0, 1),
    "key": ("a", "b"),
    "generation": (0,),
    "scroll_id": ("",),
    "page": ("",),
    "columns": ("message_id", "body", "offset"),
}
_SECONDS = (0, 1, 10, 30, 60, 3_600)
_EXTREMES = (-(2**63), -62_135_596_801, -1, 253_402_300_800, 2**31, 2**63 - 1)
_RANGES: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_FLOATS = (0.0, 1.0, 2.0, -1.0, 1e308, float("inf"), float("-inf"), float("nan"))
_DEPTH_MAX = 5
_NAMED_TIMES = ("google.protobuf.Timestamp", "google.protobuf.Duration")


class RequestGrammar:
    """Draws requests. `oddness`: how many of the fields have a value that their name does not make likely."""

    def __init__(self, dice: random.Random, now_s: int) -> None:
        self._dice = dice
        self._now_s = now_s
        self._oddness = dice.choice((0.0, 0.0, 0.03, 0.1, 0.5))
        self._share = dice.choice((0.5, 0.9, 1.0))  # of the fields that are there

    def draw(self, descriptor: Descriptor) -> Message:
        message = GetMessageClass(descriptor)()
        self._fill(message, 0)
        return message

    def _fill(self, message: Message, depth: int) -> None:
        for field in cast("Descriptor", message.DESCRIPTOR).fields:
            if self._dice.random() < (self._share if depth < _DEPTH_MAX else 0.1) and self._is_in(field):
                self._put(message, field, depth)

    def _is_in(self, field: FieldDescriptor) -> bool:
        """Of the fields of a oneof one is there; mostly."""
        oneof = field.containing_oneof
        return oneof is None or len(oneof.fields) < 2 or self._dice.random() < 1.5 / len(oneof.fields)

    def _put(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        dice = self._dice
        if not field.is_repeated:
            if field.message_type is None:
                setattr(message, field.name, self._scalar(field))
            elif depth < 2 * _DEPTH_MAX:
                part = getattr(message, field.name)
                part.SetInParent()
                self._part(part, field, depth + 1)
            return
        entries, count = getattr(message, field.name), self._count()
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            key, value = kind.fields_by_name["key"], kind.fields_by_name["value"]
            for _ in range(count):
                entries[self._scalar(key)] = self._scalar(value)
        elif kind is not None:
            for _ in range(count if depth < _DEPTH_MAX else 0):
                self._part(entries.add(), field, depth + 1)
        else:
            entries.extend(self._scalar(field) for _ in range(count))
        if dice.random() < 0.1 and count and kind is not None and not kind.GetOptions().map_entry:
            entries.add().CopyFrom(entries[0])

    def _part(self, part: Message, field: FieldDescriptor, depth: int) -> None:
        dice, odd = self._dice, self._dice.random() < self._oddness
        name = cast("Descriptor", part.DESCRIPTOR).full_name
        if name in _NAMED_TIMES:
            # A time near the server's, or a length; or none that a calendar has.
            base = self._now_s if name.endswith("Timestamp") else 0
            seconds = dice.choice(_EXTREMES) if odd else base + dice.choice(_SECONDS)
            part.seconds, part.nanos = seconds, dice.choice((0, 0, 1, -1, 2**31 - 1)) if odd else 0  # type: ignore[attr-defined]
        elif name == "apache.rocketmq.v2.Resource" and not odd:
            kind = "group" if "group" in field.name or field.name == "resource" else "topic"
            part.name = dice.choice(_RESOURCES[kind])  # type: ignore[attr-defined]
        elif not odd or depth < 2:
            self._fill(part, depth)
            if isinstance(part, pb.Message) and dice.random() < 0.7:
                self._straighten(part)

    def _straighten(self, message: pb.Message) -> None:
        """Make it a message that its topic takes: random fields nearly always contradict each other."""
        dice, system = self._dice, message.system_properties
        if message.topic.name not in _TYPES:
            message.topic.name = dice.choice(list(_TYPES))
        kept = {"tag", "keys", "message_id", "message_type", "body_encoding", _TYPES[message.topic.name][1]}
        for field, _ in system.ListFields():
            if field.name not in kept:
                cast("Message", system).ClearField(field.name)
        system.message_type, system.body_encoding = _TYPES[message.topic.name][0], pb.IDENTITY
        system.message_id = system.message_id or f"n{dice.randrange(10**9)}"
        message.body = message.body or b"body"

    def _count(self) -> int:
        if self._dice.random() < self._oddness / 4:
            return self._dice.choice((0, 40, 200))
        return self._dice.choice((1, 1, 1, 2, 3))

    def _scalar(self, field: FieldDescriptor) -> Any:
        dice, odd = self._dice, self._dice.random() < self._oddness
        likely = () if odd else _LIKELY.get(field.name, ())
        fitting = [each for each in likely if isinstance(each, str) is _is_text(field)]
        if field.name == "message_id" and not odd and dice.random() < 0.5:
            return f"n{dice.randrange(10**9)}"  # a message that was not sent before
        if fitting:
            return dice.choice(fitting)
        kind = field.cpp_type
        if field.type == FieldDescriptor.TYPE_BYTES:
            return dice.choice((b"", b"body", b"\xff" * 10, a_text(dice).encode()))
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._text(odd=odd)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return dice.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return dice.choice(_FLOATS if odd else _FLOATS[:3])
        low, high = _RANGES[kind]
        return max(low, min(high, a_number(dice) if odd else dice.randrange(4)))

    def _text(self, *, odd: bool) -> str:
        dice = self._dice
        if not odd:
            return dice.choice(("a", "b", "1", "x", "c1"))
        match dice.randrange(4):
            case 0:
                return dice.choice(
                    ("", " ", "%", "x" * 300, "é" * 127, "x" * 70_000, "%RETRY%", "\x00", "a\nb", "../..")
                )
            case 1:
                return dice.choice((RECEIPT, RECALL, TRANSACTION, MESSAGE_ID, *TOPICS))
        return a_text(dice, 20)


def _is_text(field: FieldDescriptor) -> bool:
    return field.cpp_type == FieldDescriptor.CPPTYPE_STRING


def with_given(message: Message, given: Mapping[str, str]) -> None:
    """Put what the server has given (a receipt handle, …) in the place of the words that stand for it."""
    for field, value in message.ListFields():
        if field.message_type is None:
            if _is_text(field) and field.type != FieldDescriptor.TYPE_BYTES:
                if field.is_repeated:
                    value[:] = [given.get(each, each) for each in value]
                elif value in given:
                    setattr(message, field.name, given[value])
        elif not field.message_type.GetOptions().map_entry:
            for part in value if field.is_repeated else (value,):
                with_given(part, given)
