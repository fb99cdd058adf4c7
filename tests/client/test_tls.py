"""TLS: a certificate that is known, one that is taken as it is, and one that is refused; and what is said then."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

import popserver
from popclient import ClientConfig, PopError, Producer, Tls, Unreachable, aio
from popproto.v2 import service_pb2_grpc
from tests.support.certificates import Authority
from tests.support.scripted_server import ScriptedServer


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


# From here on, the real server.


@pytest.fixture
def clients(tmp_path: Path) -> Authority:
    """The CA that certifies clients."""
    return Authority(tmp_path, "clients")


@contextmanager
def served(tls: str, **options: Any) -> Iterator[str]:
    """The endpoint of a broker with these options of `popmq serve`."""
    with popserver.embedded(tls=tls, **options) as broker:
        yield broker.endpoint


def certified(authority: Authority, tls: str = "tls", **issued: Any) -> AbstractContextManager[str]:
    pair = authority.issue("server", **issued)
    return served(tls, tls_cert=pair.cert, tls_key=pair.key)


def sends(endpoint: str, tls: bool | Tls) -> bool:
    """Whether a message goes through; raises what the producer raises."""
    config = ClientConfig(endpoints=endpoint, tls=tls, request_timeout=1)
    with Producer(config, "flights") as producer:
        return bool(producer.send("flights", b"x").message_id)


def words(endpoint: str, tls: bool | Tls) -> str:
    """What is said when it does not."""
    with pytest.raises(Unreachable) as refused:
        sends(endpoint, tls)
    return refused.value.sentence


def test_one_port_serves_every_kind_of_client(authority: Authority) -> None:
    with certified(authority, "permissive") as endpoint:
        for tls in (False, Tls(ca=authority.ca), Tls(ca=authority.ca.read_bytes()), Tls(insecure=True)):
            assert sends(endpoint, tls)


def test_a_server_s_own_certificate_is_trusted_by_name(tmp_path: Path) -> None:
    with served("tls", tls_dir=tmp_path / "tls") as endpoint:
        assert sends(endpoint, Tls(ca=tmp_path / "tls" / "cert.pem"))
        assert sends(endpoint, Tls(insecure=True))


def test_a_client_shows_its_certificate(authority: Authority, clients: Authority) -> None:
    server, alice = authority.issue("server"), clients.issue("alice")
    with served("tls", tls_cert=server.cert, tls_key=server.key, tls_client_ca=clients.ca) as endpoint:
        assert sends(endpoint, Tls(ca=authority.ca, cert=alice.cert, key=alice.key))
        assert sends(endpoint, Tls(ca=authority.ca, cert=alice.cert.read_bytes(), key=alice.key.read_bytes()))
        assert sends(endpoint, Tls(insecure=True, cert=alice.cert, key=alice.key))
        assert "requires a client certificate" in words(endpoint, Tls(ca=authority.ca))
        mallory = authority.issue("mallory")
        said = words(endpoint, Tls(ca=authority.ca, cert=mallory.cert, key=mallory.key))
        assert "does not trust the client certificate" in said
        assert str(mallory.cert) in said


def test_the_wrong_mode_is_said(authority: Authority) -> None:
    with certified(authority) as endpoint:
        said = words(endpoint, tls=False)
        assert "accepts only TLS, or has reached its limit of connections: see the server's log; set tls" in said
    with served("plaintext") as endpoint:
        assert "speaks no TLS there" in words(endpoint, Tls(ca=authority.ca))
        assert "speaks no TLS there" in words(endpoint, Tls(insecure=True))


@pytest.mark.parametrize(
    ("issued", "meaning"),
    [
        ({"ends_in": -timedelta(hours=1)}, "its certificate has ended"),
        ({"hosts": ("elsewhere.test",)}, "its certificate is for another name"),
    ],
)
def test_a_bad_certificate_is_refused_and_said(authority: Authority, issued: dict[str, Any], meaning: str) -> None:
    with certified(authority, **issued) as endpoint:
        assert meaning in words(endpoint, Tls(ca=authority.ca))


def test_another_name_may_be_meant(authority: Authority) -> None:
    with certified(authority, hosts=("elsewhere.test",)) as endpoint:
        assert sends(endpoint, Tls(ca=authority.ca, server_name="elsewhere.test"))


def test_an_unknown_ca_is_said_with_the_way_out(authority: Authority, clients: Authority) -> None:
    with certified(authority) as endpoint:
        for tls in (True, Tls(ca=clients.ca)):
            said = words(endpoint, tls)
            assert "its certificate is not trusted" in said
            assert "Tls(ca=…)" in said


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
@pytest.mark.parametrize("content", [None, b"no PEM"], ids=["missing", "no PEM"])
def test_a_bad_file_is_named(authority: Authority, name: str, content: bytes | None, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_bytes(content)
    pair = authority.issue("alice")
    files: dict[str, Any] = {"ca": authority.ca, "cert": pair.cert, "key": pair.key} | {name: bad}
    with pytest.raises(PopError, match=r"bad\.pem"):
        sends("127.0.0.1:1", Tls(**files))


def test_a_key_of_another_certificate_is_said(authority: Authority) -> None:
    alice, bob = authority.issue("alice"), authority.issue("bob")
    with certified(authority) as endpoint:
        assert "key and cert do not belong together" in words(
            endpoint, Tls(ca=authority.ca, cert=alice.cert, key=bob.key)
        )


@pytest.mark.parametrize("half", [{"cert": "a.pem"}, {"key": "a.key"}, {"insecure": True, "ca": "a.pem"}])
def test_what_makes_no_sense_together_is_refused_at_once(half: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Tls"):
        Tls(**half)


@pytest.mark.parametrize("wrong", ["any", "server.pem", 1, None, {}])
def test_what_is_no_tls_is_named_with_what_would_be(wrong: Any) -> None:
    with pytest.raises(TypeError) as refused:
        ClientConfig(tls=wrong)
    assert str(refused.value).startswith(f"tls is {wrong!r}; it must be False, True (public roots) or a Tls")


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(ClientConfig(tls=Tls(cert=b"cert", key=b"secret")))
