"""Bulk transfer over the wire, in few words."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from popproto.v1 import bulk_pb2 as wire
from popproto.v1.bulk_pb2_grpc import BulkStub
from popproto.v2 import definition_pb2 as pb
from popserver.transport import convert
from tests.support.wire_server import CLIENT, GROUP, TOPIC, WireServer, headers

FAR = 1 << 39  # beyond every queue's end


class Answer(NamedTuple):
    """The frames of a streamed answer; `tables` are its chunks, each with the next offset it came with."""

    status: pb.Status
    frames: list[Any]
    tables: list[pa.Table]

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for table in self.tables for row in table.to_pylist()]

    @property
    def ids(self) -> list[str]:
        return [row["message_id"] for row in self.rows]

    @property
    def next_offset(self) -> int:
        return int(self.frames[-1].next_offset)


async def pull_bulk(wire_server: WireServer, offset: int = 0, end_offset: int = FAR, **more: Any) -> Answer:
    options = {name: more.pop(name) for name in ("client_id",) if name in more}
    fields = {"group": GROUP, "topic": TOPIC} | more
    request = wire.PullBulkRequest(offset=offset, end_offset=end_offset, **fields)
    return await _streamed(wire_server, "PullBulk", request, **options)


async def receive_bulk(
    wire_server: WireServer,
    attempt_id: str = "lease-1",
    max_messages: int = 1_000,
    *,
    invisible_ms: int = 30_000,
    **more: Any,
) -> Answer:
    options = {name: more.pop(name) for name in ("client_id",) if name in more}
    fields = {"group": GROUP, "topic": TOPIC} | more
    request = wire.ReceiveBulkRequest(attempt_id=attempt_id, max_messages=max_messages, **fields)
    if invisible_ms:
        convert.set_ms(request.invisible_duration, invisible_ms)
    return await _streamed(wire_server, "ReceiveBulk", request, **options)


async def renew(
    wire_server: WireServer, attempt_id: str = "lease-1", *, invisible_ms: int = 30_000, **more: Any
) -> Any:
    request = wire.RenewAttemptRequest(**{"group": GROUP, "topic": TOPIC, "attempt_id": attempt_id, **more})
    convert.set_ms(request.invisible_duration, invisible_ms)
    return await unary(wire_server, "RenewAttempt", request)


async def ack(wire_server: WireServer, attempt_id: str = "lease-1", **more: Any) -> Any:
    request = wire.AckAttemptRequest(**{"group": GROUP, "topic": TOPIC, "attempt_id": attempt_id, **more})
    return await unary(wire_server, "AckAttempt", request)


async def unary(wire_server: WireServer, method: str, request: Any, *, client_id: str | None = CLIENT) -> Any:
    return await getattr(BulkStub(wire_server.channel), method)(request, metadata=headers(client_id, {}))


async def _streamed(wire_server: WireServer, method: str, request: Any, *, client_id: str | None = CLIENT) -> Answer:
    call = getattr(BulkStub(wire_server.channel), method)(request, metadata=headers(client_id, {}))
    frames = [frame async for frame in call]
    statuses = [frame.status for frame in frames if frame.HasField("status")]
    tables = [pa.ipc.open_stream(frame.chunk).read_all() for frame in frames if frame.chunk]
    assert [table.num_rows for table in tables] == [frame.messages for frame in frames if frame.chunk]
    return Answer(statuses[-1], frames, tables)
