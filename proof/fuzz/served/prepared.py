"""What a new server holds before the first input: topics of all types, groups, messages in several states."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.transport import convert
from proof.fuzz.served.server import START_MS

HEADERS = {"x-mq-client-id": "c1"}
_MESSAGING, _ADMIN = "/apache.rocketmq.v2.MessagingService/", "/popmq.v1.Admin/"
_TYPES = {"orders": pb.NORMAL, "in-order": pb.FIFO, "delayed": pb.DELAY, "halves": pb.TRANSACTION, "lite": pb.LITE}
_GROUPS = ("billing", "shipping")


def requests() -> Iterator[tuple[str, Message]]:
    """The paths and requests that make it."""
    for name, kind in _TYPES.items():
        request = admin.CreateTopicRequest(topic=pb.Resource(name=name), queue_count=2, accept_message_types=[kind])
        yield _ADMIN + "CreateTopic", request
    for name in _GROUPS:
        yield _ADMIN + "CreateGroup", admin.CreateGroupRequest(group=pb.Resource(name=name), max_attempts=3)
    for name, kind in _TYPES.items():
        yield _MESSAGING + "SendMessage", wire.SendMessageRequest(messages=[_message(name, kind, at) for at in (0, 1)])
    for name in ("orders", "in-order"):
        received = wire.ReceiveMessageRequest(
            group=pb.Resource(name="billing"),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=name)),
            batch_size=1,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        convert.set_ms(received.invisible_duration, 30_000)
        yield _MESSAGING + "ReceiveMessage", received


def _message(topic: str, kind: pb.MessageType.ValueType, number: int) -> pb.Message:
    system = pb.SystemProperties(message_id=f"{topic}-{number}", body_encoding=pb.IDENTITY, message_type=kind)
    if kind == pb.FIFO:
        system.message_group = "x"
    elif kind == pb.DELAY:
        convert.set_ms(system.delivery_timestamp, START_MS + 60_000)
    elif kind == pb.LITE:
        system.lite_topic = "l1"
    return pb.Message(topic=pb.Resource(name=topic), body=b"body", user_properties={"a": "1"}, system_properties=system)
