"""What handlers see of a call, and what callers see of its end, where gRPC's own cases say nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from popserver.transport.call import Call, Encodable, Route, Service, encode
from tests.http2.doors import served
from tests.http2.service import TEST_SERVICE, Empty, SimpleRequest, SimpleResponse, next_request

UNARY, EMPTY = "/grpc.testing.TestService/UnaryCall", "/grpc.testing.TestService/EmptyCall"
MIB = 1024 * 1024
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@asynccontextmanager
async def channel_to(service: Service = TEST_SERVICE) -> AsyncIterator[Any]:
    async with (
        served(services=(service,)) as wire_server,
        grpc.aio.insecure_channel(f"127.0.0.1:{wire_server.port}", OPTIONS) as channel,
    ):
        yield channel


async def test_a_compressed_request_is_refused_with_its_reason() -> None:
    async with channel_to() as channel:
        request = SimpleRequest(response_size=1)
        request.payload.body = bytes(10_000)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(UNARY)(request.SerializeToString(), compression=grpc.Compression.Gzip)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        # The connection goes on.
        answer = SimpleResponse.FromString(await channel.unary_unary(UNARY)(request.SerializeToString()))
        assert len(answer.payload.body) == 1


async def test_a_handler_sees_the_headers_of_its_call() -> None:
    seen: dict[str, str | bytes] = {}

    async def see(call: Call) -> Encodable:
        seen.update(call.headers)
        await next_request(call)
        return Empty()

    service = Service("grpc.testing.TestService", {"EmptyCall": Route(see, encode, streams=False)})
    headers = (("x-text", "a b,c"), ("x-empty", ""), ("x-bytes-bin", bytes(range(256))), ("x-long", "v" * 5_000))
    async with channel_to(service) as channel:
        await channel.unary_unary(EMPTY)(b"", metadata=headers)
    assert {name: seen[name] for name, _ in headers} == dict(headers)
    assert not [name for name in seen if name.startswith(":")]


@pytest.mark.builtin("names the method")
async def test_a_method_that_does_not_exist_is_named_whatever_is_sent_to_it() -> None:
    async with channel_to() as channel:
        for size in (0, 1_000, 100_000) * 10:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/grpc.testing.TestService/Nothing")(bytes(size))
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert "/grpc.testing.TestService/Nothing" in (refused.value.details() or "")


async def test_headers_that_are_too_long_end_the_call_only() -> None:
    async with channel_to() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(EMPTY)(b"", metadata=(("x-long", "v" * 40_000),))
        assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
        await channel.unary_unary(EMPTY)(b"")


async def test_thirty_mebibytes_go_through_and_come_back() -> None:
    async with channel_to() as channel:
        request = SimpleRequest(response_size=30 * MIB)
        request.payload.body = bytes(30 * MIB)
        answer = SimpleResponse.FromString(await channel.unary_unary(UNARY)(request.SerializeToString()))
        assert len(answer.payload.body) == 30 * MIB


async def test_a_handler_that_raises_ends_its_call_only() -> None:
    async def fail(call: Call) -> Encodable:
        raise ZeroDivisionError

    service = Service("grpc.testing.TestService", {"EmptyCall": Route(fail, encode, streams=False)})
    async with channel_to(service) as channel:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(EMPTY)(b"")
            assert failed.value.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
