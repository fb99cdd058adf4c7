"""Messages that members hand back."""

from __future__ import annotations

from popproto.v1 import legacy_pb2 as wire
from popserver.broker import retries as broker
from popserver.broker.offsets import QueueName
from popserver.broker.retries import HandedBack
from popserver.rpc import status
from popserver.rpc.calls import Caller


class Retries:
    """One method per RPC."""

    def __init__(self, retries: broker.Retries) -> None:
        self._retries = retries

    async def send_back(self, request: wire.SendBackRequest, caller: Caller) -> wire.SendBackResponse:
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
        return wire.SendBackResponse(status=status.OK, is_dead_letter=is_dead_letter)
