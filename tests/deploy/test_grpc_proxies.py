"""Proxies in front of the port for clients, with the configurations that we recommend."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from popclient import aio
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from tests.support.waiting import eventually
from tests.support.wire_server import CLIENT, GROUP, LIMITS, TOPIC, WireServer, headers, opened

CONFIGURATIONS = Path(__file__).parents[2] / "deploy" / "proxies"
ENVOY = next((str(each) for folder in sys.path for each in Path(folder).glob("envoy/_bin/envoy")), None)
PROGRAMS = {"nginx.conf": shutil.which("nginx", path="/usr/sbin:/usr/bin"), "haproxy.cfg": shutil.which("haproxy")}
PROGRAMS["envoy.yaml"] = ENVOY
LARGE = 4 * 1024 * 1024  # bytes, the largest body
IDLE_MS = 250
AS_MUCH_SHORTER = {"60s": "1s"}  # what a proxy's patience is changed to, for streams that are idle four times less

proxies = pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.skipif(program is None, reason=f"needs the proxy of {each}"))
        for each, program in PROGRAMS.items()
    ],
)


@asynccontextmanager
async def behind(
    name: str, wire_server: WireServer, folder: Path, changes: Mapping[str, str] = {}
) -> AsyncIterator[str]:
    """The address of a proxy before the gRPC server, with our configuration."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (CONFIGURATIONS / name).read_text()
    for before, after in {"9081": str(port), "8081": str(wire_server.server.port), **changes}.items():
        assert before in text
        text = text.replace(before, after)
    text = re.sub(r"(?m)^    option httpchk.*\n| check port 8082", "", text)  # the server has no HTTP port
    program = PROGRAMS[name]
    assert program is not None
    words = [program, "-c", "proxy"]
    if name == "nginx.conf":
        paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
        text = (
            f"daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; events {{}}"
            f" http {{ access_log off; client_body_temp_path {folder}/body; {paths} {text} }}"
        )
    elif name == "haproxy.cfg":
        words = [program, "-db", "-f", "proxy"]
    else:
        words += ["--log-level", "error", "--concurrency", "1", "--base-id", str(port)]
    file = folder / name
    file.write_text(text)
    process = await asyncio.create_subprocess_exec(*[str(file) if each == "proxy" else each for each in words])
    try:

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await eventually(listens, f"{name} listens", within_s=60)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@proxies
async def test_messages_of_every_size_and_long_polls_pass(name: str, tmp_path: Path) -> None:
    """The poll waits for longer than the 15 s after which Envoy ends a request by default."""
    async with (
        opened(tmp_path) as wire_server,
        behind(name, wire_server, tmp_path) as endpoint,
        aio.Producer(endpoint) as producer,
        aio.SimpleConsumer(endpoint, "g", TOPIC.name) as consumer,
    ):
        await producer.send(TOPIC.name, bytes(LARGE))
        (large,) = await consumer.receive(1)
        assert len(large.body) == LARGE
        await consumer.ack(large)
        assert await consumer.receive(1, await_duration=16) == []
        await producer.send(TOPIC.name, "small")
        assert [each.text for each in await consumer.receive(1)] == ["small"]


@proxies
async def test_a_client_that_says_nothing_keeps_its_stream(name: str, tmp_path: Path) -> None:
    limits = LIMITS._replace(stream_idle_ms=IDLE_MS)
    async with (
        opened(tmp_path, limits=limits) as wire_server,
        behind(name, wire_server, tmp_path, AS_MUCH_SHORTER) as endpoint,
        grpc.aio.insecure_channel(endpoint) as channel,
    ):
        stream: Any = MessagingServiceStub(channel).Telemetry(metadata=headers(CLIENT, {}))
        entry = pb.SubscriptionEntry(topic=TOPIC, expression=pb.FilterExpression(expression="*"))
        subscription = pb.Subscription(group=GROUP, subscriptions=[entry])
        wanted = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)
        await stream.write(wire.TelemetryCommand(settings=wanted))
        for _ in range(12):  # three seconds, and the proxy ends a silent stream after one
            assert (await stream.read()).settings.subscription.group == GROUP
        stream.cancel()
