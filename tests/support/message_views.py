"""Messages as a receive or a pull brings them."""

from __future__ import annotations

from datetime import UTC, datetime

from popclient import MessageView
from popproto.v2 import definition_pb2 as pb


def view_at(offset: int, body: bytes = b"x", topic: str = "t", queue_id: int = 0) -> MessageView:
    wire = pb.Message(topic=pb.Resource(name=topic), body=body)
    wire.system_properties.message_id = f"{topic}-{queue_id}-{offset}"
    wire.system_properties.queue_id = queue_id
    wire.system_properties.queue_offset = offset
    return MessageView.unheld(wire)


def views(*offsets: int) -> list[MessageView]:
    return [view_at(offset) for offset in offsets]


def offsets_of(messages: list[MessageView]) -> list[int]:
    return [message.queue_offset for message in messages]


def view_of(name: str, topic: str = "t") -> MessageView:
    wire = pb.Message(topic=pb.Resource(name=topic), body=name.encode())
    wire.system_properties.message_id = name
    return MessageView(wire, datetime.now(UTC))
