"""A server as its operators use it: in this process, both raw Admin services, and a client to make something happen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import grpc
from sqlalchemy import Connection, select

import popserver
from popproto.v1 import admin_pb2 as admin
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import admin_pb2 as rocketmq
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.admin_pb2_grpc import AdminStub as RocketmqAdminStub
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver import EmbeddedBroker
from popserver.database import schema
from tests.support.builders import START

CLIENT = (("x-mq-client-id", "worker-1"),)
REQUESTS = {"QueryMessage": "ListMessageRequest"}  # the one request that is not named after its method


class AdminServer:
    """Requests in, answers out; the refusals are statuses, as on the wire."""

    def __init__(self, server: EmbeddedBroker, channel: grpc.Channel) -> None:
        self.server = server
        self.admin = AdminStub(channel)
        self.rocketmq_admin = RocketmqAdminStub(channel)
        self._messaging = MessagingServiceStub(channel)

    def call(self, method: str, /, *, namespace: str = "", **fields: Any) -> Any:
        """One call of `method`, its request built from the fields."""
        request = getattr(admin, f"{method}Request")(**fields)
        return getattr(self.admin, method)(request, metadata=(("x-mq-namespace", namespace),))

    def ask(self, method: str, /, *, namespace: str = "", **fields: Any) -> Any:
        """The same of apache.rocketmq.v2.Admin."""
        request = getattr(rocketmq, REQUESTS.get(method, f"{method}Request"))(**fields)
        return getattr(self.rocketmq_admin, method)(request, metadata=(("x-mq-namespace", namespace),))

    def make_group(self, name: str, *, intervals_s: tuple[int, ...] = (), **fields: Any) -> None:
        request = admin.CreateGroupRequest(group=named(name), **fields)
        for seconds in intervals_s:
            request.retry_intervals.add().FromTimedelta(timedelta(seconds=seconds))
        assert self.admin.CreateGroup(request).status.code == pb.OK

    def send(
        self,
        topic: str,
        *message_ids: str,
        body: bytes = b"body",
        properties: Mapping[str, str] = {"colour": "red"},
        **system: Any,
    ) -> None:
        messages = [
            pb.Message(
                topic=named(topic),
                body=body,
                user_properties=properties,
                system_properties=pb.SystemProperties(**{"message_id": each, "body_encoding": pb.IDENTITY, **system}),
            )
            for each in message_ids
        ]
        answer = self._messaging.SendMessage(wire.SendMessageRequest(messages=messages), metadata=CLIENT)
        assert answer.status.code == pb.OK, answer

    def sync_lite(self, group: str, topic: str, *lite_topics: str) -> None:
        """The client that receives subscribes to lite topics."""
        request = wire.SyncLiteSubscriptionRequest(group=named(group), topic=named(topic), lite_topic_set=lite_topics)
        assert self._messaging.SyncLiteSubscription(request, metadata=CLIENT).status.code == pb.OK

    def receive(self, group: str, topic: str, batch_size: int = 32, wanted: str = "*") -> list[pb.Message]:
        """Take the messages that are there, for ten seconds."""
        request = wire.ReceiveMessageRequest(
            group=named(group),
            message_queue=pb.MessageQueue(topic=named(topic)),
            batch_size=batch_size,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression=wanted),
        )
        request.invisible_duration.seconds = 10
        request.long_polling_timeout.FromMilliseconds(1)
        frames = self._messaging.ReceiveMessage(request, metadata=CLIENT)
        return [frame.message for frame in frames if frame.HasField("message")]

    def ack(self, group: str, topic: str, message: pb.Message) -> None:
        assert self.acked(group, topic, message).code == pb.OK

    def acked(self, group: str, topic: str, message: pb.Message) -> pb.Status:
        entry = wire.AckMessageEntry(
            message_id=message.system_properties.message_id, receipt_handle=message.system_properties.receipt_handle
        )
        request = wire.AckMessageRequest(group=named(group), topic=named(topic), entries=[entry])
        status: pb.Status = self._messaging.AckMessage(request, metadata=CLIENT).status
        return status

    def give_up(self, group: str, topic: str, message: pb.Message) -> None:
        request = wire.ForwardMessageToDeadLetterQueueRequest(
            group=named(group),
            topic=named(topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        answer = self._messaging.ForwardMessageToDeadLetterQueue(request, metadata=CLIENT)
        assert answer.status.code == pb.OK, answer

    def digest(self) -> str:
        """One number for everything stored: equal numbers, nothing changed."""
        self.server.settle()
        return self.server.run(self.server.app.broker.engine.reader.read(_digest))


@contextmanager
def opened(database: str = "sqlite://", **options: Any) -> Iterator[AdminServer]:
    with (
        popserver.embedded(database, manual_clock=START, **options) as server,
        grpc.insecure_channel(server.endpoint, options=[("grpc.max_receive_message_length", -1)]) as channel,
    ):
        yield AdminServer(server, channel)


def named(name: str) -> pb.Resource:
    """`topic`, or `namespace/topic`."""
    namespace, _, last = name.rpartition("/")
    return pb.Resource(resource_namespace=namespace, name=last)


def _digest(conn: Connection) -> str:
    digest = hashlib.sha256()
    for table in schema.metadata.sorted_tables:
        digest.update(table.name.encode())
        for row in conn.execute(select(table).order_by(*table.primary_key)):
            digest.update(repr(tuple(row)).encode())
    return digest.hexdigest()
