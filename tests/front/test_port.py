"""The public port: whose connections are accepted, as what, and which of them make room for others."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import uvloop
from structlog.testing import capture_logs

from popserver.front import port as module
from popserver.front.connections import ConnectionLimits, Connections
from popserver.front.port import PREFACE, TLS_HANDSHAKE, PortListener, TlsContexts
from popserver.front.self_signed import make_certificate
from popserver.front.source import StaticCertificate
from popserver.front.turns import AT_ONCE as CONNECTIONS_AT_ONCE
from popserver.front.turns import Rate, Turns
from tests.support.waiting import eventually

WORDS = b"PRI * HTTP/2.0"
CERTIFICATE = make_certificate("127.0.0.1", datetime(2026, 1, 1, tzinfo=UTC))
PATIENCE_S = 20


class Client:
    """A connection to the port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def exchange(self, words: bytes) -> bytes:
        """Say something; what the other side answers."""
        self.writer.write(words)
        try:
            return await asyncio.wait_for(self.reader.read(1_000), PATIENCE_S)
        except ConnectionResetError:
            return b""

    async def rest(self) -> bytes:
        """Everything until the other side ends."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE_S)
        except ConnectionResetError:
            return b""

    @property
    def address(self) -> str:
        host, port = self.writer.get_extra_info("sockname")[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Stub(asyncio.Protocol):
    """Answers what it hears, with the client's address before it."""

    def __init__(self, peer: str, left: Callable[[], None], signed: Callable[[], None]) -> None:
        self.signed = signed
        self._peer = peer
        self._left = left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(f"{self._peer} ".encode() + data)

    def connection_lost(self, error: Exception | None) -> None:
        self._left()


class Here:
    """A listening port."""

    def __init__(self, listener: PortListener, stubs: list[Stub]) -> None:
        self.listener = listener
        self.stubs = stubs
        self._clients: list[Client] = []

    async def client(self, host: str = "127.0.0.1", *, local: str | None = None, tls: bool = False) -> Client:
        """`local`: the address it comes from."""
        context = None
        if tls:
            context = ssl.create_default_context(cadata=CERTIFICATE.chain.decode())
            context.check_hostname = False
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            context.set_alpn_protocols(["h2"])
        local_addr = None if local is None else (local, 0)
        port = self.listener.port
        client = Client(*await asyncio.open_connection(host, port, local_addr=local_addr, ssl=context))
        self._clients.append(client)
        return client

    async def joined(self, *, local: str = "127.0.0.1") -> tuple[Client, Stub]:
        """A client that was heard, and the server's side of it."""
        client = await self.client(local=local)
        assert await client.exchange(WORDS) == f"{client.address} ".encode() + WORDS
        return client, self.stubs[-1]

    async def answers(self, client: Client) -> bool:
        return await client.exchange(WORDS) == f"{client.address} ".encode() + WORDS

    @property
    def connections(self) -> Connections:
        return self.listener.connections

    def leave(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()


@asynccontextmanager
async def listening(
    limits: ConnectionLimits | None = None,
    *,
    host: str = "127.0.0.1",
    kinds: Collection[int] = (PREFACE, TLS_HANDSHAKE),
    handshake_s: float = PATIENCE_S,
    given: Collection[socket.socket] = (),
) -> AsyncIterator[Here]:
    stubs: list[Stub] = []

    def make(peer: str, left: Callable[[], None], signed: Callable[[], None]) -> Stub:
        stubs.append(Stub(peer, left, signed))
        return stubs[-1]

    connections = Connections(limits or ConnectionLimits())
    tls = TlsContexts(StaticCertificate(CERTIFICATE))
    here = Here(PortListener(host, 0, kinds, tls, connections, make, handshake_s, list(given)), stubs)
    here.listener.start()
    try:
        yield here
    finally:
        here.leave()
        here.listener.close()
        await asyncio.wait_for(connections.all_closed(), PATIENCE_S)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
async def test_the_first_byte_says_what_it_is(*, tls: bool) -> None:
    async with listening() as here:
        client = await here.client(tls=tls)
        assert await here.answers(client)
        chosen = client.writer.get_extra_info("ssl_object")
        assert chosen is None if not tls else chosen.selected_alpn_protocol() == "h2"


async def test_the_first_byte_may_come_alone() -> None:
    async with listening() as here:
        client = await here.client()
        assert await client.exchange(WORDS[:1]) == f"{client.address} P".encode()
        assert await client.exchange(WORDS[1:]) == f"{client.address} ".encode() + WORDS[1:]


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"\x80\x2e\x01\x03", b"\xff\x00\x9d \x86\x83\t[\x9c\xff"]
)
async def test_rubbish_is_let_go_at_once(words: bytes) -> None:
    async with listening(ConnectionLimits(silence_s=PATIENCE_S)) as here:
        assert await (await here.client()).exchange(words) == b""
        assert not here.stubs
        assert await here.answers(await here.client())


async def test_a_tls_client_of_a_plaintext_port_is_told() -> None:
    async with listening(kinds=(PREFACE,)) as here:
        with pytest.raises(ssl.SSLError, match=r"(?i)wrong.version.number"):
            await here.client(tls=True)
        assert not here.stubs


async def test_a_plaintext_client_of_a_tls_port_is_let_go() -> None:
    async with listening(kinds=(TLS_HANDSHAKE,)) as here:
        assert await (await here.client()).exchange(WORDS) == b""
        assert await here.answers(await here.client(tls=True))


async def test_silence_is_let_go_after_a_while() -> None:
    async with listening(ConnectionLimits(silence_s=0.05)) as here:
        silent = await here.client()
        assert await silent.rest() == b""
        assert not here.stubs


async def test_a_handshake_that_stops_is_let_go_after_a_while() -> None:
    async with listening(handshake_s=0.05) as here:
        client = await here.client()
        client.writer.write(b"\x16\x03\x01")
        await client.rest()
        await asyncio.wait_for(here.connections.all_closed(), PATIENCE_S)
        assert not any(hasattr(stub, "_transport") for stub in here.stubs)


async def test_who_has_spoken_may_be_silent() -> None:
    async with listening(ConnectionLimits(silence_s=0.05)) as here:
        client, _ = await here.joined()
        silent = await here.client()
        assert await silent.rest() == b""
        assert await here.answers(client)


async def test_of_many_silent_ones_the_oldest_go() -> None:
    async with listening(ConnectionLimits(silence_s=PATIENCE_S, silent_max=2)) as here:
        first, second, third, fourth = [await here.client() for _ in range(4)]
        assert await first.rest() == b""
        assert await second.rest() == b""
        assert await here.answers(third)
        assert await here.answers(fourth)


async def test_more_than_there_is_room_for_are_turned_away_and_it_is_said_once() -> None:
    async with listening(ConnectionLimits(connections_max=2, connections_per_address=2)) as here:
        stays = [await here.client() for _ in range(2)]
        with capture_logs() as said:
            for _ in range(3):
                assert await (await here.client()).rest() == b""
        assert [(each["log_level"], each["option"]) for each in said] == [("warning", "--max-connections-per-address")]
        assert await here.answers(stays[0])
        stays[0].writer.close()
        await until(lambda: here.connections.connections.used == 1)
        assert await here.answers(await here.client())


async def test_one_address_gets_no_more_than_its_share() -> None:
    async with listening(ConnectionLimits(connections_max=4)) as here:
        stays = [await here.client() for _ in range(2)]
        assert await (await here.client()).rest() == b""
        assert (here.connections.of_one_address.used, here.connections.of_one_address.refused) == (2, 1)
        assert await here.answers(await here.client(local="127.0.0.2"))
        assert await here.answers(stays[0])
        assert here.connections.connections.refused == 0, "there was room for others"


async def test_the_log_names_the_option_of_the_limit() -> None:
    async with listening(ConnectionLimits(connections_max=3, connections_per_address=2)) as here:
        for local in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
            await here.client(local=local)
        with capture_logs() as said:
            for local in ("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"):
                assert await (await here.client(local=local)).rest() == b""
        assert [(each["option"], each["limit"], each["address"]) for each in said] == [
            ("--max-connections-per-address", 2, "127.0.0.1"),
            ("--max-connections", 3, "127.0.0.2"),
        ]
        assert (here.connections.of_one_address.refused, here.connections.connections.refused) == (2, 2)


async def test_where_callers_must_sign_the_oldest_that_did_not_goes_for_a_new_one() -> None:
    async with listening(ConnectionLimits(connections_max=8, connections_per_address=8, must_sign=True)) as here:
        signed, stub = await here.joined()
        stub.signed()
        strangers = [await here.joined() for _ in range(4)]
        assert (here.connections.connections.used, here.connections.unsigned.used) == (5, 4)
        for (oldest, _), _ in zip(strangers, range(3), strict=False):
            await here.joined()
            assert await oldest.rest() == b""
        assert (here.connections.connections.used, here.connections.unsigned.used) == (5, 4)
        assert here.connections.unsigned.refused == 3
        assert await here.answers(signed)


async def test_signed_connections_of_one_address_leave_room_for_another() -> None:
    async with listening(ConnectionLimits(connections_max=8, must_sign=True)) as here:
        for _ in range(4):
            (await here.joined())[1].signed()
        assert await (await here.client()).rest() == b""
        (first, _), *_ = [await here.joined(local="127.0.0.2") for _ in range(4)]
        # Its own address has its share: there the oldest that never signed goes.
        await here.joined(local="127.0.0.2")
        assert await first.rest() == b""
        assert here.connections.unsigned.used == 4
        assert here.connections.connections.used == 8


async def test_an_address_that_has_its_share_drives_no_other_out() -> None:
    async with listening(ConnectionLimits(connections_max=8, must_sign=True)) as here:
        for _ in range(4):
            (await here.joined())[1].signed()
        for _ in range(4):
            await here.joined(local="127.0.0.2")
        for _ in range(3):
            assert await (await here.client()).rest() == b""
        assert (here.connections.unsigned.used, here.connections.unsigned.refused) == (4, 0)
        assert here.connections.connections.used == 8


@pytest.mark.parametrize(("host", "counted"), [("127.0.0.1", "127.0.0.1"), ("::1", "::/64")])
async def test_the_server_sees_the_client_s_address_and_counts_networks_of_ipv6(host: str, counted: str) -> None:
    async with listening(host=host) as here:
        assert await here.answers(await here.client(host))
        assert [each.host for each in here.connections] == [counted]


async def test_a_name_is_listened_at_under_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [socket.getaddrinfo(each, 0, type=socket.SOCK_STREAM)[0] for each in ("127.0.0.1", "::1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
    async with listening(host="a-name") as here:
        monkeypatch.undo()
        # The third is not this machine's.
        for host in ("127.0.0.1", "::1"):
            assert await here.answers(await here.client(host))


async def test_a_server_without_files_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NO_FILES_PAUSE_S", 0.01)
    async with listening() as here:
        listener: Any = here.listener
        real, refused = listener._sockets[0], 0

        class NoFiles:
            """A listening socket of a process that has no more files, three times."""

            def accept(self) -> tuple[socket.socket, Any]:
                nonlocal refused
                refused += 1
                if refused <= 3:
                    raise OSError(errno.EMFILE, "too many open files")
                return cast("tuple[socket.socket, Any]", real.accept())

            def fileno(self) -> int:
                return cast("int", real.fileno())

        loop = asyncio.get_running_loop()
        loop.remove_reader(real)
        listener._accept_again(loop, NoFiles())
        with capture_logs() as said:
            assert await here.answers(await here.client())
        assert refused >= 3
        assert {each["log_level"] for each in said} == {"warning"}


async def test_closing_lets_nobody_in_and_whoever_is_in_goes_on() -> None:
    async with listening() as here:
        (client, _), silent = await here.joined(), await here.client()
        here.listener.close()
        assert await silent.rest() == b""
        with pytest.raises(OSError):
            await here.client()
        assert await here.answers(client)


async def test_who_stops_accepting_still_hears_those_who_are_in() -> None:
    async with listening() as here:
        (client, _), silent = await here.joined(), await here.client()
        assert await here.answers(await here.client())  # so the silent one before it is accepted
        here.listener.stop_accepting()
        assert await here.answers(silent)
        assert await here.answers(client)


async def test_whoever_waits_to_be_accepted_is_left_to_the_next_listener() -> None:
    """Sockets that are kept open from one listener to the next reset no connection."""
    with closing(socket.create_server(("127.0.0.1", 0))) as kept:
        kept.setblocking(False)
        async with listening(given=[kept.dup()]) as former:
            assert await former.answers(await former.client())
            former.listener.stop_accepting()
            reader, writer = await asyncio.open_connection(*kept.getsockname())
            writer.write(WORDS)
            async with listening(given=[kept.dup()]):
                assert await asyncio.wait_for(reader.read(100), PATIENCE_S) != b""
                writer.transport.abort()


async def test_a_flood_of_connections_from_one_address_leaves_others_their_turn() -> None:
    turns, order = Turns(), list[str]()

    async def come(host: str) -> None:
        await turns.wait(host)
        order.append(host)

    flood = [asyncio.create_task(come("10.0.0.1")) for _ in range(2 * CONNECTIONS_AT_ONCE)]
    await asyncio.sleep(0)
    assert len(order) == CONNECTIONS_AT_ONCE, "few come at once"
    gone = asyncio.create_task(come("10.0.0.3"))
    await asyncio.sleep(0)
    gone.cancel()
    await come("10.0.0.2")
    assert len(order) < CONNECTIONS_AT_ONCE + 20
    await asyncio.gather(*flood)
    assert len(order) == 2 * CONNECTIONS_AT_ONCE + 1


def test_tokens_come_back_with_time() -> None:
    rate = Rate(per_s=10, at_once=5)
    assert rate.take(0.0, 7) == 5
    assert rate.take(0.25, 7) == 2
    assert rate.take(9.0, 100) == 5


async def until(is_so: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return is_so()

    await eventually(asked, "that it is so", within_s=PATIENCE_S)


@pytest.mark.parametrize(
    "passes",
    [
        test_the_first_byte_may_come_alone,
        test_a_tls_client_of_a_plaintext_port_is_told,
        test_a_plaintext_client_of_a_tls_port_is_let_go,
        test_silence_is_let_go_after_a_while,
        test_a_handshake_that_stops_is_let_go_after_a_while,
        test_of_many_silent_ones_the_oldest_go,
        test_more_than_there_is_room_for_are_turned_away_and_it_is_said_once,
        test_a_server_without_files_tries_again,
        test_closing_lets_nobody_in_and_whoever_is_in_goes_on,
    ],
)
def test_it_is_the_same_in_the_faster_event_loop(passes: Callable[..., Coroutine[None, None, None]]) -> None:
    """The one `popmq serve` runs in, where it is installed."""

    async def run() -> None:
        if passes is test_a_server_without_files_tries_again:
            with pytest.MonkeyPatch.context() as patch:
                await passes(patch)
        else:
            await passes()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
