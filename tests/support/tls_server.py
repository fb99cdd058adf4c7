"""A server with a certificate, and callers that trust it or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver.front.certificate import Files
from popserver.front.source import ReloadedCertificate
from popserver.transport.listen import PLAINTEXT, Listening, Mode
from tests.support.certificates import Authority, Pair
from tests.support.wire_server import WireServer, headers

PATIENCE_S = 20


_ALONE = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))


def certified(authority: Authority, mode: Mode, client_ca: Path | None = None, **issued: Any) -> Listening:
    """How to listen with a certificate of this CA."""
    if mode == "plaintext":
        return PLAINTEXT
    pair = authority.issue("server", **issued)
    return Listening(mode, ReloadedCertificate(Files(pair.cert, pair.key, client_ca), lambda: datetime.now(UTC)))


class Caller:
    """A client's connection of its own; `ca` None is plaintext."""

    def __init__(
        self, wire_server: WireServer, ca: Path | None, own: Pair | None = None, host: str = "127.0.0.1"
    ) -> None:
        address = f"{host}:{wire_server.server.port}"
        if ca is None:
            self.channel = grpc.aio.insecure_channel(address, options=_ALONE)
        else:
            credentials = grpc.ssl_channel_credentials(
                ca.read_bytes(), *((own.key.read_bytes(), own.cert.read_bytes()) if own else ())
            )
            self.channel = grpc.aio.secure_channel(address, credentials, options=_ALONE)
        self.stub = MessagingServiceStub(self.channel)

    async def knock(self) -> str:
        """`OK`, or the name of the gRPC status that says no."""
        try:
            answer = await self.stub.Heartbeat(
                wire.HeartbeatRequest(client_type=pb.PRODUCER), metadata=headers("c", {}), timeout=PATIENCE_S
            )
        except grpc.aio.AioRpcError as refused:
            return refused.code().name
        return str(pb.Code.Name(answer.status.code))

    async def send(self, *messages: pb.Message) -> wire.SendMessageResponse:
        request = wire.SendMessageRequest(messages=messages)
        sent: wire.SendMessageResponse = await self.stub.SendMessage(request, metadata=headers("c", {}))
        return sent


@asynccontextmanager
async def caller(
    wire_server: WireServer, ca: Path | None, own: Pair | None = None, **where: str
) -> AsyncIterator[Caller]:
    one = Caller(wire_server, ca, own, **where)
    try:
        yield one
    finally:
        await one.channel.close()
