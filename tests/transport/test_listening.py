"""One port in three modes: who gets in, who does not, and that the server minds neither."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from structlog.testing import capture_logs

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.front.source import CertificateOptions, open_source
from popserver.model.errors import CannotListen
from popserver.services.server import build
from popserver.transport.limits import CallLimits
from popserver.transport.listen import Listening, Mode
from tests.support.certificates import Authority, Pair
from tests.support.tls_server import PATIENCE_S, caller, certified
from tests.support.wire_server import LIMITS, VERSION, WireServer, a_message, headers, opened, parked, receive_request

MODES: tuple[Mode, ...] = ("permissive", "plaintext", "tls")
HASTY = LIMITS._replace(silence_ms=100, handshake_ms=200)
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


async def knock(wire_server: WireServer, ca: Path | None, own: Pair | None = None, **where: str) -> str:
    async with caller(wire_server, ca, own, **where) as one:
        return await one.knock()


@pytest.mark.parametrize("mode", MODES)
async def test_each_mode_lets_in_its_own_and_lives_on(tmp_path: Path, authority: Authority, mode: Mode) -> None:
    wanted = {
        "permissive": ("OK", "OK"),
        "plaintext": ("OK", "UNAVAILABLE"),
        "tls": ("UNAVAILABLE", "OK"),
    }[mode]
    async with opened(tmp_path, listening=certified(authority, mode)) as wire_server:
        for _ in range(2):
            assert (await knock(wire_server, None), await knock(wire_server, authority.ca)) == wanted


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01",
        b"PRI",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        bytes(range(256)) * 64,
    ],
    ids=["nothing", "one byte of TLS", "a bit of TLS", "a bit of HTTP/2", "a preface", "HTTP/1", "PROXY", "rubbish"],
)
@pytest.mark.parametrize("mode", MODES)
async def test_whoever_does_not_make_sense_is_let_go(
    tmp_path: Path, authority: Authority, mode: Mode, words: bytes
) -> None:
    async with opened(tmp_path, limits=HASTY, listening=certified(authority, mode)) as wire_server:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire_server.server.port)
        writer.write(words)
        try:
            await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionResetError:
            pass
        finally:
            writer.close()
        assert await knock(wire_server, None if mode == "plaintext" else authority.ca) == "OK"


@pytest.mark.parametrize("mode", ["permissive", "plaintext"])
async def test_a_mute_connection_ends_and_one_with_a_call_does_not(
    tmp_path: Path, authority: Authority, mode: Mode
) -> None:
    listening = certified(authority, mode)
    async with (
        opened(tmp_path, limits=LIMITS._replace(idle_ms=200), listening=listening) as wire_server,
        caller(wire_server, None) as there,
    ):
        stream: Any = there.stub.Telemetry(metadata=headers("c", {}))
        settings = wire.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER))
        await stream.write(settings)
        assert (await stream.read()).status.code == pb.OK
        reader, writer = await asyncio.open_connection("127.0.0.1", wire_server.server.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS)
        await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        # It was there before the mute one, and is still.
        await stream.write(settings)
        assert (await stream.read()).status.code == pb.OK
        stream.cancel()


async def test_a_connection_has_room_for_a_big_clients_polls(tmp_path: Path) -> None:
    async with opened(tmp_path) as wire_server, caller(wire_server, None) as one:
        request = receive_request(poll_ms=15_000)
        polls = [one.stub.ReceiveMessage(request, metadata=headers("c", {})) for _ in range(1_024)]
        async with asyncio.timeout(PATIENCE_S):
            while wire_server.broker.engine.wakeups.parked < 1_024:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await one.knock() == "OK"
        for poll in polls:
            poll.cancel()


async def test_a_flood_of_silent_ones_keeps_nobody_out(tmp_path: Path, authority: Authority) -> None:
    limits = LIMITS._replace(silent_max=20)
    async with opened(tmp_path, limits=limits, listening=certified(authority, "permissive")) as wire_server:
        flood = [await asyncio.open_connection("127.0.0.1", wire_server.server.port) for _ in range(200)]
        assert await knock(wire_server, authority.ca) == "OK"
        assert await knock(wire_server, None) == "OK"
        for _, writer in flood:
            writer.transport.abort()


async def test_many_come_at_once_of_both_kinds(tmp_path: Path, authority: Authority) -> None:
    async with opened(tmp_path, listening=certified(authority, "permissive")) as wire_server:
        kinds = [None, authority.ca] * 50
        assert set(await asyncio.gather(*(knock(wire_server, ca) for ca in kinds))) == {"OK"}


@pytest.mark.parametrize("mode", ["permissive", "tls"])
async def test_a_certificate_of_its_own_making_can_be_trusted(tmp_path: Path, mode: Mode) -> None:
    source = open_source(CertificateOptions("127.0.0.1", folder=tmp_path), lambda: datetime.now(UTC))
    async with opened(tmp_path, listening=Listening(mode, source)) as wire_server:
        for host in ("127.0.0.1", "localhost"):
            assert await knock(wire_server, tmp_path / "cert.pem", host=host) == "OK"


@pytest.mark.parametrize(
    "issued",
    [{"ends_in": -timedelta(hours=1)}, {"hosts": ("elsewhere.test",)}, {}],
    ids=["ended", "for another host", "of another CA"],
)
async def test_a_client_that_checks_refuses_a_bad_certificate(
    tmp_path: Path, authority: Authority, issued: dict[str, Any]
) -> None:
    trusted = authority if issued else Authority(tmp_path, "another-ca")
    async with opened(tmp_path, listening=certified(authority, "permissive", **issued)) as wire_server:
        assert await knock(wire_server, trusted.ca) == "UNAVAILABLE"
        assert await knock(wire_server, None) == "OK"


async def test_only_clients_with_a_certificate_are_let_in_where_that_is_asked(
    tmp_path: Path, authority: Authority
) -> None:
    clients = Authority(tmp_path, "clients-ca")
    listening = certified(authority, "tls", client_ca=clients.ca)
    async with opened(tmp_path, listening=listening) as wire_server:
        assert await knock(wire_server, authority.ca, clients.issue("alice")) == "OK"
        assert await knock(wire_server, authority.ca) == "UNAVAILABLE"
        assert await knock(wire_server, authority.ca, authority.issue("mallory")) == "UNAVAILABLE"
        assert (
            await knock(wire_server, authority.ca, clients.issue("bob", ends_in=-timedelta(hours=1))) == "UNAVAILABLE"
        )
        assert await knock(wire_server, None) == "UNAVAILABLE"
        assert await knock(wire_server, authority.ca, clients.issue("alice")) == "OK"


async def shown(wire_server: WireServer) -> int:
    """The serial number of the certificate that the server shows now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", wire_server.server.port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der).serial_number


def serial(pair: Pair) -> int:
    return x509.load_pem_x509_certificate(pair.cert.read_bytes()).serial_number


@pytest.mark.parametrize("mode", ["permissive", "tls"])
async def test_a_new_certificate_is_shown_to_whoever_comes_next(
    tmp_path: Path, authority: Authority, mode: Mode
) -> None:
    async with (
        opened(tmp_path, listening=certified(authority, mode)) as wire_server,
        caller(wire_server, authority.ca) as before,
    ):
        assert await before.knock() == "OK"
        renewed = authority.issue("server")
        number = serial(renewed)
        assert await shown(wire_server) == number
        assert await knock(wire_server, authority.ca) == "OK"
        renewed.cert.write_text("rubbish")
        assert await shown(wire_server) == number
        assert await knock(wire_server, authority.ca) == "OK"
        assert await before.knock() == "OK"
        again = authority.issue("server")
        assert await shown(wire_server) == serial(again)


async def test_a_new_client_ca_counts_for_whoever_comes_next(tmp_path: Path, authority: Authority) -> None:
    old = Authority(tmp_path, "clients-ca")
    alice = old.issue("alice")
    async with opened(tmp_path, listening=certified(authority, "tls", client_ca=old.ca)) as wire_server:
        assert await knock(wire_server, authority.ca, alice) == "OK"
        new = Authority(tmp_path, "clients-ca")
        assert await knock(wire_server, authority.ca, alice) == "UNAVAILABLE"
        assert await knock(wire_server, authority.ca, new.issue("alice")) == "OK"


@pytest.mark.parametrize("mode", MODES)
async def test_the_largest_message_there_and_back(tmp_path: Path, authority: Authority, mode: Mode) -> None:
    body = bytes(range(256)) * (4 * 4_096)
    async with (
        opened(tmp_path, listening=certified(authority, mode)) as wire_server,
        caller(wire_server, None if mode == "plaintext" else authority.ca) as one,
    ):
        assert (await one.send(a_message("m1", body=body))).status.code == pb.OK
        frames = one.stub.ReceiveMessage(receive_request(), metadata=headers("c", {}))
        bodies = [frame.message.body async for frame in frames if frame.HasField("message")]
        assert bodies == [body]


@pytest.mark.parametrize("mode", MODES)
async def test_a_failed_call_is_logged_with_where_it_came_from(
    tmp_path: Path, authority: Authority, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        opened(tmp_path, listening=certified(authority, mode)) as wire_server,
        caller(wire_server, None if mode == "plaintext" else authority.ca) as one,
    ):
        monkeypatch.setattr(wire_server.broker.producing.sending, "send", None)
        with capture_logs() as said:
            assert (await one.send(a_message("m1"))).status.code == pb.INTERNAL_SERVER_ERROR
        peers = [each["peer"] for each in said if each["event"] == "call failed"]
        host, _, port = peers[0].rpartition(":")
        assert (host, port.isdecimal()) == ("127.0.0.1", True)


@pytest.mark.parametrize("mode", ["permissive", "tls"])
async def test_a_taken_port_is_said_plainly(tmp_path: Path, authority: Authority, mode: Mode) -> None:
    listening = certified(authority, mode)
    async with opened(tmp_path, listening=listening) as wire_server:
        with pytest.raises(CannotListen, match="--port"):
            build(
                wire_server.broker,
                host="127.0.0.1",
                port=wire_server.server.port,
                limits=LIMITS,
                version=VERSION,
                listening=listening,
            )
        assert await knock(wire_server, authority.ca) == "OK"


@pytest.mark.parametrize("mode", ["permissive", "tls"])
async def test_draining_answers_and_lets_go(tmp_path: Path, authority: Authority, mode: Mode) -> None:
    """As without TLS: health first, the parked poll empty, then nobody is let in."""
    async with (
        opened(tmp_path, limits=CallLimits(), listening=certified(authority, mode)) as wire_server,
        caller(wire_server, authority.ca) as one,
    ):
        watch = HealthStub(one.channel).Watch(HealthCheckRequest())
        assert (await watch.read()).status == HealthCheckResponse.SERVING
        poll: Any = one.stub.ReceiveMessage(receive_request(poll_ms=20_000), metadata=headers("c", {}))
        reading = asyncio.create_task(poll.read())
        await parked(wire_server)
        drained = asyncio.create_task(wire_server.server.drain(600))
        assert (await watch.read()).status == HealthCheckResponse.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        assert (await reading).status.code == pb.MESSAGE_NOT_FOUND
        assert (await poll.read()).HasField("delivery_timestamp")
        assert await poll.read() is grpc.aio.EOF
        await asyncio.wait_for(drained, 60)
        assert await knock(wire_server, authority.ca) == "UNAVAILABLE"
