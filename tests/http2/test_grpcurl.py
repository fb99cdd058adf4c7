"""grpcurl asks a whole server what it serves and how it is, without any .proto file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from popserver.services.clients import MESSAGING
from tests.http2.programs import GRPCURL, Ended, program, run
from tests.support import wire_server as doors
from tests.support.certificates import Authority
from tests.support.tls_server import certified

TRANSPORTS = ("plaintext", "tls")


class Grpcurl:
    """grpcurl for one server."""

    def __init__(self, place: list[str], address: str) -> None:
        self._place = place
        self._address = address

    async def __call__(self, *command: str, options: tuple[str, ...] = ()) -> Ended:
        return await run(program(GRPCURL), *self._place, *options, self._address, *command)

    async def said(self, *command: str, options: tuple[str, ...] = ()) -> str:
        ended = await self(*command, options=options)
        assert ended.code == 0, ended.said
        return ended.said


@asynccontextmanager
async def serving(folder: Path, transport: str) -> AsyncIterator[Grpcurl]:
    """A whole server that accepts TLS and plaintext on one port."""
    authority = Authority(folder)
    place = ["-plaintext"] if transport == "plaintext" else ["-cacert", str(authority.ca)]
    async with doors.opened(folder, listening=certified(authority, "permissive")) as wire_server:
        yield Grpcurl(place, f"127.0.0.1:{wire_server.server.port}")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_it_lists_and_describes_the_services(tmp_path: Path, transport: str) -> None:
    async with serving(tmp_path, transport) as grpcurl:
        listed = (await grpcurl.said("list")).split()
        assert {MESSAGING.full_name, "grpc.health.v1.Health"} <= set(listed)
        described = await grpcurl.said("describe", MESSAGING.full_name)
        assert "rpc SendMessage ( .apache.rocketmq.v2.SendMessageRequest )" in described


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_it_asks_for_the_servers_health(tmp_path: Path, transport: str) -> None:
    async with serving(tmp_path, transport) as grpcurl:
        said = await grpcurl.said("grpc.health.v1.Health/Check")
        assert json.loads(said) == {"status": "SERVING"}
        unknown = await grpcurl("grpc.health.v1.Health/Check", options=("-d", '{"service": "nobody"}'))
        assert unknown.code != 0
        assert "Code: NotFound" in unknown.said


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_it_calls_a_method(tmp_path: Path, transport: str) -> None:
    async with serving(tmp_path, transport) as grpcurl:
        request = '{"client_type": "PRODUCER"}'
        said = await grpcurl.said(
            f"{MESSAGING.full_name}/Heartbeat", options=("-rpc-header", "x-mq-client-id: c", "-d", request)
        )
        assert json.loads(said)["status"]["code"] == "OK"
