"""TLS: a certificate that is known, one that is taken as it is, and one that is refused."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from popclient import ClientConfig, Tls, Unreachable, aio
from popproto.v2 import service_pb2_grpc
from tests.client.scripted import ScriptedServer


class Secured(NamedTuple):
    endpoints: str
    certificate: Path


@pytest.fixture
def self_signed(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for the name "broker.test", and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -addext subjectAltName=DNS:broker.test"
    subprocess.run([*make.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.fixture
async def secured(self_signed: tuple[Path, Path]) -> AsyncIterator[Secured]:
    """A scripted server with that certificate."""
    cert, key = self_signed
    server = grpc.aio.server()
    service_pb2_grpc.add_MessagingServiceServicer_to_server(ScriptedServer(), server)
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    yield Secured(f"127.0.0.1:{port}", cert)
    await server.stop(None)


def config_of(secured: Secured, tls: bool | Tls) -> ClientConfig:
    return ClientConfig(endpoints=secured.endpoints, tls=tls, request_timeout=1)


async def test_a_known_certificate_is_trusted(secured: Secured) -> None:
    tls = Tls(ca=secured.certificate, server_name="broker.test")
    async with aio.Producer(config_of(secured, tls), "t") as producer:
        assert await producer.send("t", b"x")


async def test_insecure_takes_whatever_is_shown(secured: Secured) -> None:
    async with aio.Producer(config_of(secured, Tls(insecure=True)), "t") as producer:
        assert await producer.send("t", b"x")


@pytest.mark.parametrize("tls", [True, False])
async def test_an_unknown_certificate_and_plain_text_do_not_pass(secured: Secured, tls: bool) -> None:
    with pytest.raises(Unreachable):
        async with aio.Producer(config_of(secured, tls), "t"):
            pass


async def test_insecure_with_nobody_there_is_unreachable() -> None:
    gone = await ScriptedServer().start()
    await gone.stop()
    config = ClientConfig(endpoints=gone.endpoints, tls=Tls(insecure=True), request_timeout=0.3)
    with pytest.raises(Unreachable):
        async with aio.Producer(config, "t"):
            pass
