"""A client with no patience and no memory: one raw call, one status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.transport.convert import set_ms
from tests.support.workload import stub_of

TOPIC = pb.Resource(name="orders")
GROUP = pb.Resource(name="billing")
CALL_TIMEOUT_S = 30.0
HOLD_MS = 30_000
_NAMED = (("x-mq-client-id", "knocker"),)


class RawClient:
    """The verbs of the wire on one topic and one group."""

    def __init__(self, stub: Any, hold_ms: int) -> None:
        self._stub = stub
        self._hold_ms = hold_ms

    async def send(self, message_id: str, body: bytes = b"body") -> pb.Status:
        message = pb.Message(
            topic=TOPIC,
            body=body,
            system_properties=pb.SystemProperties(message_id=message_id, body_encoding=pb.IDENTITY),
        )
        answer = await self._call("SendMessage", wire.SendMessageRequest(messages=[message]))
        status: pb.Status = answer.entries[0].status if answer.entries else answer.status
        return status

    async def receive(self, batch_size: int = 32, poll_ms: int = 0) -> tuple[pb.Status, list[pb.Message]]:
        """Waits up to `poll_ms` for a message, but no less than the shortest poll."""
        request = wire.ReceiveMessageRequest(
            group=GROUP,
            message_queue=pb.MessageQueue(topic=TOPIC),
            batch_size=batch_size,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        set_ms(request.invisible_duration, self._hold_ms)
        set_ms(request.long_polling_timeout, poll_ms)
        status, messages = pb.Status(), []
        async for frame in self._stub.ReceiveMessage(request, metadata=_NAMED, timeout=CALL_TIMEOUT_S):
            if frame.HasField("status"):
                status = frame.status
            elif frame.HasField("message"):
                messages.append(frame.message)
        return status, messages

    async def ack(self, *messages: pb.Message) -> list[pb.Status]:
        entries = [
            wire.AckMessageEntry(
                message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
            )
            for each in messages
        ]
        answer = await self._call("AckMessage", wire.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries))
        return [entry.status for entry in answer.entries] or [answer.status] * len(messages)

    async def route(self) -> pb.Status:
        status: pb.Status = (await self._call("QueryRoute", wire.QueryRouteRequest(topic=TOPIC))).status
        return status

    async def drain(self, count: int) -> dict[str, bytes]:
        """Receive and ack so many messages; fails when fewer come, or one comes twice."""
        bodies: dict[str, bytes] = {}
        while len(bodies) < count:
            status, messages = await self.receive()
            assert messages, f"{len(bodies)} of {count} messages came, then: {status}"
            assert {each.code for each in await self.ack(*messages)} == {pb.OK}
            for each in messages:
                assert each.system_properties.message_id not in bodies
                bodies[each.system_properties.message_id] = each.body
        return bodies

    async def _call(self, method: str, request: Any) -> Any:
        return await getattr(self._stub, method)(request, metadata=_NAMED, timeout=CALL_TIMEOUT_S)


@asynccontextmanager
async def raw_client(endpoint: str, *, hold_ms: int = HOLD_MS) -> AsyncIterator[RawClient]:
    async with stub_of(endpoint) as stub:
        yield RawClient(stub, hold_ms)


def assert_says(status: pb.Status, *words: str) -> None:
    """The server is at fault, and says in one sentence what is wrong and what to do."""
    assert status.code == pb.INTERNAL_SERVER_ERROR, status
    for word in (*words, "repeat"):
        assert word in status.message, f"{word!r} is missing in: {status.message}"
    assert_is_a_sentence(status.message)


def assert_is_a_sentence(text: str) -> None:
    for leak in ("Traceback", "Error(", "sqlalche", "psycopg.", "\n"):
        assert leak not in text.strip(), f"{leak!r} leaks in: {text}"
