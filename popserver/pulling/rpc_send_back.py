"""The call by which members send messages back."""

from __future__ import annotations

from popproto.v1 import legacy_pb2
from popserver.access import rights
from popserver.model.topic import QueueName
from popserver.pulling.send_back_flow import HandedBack, SendBacks
from popserver.transport import status
from popserver.transport.calls import AnyMethod, Caller, Method


class SendBackMethods:
    """The only method for them."""

    def __init__(self, retries: SendBacks) -> None:
        self._retries = retries
        self.legacy: dict[str, AnyMethod] = {"SendBack": Method(self.send_back, rights.consume_queue)}

    async def send_back(self, request: legacy_pb2.SendBackRequest, caller: Caller) -> legacy_pb2.SendBackResponse:
        name = request.queue
        queue = QueueName(caller.resource(name.topic), name.queue_id, name.generation)
        failed = HandedBack(
            queue,
            request.offset,
            request.delay_level,
            request.max_reconsume_times if request.HasField("max_reconsume_times") else None,
        )
        group = caller.resource(request.group)
        is_dead_letter = await self._retries.send_back(group, caller.client_id, failed)
        return legacy_pb2.SendBackResponse(status=status.OK, is_dead_letter=is_dead_letter)
