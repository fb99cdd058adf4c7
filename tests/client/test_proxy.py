"""Proxies that gRPC takes from the environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

import popserver
from popclient import ClientConfig, Unreachable, aio
from popclient._session.proxy import proxy_for

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")


@pytest.fixture(scope="module")
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as running:
        yield running


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


class ConnectProxy:
    """Answers CONNECT, and passes on what it gets to one port, whatever it was asked for."""

    def __init__(self, port: int) -> None:
        self.asked_for: list[str] = []
        self.refusal = ""
        self.address = ""
        self.writers: list[asyncio.StreamWriter] = []
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked_for.append(head.split()[1].decode())
        if self.refusal:
            writer.write(f"HTTP/1.1 {self.refusal}\r\n\r\n".encode())
            writer.close()
            return
        behind, beyond = await asyncio.open_connection("127.0.0.1", self._port)
        self.writers.append(beyond)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(passed_on(reader, beyond), passed_on(behind, writer))


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


@pytest.fixture
async def proxy(broker: popserver.EmbeddedBroker) -> AsyncIterator[ConnectProxy]:
    made = ConnectProxy(int(broker.endpoint.rpartition(":")[2]))
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.address = f"http://user:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made
        for each in made.writers:
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("variable", VARIABLES)
async def test_a_server_on_this_machine_is_reached_directly(
    broker: popserver.EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, variable: str, host: str
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    assert await proxy_for(host.strip("[]")) is None
    if host in ("127.0.0.1", "localhost"):
        async with aio.Producer(f"{host}:{broker.endpoint.rpartition(':')[2]}") as producer:
            await producer.send("t", "x")


@pytest.mark.parametrize("variable", VARIABLES)
async def test_another_server_is_reached_through_it(
    proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, proxy.address)
    async with aio.Producer("popmq.invalid:8081") as producer:
        await producer.send("t", "x")
    assert set(proxy.asked_for) == {"popmq.invalid:8081"}


async def test_a_failure_names_the_variable_and_no_password(
    proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.refusal = "403 Forbidden"
    monkeypatch.setenv("http_proxy", proxy.address)
    with pytest.raises(
        Unreachable, match=r"through the proxy 127.0.0.1:\d+ that the variable http_proxy names"
    ) as told:
        async with aio.Producer(ClientConfig("popmq.invalid:8081", request_timeout=1)) as producer:
            await producer.send("t", "x")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize(
    ("host", "exceptions", "is_proxied"),
    [
        ("popmq.invalid", "", True),
        ("popmq.invalid", "other.invalid, popmq.invalid", False),
        ("popmq.invalid", ".invalid", False),
        ("10.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.4", True),
    ],
)
async def test_no_proxy(monkeypatch: pytest.MonkeyPatch, host: str, exceptions: str, is_proxied: bool) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", exceptions)
    assert await proxy_for(host) == ("http_proxy" if is_proxied else None)


def test_the_command(broker: popserver.EmbeddedBroker) -> None:
    def status(endpoint: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "import popclient.cli as c; exit(c.main())", "status", "--endpoint", endpoint]
        env = os.environ | {"http_proxy": "http://127.0.0.1:1"}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    assert status(broker.endpoint).returncode == 0
    refused = status("popmq.invalid:8081")
    assert refused.returncode == 3
    assert "http_proxy" in refused.stderr
    assert "start a server" not in refused.stderr
