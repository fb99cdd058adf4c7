"""Load by bulk pulls: whole queues as Arrow chunks. The load decodes them, as every reader must."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pyarrow as pa

from benchmarks.meter import Meter
from benchmarks.pull_load import PullWire, Stretch
from benchmarks.raw_load import HEADERS
from popproto.v1 import bulk_pb2
from popproto.v2 import definition_pb2 as pb


class BulkLoad:
    """Its verbs are the loads `bulk.…`."""

    def __init__(self, endpoint: str, server_pid: int) -> None:
        self._wire = PullWire(endpoint)
        self._pull: Any = self._wire.channel.unary_stream(
            "/popmq.v1.Bulk/PullBulk",
            request_serializer=bulk_pb2.PullBulkRequest.SerializeToString,
            response_deserializer=bulk_pb2.PullBulkResponse.FromString,
        )
        self._server_pid = server_pid

    async def walk(self, topic: str, group: str, callers: int, warm_up: float, seconds: float) -> dict[str, Any]:
        """Closed loop: each caller reads a queue from its beginning to its end, again and again; all columns."""
        meter, stretches = Meter(), await self._wire.stretches(group, topic)
        # Both sides import Arrow on first use.
        await self._read(Meter(), group, topic, stretches[0])

        async def caller(number: int) -> None:
            own = stretches[number % len(stretches)]
            while meter.running:
                await self._read(meter, group, topic, own)

        workers = [caller(number) for number in range(callers)]
        return await meter.measure(workers, warm_up=warm_up, seconds=seconds, server_pid=self._server_pid)

    async def close(self) -> None:
        await self._wire.channel.close()

    async def _read(self, meter: Meter, group: str, topic: str, own: Stretch) -> None:
        request = bulk_pb2.PullBulkRequest(
            group=pb.Resource(name=group),
            topic=pb.Resource(name=topic),
            queue_id=own.queue_id,
            offset=own.begin,
            end_offset=own.end,
        )
        call = self._pull(request, metadata=HEADERS, timeout=60)
        begun = time.perf_counter()
        while meter.running and (frame := await call.read()) is not grpc.aio.EOF:
            if frame.HasField("status") and frame.status.code != pb.OK:
                raise RuntimeError(f"a bulk pull of {own} failed: {frame.status}")
            if frame.chunk:
                meter.done(pa.ipc.open_stream(frame.chunk).read_all().num_rows, begun)
            begun = time.perf_counter()
        call.cancel()
