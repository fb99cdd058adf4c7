"""HTTP statuses of proxies: what cannot help is not repeated, and the sentence says what to change."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import popserver
from popclient import ClientConfig, Message, PayloadTooLarge, PopError, Unreachable, aio
from popclient._session.heartbeats import Heartbeats
from popclient._session.routes import Routes
from popclient._session.statuses import ERROR_OF_GRPC, ERROR_OF_HTTP, of_proxy, translated
from popclient._session.transport import Link, Transport
from popclient.errors import RefusedByProxy, Repeat, ServerError
from popproto.v2 import service_pb2 as rpc
from tests.client.proxies import needs_nginx, nginx, status_proxy
from tests.support.scripted_server import until

# With or without the status, which gRPC's library may lose.
NO_SERVER = re.compile(r"a proxy in front of the server answers (HTTP 502: it reaches no server|in its place; check)")
PERMANENT = [status for status, answer in ERROR_OF_HTTP.items() if not answer.kind.retryable]
PASSING = [status for status, answer in ERROR_OF_HTTP.items() if answer.kind.retryable]


async def listener(*_: Any) -> Any:
    raise AssertionError("there is no message")


CLIENTS: dict[str, Callable[[ClientConfig], Any]] = {
    "Producer": lambda config: aio.Producer(config),
    "Producer of a topic": lambda config: aio.Producer(config, "t"),
    "SimpleConsumer": lambda config: aio.SimpleConsumer(config, "g", "t"),
    "PushConsumer": lambda config: aio.PushConsumer(config, "g", "t", listener),
    "PullConsumer": lambda config: aio.PullConsumer(config, "g"),
    "QueuePushConsumer": lambda config: aio.QueuePushConsumer(config, "g", "t", listener),
}


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("status", [301, *PERMANENT])
async def test_no_client_starts_behind_a_proxy_that_refuses(kind: str, status: int) -> None:
    async with status_proxy(status) as proxy:
        client = CLIENTS[kind](ClientConfig(proxy.endpoint, wait_for_server=60))
        async with asyncio.timeout(2):
            with pytest.raises(type(of_proxy(status))) as refused:
                await client.start()
        assert f"a proxy in front of the server answers HTTP {status}: " in str(refused.value)
        assert refused.value.repeat is Repeat.NEVER
        assert not client.healthy
        calls = len(proxy.paths)
        assert calls <= 2  # a queue consumer also asks whether the server knows its kind
        await asyncio.sleep(0.15)
        assert len(proxy.paths) == calls
        await client.close()
        await until(lambda: not proxy.connections)  # neither the client nor its error keeps one


@pytest.mark.parametrize("status", PASSING)
async def test_what_may_pass_is_repeated_and_told_in_the_end(status: int) -> None:
    async with status_proxy(status) as proxy:
        producer = aio.Producer(ClientConfig(proxy.endpoint, request_timeout=0.3), "t")
        with pytest.raises(type(of_proxy(status)), match=f"answers HTTP {status}: ") as failed:
            await producer.start()
        assert failed.value.retryable
        assert (len(proxy.paths) > 1) is isinstance(failed.value, Unreachable)
        await producer.close()


async def call(client: Any, act: Callable[[Any], Awaitable[Any]]) -> PopError:
    async with asyncio.timeout(2):
        with pytest.raises(PopError) as raised:
            await act(client)
    return raised.value


async def test_the_administration_is_told_too() -> None:
    async with status_proxy(404) as proxy, aio.Admin(proxy.endpoint) as admin:
        assert "nothing at the paths of gRPC" in str(await call(admin, lambda admin: admin.status()))
        assert len(proxy.paths) == 1


def test_every_status_of_grpc_and_any_of_http_is_translated() -> None:
    assert set(ERROR_OF_GRPC) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    for status in range(300, 600):
        assert of_proxy(status).retryable is (
            ERROR_OF_HTTP[status].kind.retryable if status in ERROR_OF_HTTP else status >= 500
        )
    assert isinstance(translated(grpc.StatusCode.UNKNOWN, "Received http2 header with status: 418"), RefusedByProxy)
    lost = "Stream removed (Data frame with END_STREAM flag received)"
    for code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
        assert isinstance(failed := translated(code, lost), Unreachable)
        assert NO_SERVER.search(failed.sentence)
    # Of a server that speaks gRPC, whatever it says.
    assert isinstance(translated(grpc.StatusCode.UNKNOWN, "Received http2 header with status: 200"), ServerError)


@needs_nginx
async def test_a_batch_that_nginx_finds_too_large_is_sent_in_parts(tmp_path: Path) -> None:
    """Its default limit is 1 MB; a request of ours has up to 4 MiB of messages."""
    with popserver.embedded() as broker, nginx(tmp_path, broker.endpoint) as endpoint:
        async with aio.Producer(endpoint, "t") as producer:
            sent = await producer.send_many([Message("t", bytes(400_000)) for _ in range(5)])
            sent.raise_for_failures()
            failed = await call(producer, lambda producer: producer.send("t", bytes(1_200_000)))
        assert isinstance(failed, PayloadTooLarge)
        assert "nginx: client_max_body_size, 1m by default" in str(failed)
        async with aio.SimpleConsumer(endpoint, "g", "t") as consumer:
            found = 0
            while found < 5:
                messages = await consumer.receive(await_duration=5)
                await consumer.ack(messages)
                found += len(messages)
    tried = re.findall(r"SendMessage HTTP/2.0\" (\d+)", (tmp_path / "access.log").read_text())
    assert tried.count("413") <= 4  # the batches, and the large message once


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


@needs_nginx
async def test_a_stream_that_nginx_has_answered_says_why(tmp_path: Path) -> None:
    """gRPC's library loses the status of about every second one."""
    with nginx(tmp_path, f"127.0.0.1:{free_port()}") as endpoint:
        config = ClientConfig(endpoint)
        transport = Transport(config, "me")
        routes = Routes(config, transport, "me")
        heartbeats = Heartbeats(transport, routes, rpc.HeartbeatRequest(), 0.2, nothing, print)
        link = await transport.link()
        for _ in range(15):
            with pytest.raises(Unreachable, match=NO_SERVER):
                await transport.call(receive, 0.2)
            stream = link.messaging.Telemetry()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.write(rpc.TelemetryCommand())
                await stream.read()
            ended = await heartbeats.reason_of(await stream.code(), await stream.details())
            assert isinstance(ended, Unreachable)
            assert NO_SERVER.search(ended.sentence)
        await transport.close()


async def nothing() -> None: ...


async def receive(link: Link, patience: float) -> None:
    async for _ in link.messaging.ReceiveMessage(rpc.ReceiveMessageRequest(), timeout=patience):
        raise AssertionError("there is no server")


@needs_nginx
async def test_a_server_behind_nginx_is_waited_for(tmp_path: Path) -> None:
    """Until it is there, nginx answers 502."""
    port = free_port()
    with nginx(tmp_path, f"127.0.0.1:{port}") as endpoint:
        impatient = aio.Producer(ClientConfig(endpoint, request_timeout=0.2), "t")
        assert NO_SERVER.search(str(await call(impatient, lambda p: p.start())))
        await impatient.close()
        patient = aio.Producer(ClientConfig(endpoint, request_timeout=0.2, wait_for_server=60), "t")
        starting = asyncio.create_task(patient.start())
        tried = tmp_path / "access.log"
        before = tried.stat().st_size
        await until(lambda: tried.stat().st_size > before)
        with popserver.embedded(port=port):
            await starting
            await patient.send("t", "x")
            await patient.close()
