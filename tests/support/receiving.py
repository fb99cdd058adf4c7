"""What receives over the wire are asked with, and a caller without a call."""

from __future__ import annotations

from popproto.v1 import receiving_pb2
from popproto.v1.receiving_pb2_grpc import ReceivingStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.names import Resource
from popserver.transport import convert
from tests.support.wire_server import CLIENT, GROUP, TOPIC, WireServer, headers

FOREIGN_TYPE = pb.FilterExpression(expression="*")


FOREIGN_TYPE.type = 7  # type: ignore[assignment]


def tags(expression: str) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.TAG, expression=expression)


def sql(expression: str) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.SQL, expression=expression)


class FakeCaller:
    """A caller with any deadline and any headers, without a call."""

    client_id = CLIENT
    namespace = ""
    user = ""

    def resource(self, named: pb.Resource) -> Resource:
        return Resource(named.resource_namespace, named.name)

    def __init__(self, remaining_ms: int | None = None, version: str = "") -> None:
        self._remaining_ms = remaining_ms
        self._version = version
        self.call = self

    def require(self, _needs: object) -> None:
        """It may everything."""

    def carries(self, _undelivered: object, _size: int) -> None:
        """There is no call whose end would give anything back."""

    def header(self, _name: str) -> str:
        return self._version

    def remaining_ms(self) -> int | None:
        return self._remaining_ms


NOTHING = pb.MESSAGE_NOT_FOUND


async def receive_batch(
    wire_server: WireServer, request: wire.ReceiveMessageRequest, client_id: str = CLIENT
) -> receiving_pb2.ReceiveBatchResponse:
    """A receive that is answered in one frame."""
    return await ReceivingStub(wire_server.channel).ReceiveBatch(request, metadata=headers(client_id, {}))


async def push(
    wire_server: WireServer,
    client_id: str = "pusher",
    *,
    attempt_id: str = "",
    batch_size: int = 32,
    group: pb.Resource = GROUP,
    topic: pb.Resource = TOPIC,
) -> list[pb.Message]:
    """What a push consumer gets that does not wait."""
    request = wire.ReceiveMessageRequest(
        group=group,
        message_queue=pb.MessageQueue(topic=topic),
        batch_size=batch_size,
        auto_renew=True,
        attempt_id=attempt_id,
    )
    convert.set_ms(request.long_polling_timeout, 0)
    frames = await wire_server.frames("ReceiveMessage", request, client_id=client_id)
    assert frames[0].status.code in {pb.OK, NOTHING}
    return [frame.message for frame in frames if frame.HasField("message")]
