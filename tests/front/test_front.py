"""The public port in front of two listeners; here those are stubs that say which of them was reached."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import uvloop
from structlog.testing import capture_logs

from popserver.front.connections import ConnectionLimits
from popserver.front.front import Front
from popserver.front.inner import InnerListeners, peer_address
from popserver.front.resets import AT_ONCE, PER_S, RESET
from popserver.front.turns import AT_ONCE as CONNECTIONS_AT_ONCE
from popserver.front.turns import Turns
from tests.support.waiting import eventually

TLS_HELLO = b"\x16\x03\x01 hello"
PREFACE = b"PRI * HTTP/2.0"
MIB = 1 << 20
PATIENCE_S = 20

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Client:
    """A connection to the front."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def exchange(self, words: bytes) -> bytes:
        """Say something and listen until the other side ends."""
        self.writer.write(words)
        return await self.rest()

    async def rest(self) -> bytes:
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE_S)
        except ConnectionResetError:
            return b""

    @property
    def address(self) -> str:
        host, port = self.writer.get_extra_info("sockname")[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Standing:
    """A front with stubs behind it."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.peers: list[str] = []
        self._clients: list[Client] = []

    async def client(self, host: str = "127.0.0.1", *, local: str | None = None) -> Client:
        """`local`: the address it comes from."""
        local_addr = None if local is None else (local, 0)
        client = Client(*await asyncio.open_connection(host, self.front.port, local_addr=local_addr))
        self._clients.append(client)
        return client

    async def has_room(self) -> bool:
        return len(self.front.connections._clients) < self.front.limits.connections_max

    def leave(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()


async def echo_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(1_000))


@asynccontextmanager
async def standing(
    serve: Serve = echo_once, *, host: str = "127.0.0.1", abstract: bool = True, limits: ConnectionLimits | None = None
) -> AsyncIterator[Standing]:
    inner = InnerListeners(abstract=abstract)
    here = Standing(Front(host, 0, inner, limits or ConnectionLimits()))

    def stub(name: str) -> Serve:
        async def behind(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            here.peers.append(_text(writer.get_extra_info("peername")))
            writer.write(f"{name}:".encode())
            try:
                await serve(reader, writer)
            finally:
                writer.close()

        return behind

    stubs = [
        await asyncio.start_unix_server(stub("tls"), _socket_name(inner.tls)),
        await asyncio.start_unix_server(stub("plaintext"), _socket_name(inner.plaintext)),
    ]
    await here.front.start()
    try:
        yield here
    finally:
        here.leave()
        here.front.close()
        await here.front.finish()
        for each in stubs:
            each.close()


def _socket_name(grpc_name: str) -> str:
    return grpc_name.replace("unix-abstract:", "\0").removeprefix("unix:")


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


@pytest.mark.parametrize("abstract", [True, False], ids=["abstract", "folder"])
@pytest.mark.parametrize(("words", "reached"), [(TLS_HELLO, b"tls:"), (PREFACE, b"plaintext:")], ids=["tls", "plain"])
async def test_the_first_byte_says_where_to(words: bytes, reached: bytes, abstract: bool) -> None:
    async with standing(abstract=abstract) as here:
        assert await (await here.client()).exchange(words) == reached + words


async def test_the_first_byte_may_come_alone() -> None:
    async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(PREFACE)))

    async with standing(read_all) as here:
        client = await here.client()
        for byte in PREFACE:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.rest() == b"plaintext:" + PREFACE


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"\x80\x2e\x01\x03", b"\xff\x00\x9d \x86\x83\t[\x9c\xff"]
)
async def test_rubbish_is_let_go_at_once(words: bytes) -> None:
    async with standing(limits=ConnectionLimits(silence_s=PATIENCE_S)) as here:
        assert await (await here.client()).exchange(words) == b""
        assert here.peers == []
        assert await (await here.client()).exchange(PREFACE) == b"plaintext:" + PREFACE


async def test_silence_is_let_go_after_a_while() -> None:
    async with standing(limits=ConnectionLimits(silence_s=0.05)) as here:
        silent = await here.client()
        assert await silent.rest() == b""
        assert here.peers == []


async def test_who_has_spoken_may_be_silent() -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(await reader.read(1_000))

    async with standing(wait, limits=ConnectionLimits(silence_s=0.05)) as here:
        client = await here.client()
        client.writer.write(PREFACE)
        assert await client.reader.read(1_000) == b"plaintext:"
        silent = await here.client()
        assert await silent.rest() == b""
        assert await client.exchange(b"still here") == b"still here"


async def test_of_many_silent_ones_the_oldest_go() -> None:
    async with standing(limits=ConnectionLimits(silence_s=PATIENCE_S, silent_max=2)) as here:
        first, second, third, fourth = [await here.client() for _ in range(4)]
        assert await first.rest() == b""
        assert await second.rest() == b""
        assert await third.exchange(PREFACE) == b"plaintext:" + PREFACE
        assert await fourth.exchange(TLS_HELLO) == b"tls:" + TLS_HELLO


async def test_more_than_there_is_room_for_are_turned_away_and_it_is_said_once() -> None:
    async with standing(limits=ConnectionLimits(connections_max=2, connections_per_address=2)) as here:
        stays = [await here.client() for _ in range(2)]
        with capture_logs() as said:
            for _ in range(3):
                assert await (await here.client()).rest() == b""
        assert [(each["log_level"], each["option"]) for each in said] == [("warning", "--max-connections-per-address")]
        assert await stays[0].exchange(PREFACE) == b"plaintext:" + PREFACE
        await eventually(here.has_room, "one has gone", within_s=PATIENCE_S)
        assert await (await here.client()).exchange(PREFACE) == b"plaintext:" + PREFACE


async def test_one_address_gets_no_more_than_its_share() -> None:
    async with standing(limits=ConnectionLimits(connections_max=4)) as here:
        stays = [await here.client() for _ in range(2)]
        assert await (await here.client()).rest() == b""
        assert (here.front.connections.of_one_address.used, here.front.connections.of_one_address.refused) == (2, 1)
        other = await here.client(local="127.0.0.2")
        assert await other.exchange(PREFACE) == b"plaintext:" + PREFACE
        assert await stays[0].exchange(PREFACE) == b"plaintext:" + PREFACE
        assert here.front.connections.connections.refused == 0, "there was room for others"


async def test_the_log_names_the_option_of_the_limit() -> None:
    limits = ConnectionLimits(connections_max=3, connections_per_address=2)
    async with standing(limits=limits) as here:
        for local in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
            await here.client(local=local)
        with capture_logs() as said:
            for local in ("127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.2"):
                assert await (await here.client(local=local)).rest() == b""
        assert [(each["option"], each["limit"], each["address"]) for each in said] == [
            ("--max-connections-per-address", 2, "127.0.0.1"),
            ("--max-connections", 3, "127.0.0.2"),
        ]
        assert (here.front.connections.of_one_address.refused, here.front.connections.connections.refused) == (2, 2)


async def joined(here: Standing, *, local: str = "127.0.0.1") -> tuple[Client, int]:
    """A client that was heard, and the number of its connection."""
    client = await here.client(local=local)
    client.writer.write(PREFACE)
    assert await client.reader.readexactly(len(b"plaintext:")) == b"plaintext:"
    return client, max(here.front._joined)


async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_where_callers_must_sign_the_oldest_that_did_not_goes_for_a_new_one() -> None:
    async with standing(
        wait, limits=ConnectionLimits(connections_max=8, connections_per_address=8, must_sign=True)
    ) as here:
        signed, number = await joined(here)
        here.front.signed(number)
        strangers = [await joined(here) for _ in range(4)]
        assert (here.front.connections.connections.used, here.front.connections.unsigned.used) == (5, 4)
        for (oldest, _), _ in zip(strangers, range(3), strict=False):
            await joined(here)
            assert await oldest.rest() == b""
        assert (here.front.connections.connections.used, here.front.connections.unsigned.used) == (5, 4)
        assert here.front.connections.unsigned.refused == 3
        signed.writer.write_eof()  # it was never ended


async def test_signed_connections_of_one_address_leave_room_for_another() -> None:
    async with standing(wait, limits=ConnectionLimits(connections_max=8, must_sign=True)) as here:
        for _ in range(4):
            _, number = await joined(here)
            here.front.signed(number)
        assert await (await here.client()).rest() == b""
        (first, _), *_ = [await joined(here, local="127.0.0.2") for _ in range(4)]
        # Its own address has its share: there the oldest that never signed goes.
        await joined(here, local="127.0.0.2")
        assert await first.rest() == b""
        assert here.front.connections.unsigned.used == 4
        assert here.front.connections.connections.used == 8


async def test_an_address_that_has_its_share_drives_no_other_out() -> None:
    async with standing(wait, limits=ConnectionLimits(connections_max=8, must_sign=True)) as here:
        for _ in range(4):
            _, number = await joined(here)
            here.front.signed(number)
        for _ in range(4):
            await joined(here, local="127.0.0.2")
        for _ in range(3):
            assert await (await here.client()).rest() == b""
        assert (here.front.connections.unsigned.used, here.front.connections.unsigned.refused) == (4, 0)
        assert here.front.connections.connections.used == 8


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_server_sees_the_client_s_address(host: str) -> None:
    async with standing(host=host) as here:
        client = await here.client(host)
        await client.exchange(PREFACE)
        assert [peer_address("unix-abstract:" + peer[1:]) for peer in here.peers] == [client.address]


def test_a_peer_s_address_is_read_in_every_form() -> None:
    assert peer_address("ipv4:10.0.0.7:4711") == "10.0.0.7:4711"
    assert peer_address("ipv6:%5Bfe80::1%25eth0%5D:4711") == "[fe80::1%eth0]:4711"
    assert peer_address("unix-abstract:popmq-0a/12/[::1]:4711") == "[::1]:4711"
    assert peer_address("unix:") == ""


async def test_a_name_is_listened_at_under_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [socket.getaddrinfo(each, 0, type=socket.SOCK_STREAM)[0] for each in ("127.0.0.1", "::1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
    front = Front("a-name", 0, InnerListeners(), ConnectionLimits())
    monkeypatch.undo()
    places = [(each.getsockname()[0], each.getsockname()[1]) for each in front._sockets]
    front.close()
    # The third is not this machine's.
    assert places == [("127.0.0.1", front.port), ("::1", front.port)]


async def test_much_passes_both_ways_unchanged() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(MIB):
            writer.write(data)
            await writer.drain()

    sent = PREFACE + os.urandom(16 * MIB)
    async with standing(echo) as here:
        client = await here.client()
        client.writer.write(sent)
        received = await client.reader.readexactly(len(b"plaintext:") + len(sent))
        assert hashlib.sha256(received[len(b"plaintext:") :]).digest() == hashlib.sha256(sent).digest()


async def test_a_client_that_resets_streams_is_slowed_down_and_loses_nothing() -> None:
    passed = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(MIB):
            passed.extend(data)

    flood = PREFACE + b"".join(_begun_and_reset(2 * each + 1) for each in range(2 * AT_ONCE))
    async with standing(take) as here:
        client = await here.client()
        begun_s = asyncio.get_running_loop().time()
        client.writer.write(flood)
        await until(lambda: len(passed) >= len(flood) // 2)
        at_once = passed.count(RESET)
        taken_s = asyncio.get_running_loop().time() - begun_s
        assert at_once <= AT_ONCE + PER_S * taken_s
        client.writer.write(b"and an ordinary call")
        await until(lambda: len(passed) >= len(flood) + 20)
        assert passed == flood + b"and an ordinary call"


async def test_bytes_that_look_a_little_like_resets_are_not_slowed_down() -> None:
    content = PREFACE + (RESET + bytes([200]) * 8) * 20_000
    passed = bytearray()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(MIB):
            passed.extend(data)

    async with standing(take) as here:
        client = await here.client()
        client.writer.write(content)
        await until(lambda: len(passed) == len(content))


async def until(is_so: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return is_so()

    await eventually(asked, "that the bytes pass", within_s=PATIENCE_S)


def _begun_and_reset(stream_id: int) -> bytes:
    place = stream_id.to_bytes(4, "big")
    return b"\0\0\1\1\4" + place + b"\x82" + RESET + place + b"\0\0\0\x08"


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


async def test_who_does_not_read_is_not_written_to() -> None:
    passed, content = 0, os.urandom(MIB)

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal passed
        for _ in range(64):
            writer.write(content)
            await writer.drain()
            passed += 1

    async with standing(pour) as here:
        client = await here.client()
        transport = cast("asyncio.Transport", client.writer.transport)
        transport.pause_reading()
        client.writer.write(PREFACE)
        looks = [-1, passed]
        while passed == 0 or looks[-1] != looks[-2]:
            await asyncio.sleep(0.1)
            looks.append(passed)
        assert passed < 32, "MiB stand somewhere between server and client"
        transport.resume_reading()
        received = hashlib.sha256()
        while data := await client.reader.read(MIB):
            received.update(data)
        assert received.digest() == hashlib.sha256(b"plaintext:" + content * 64).digest()


async def test_when_the_client_goes_the_server_hears_the_rest_and_the_end() -> None:
    heard = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(await reader.read())

    async with standing(listen) as here:
        client = await here.client()
        client.writer.write(PREFACE)
        # With something unread a close is a reset, and takes back what is on its way.
        assert await client.reader.read(1_000) == b"plaintext:"
        client.writer.write(b"!" * MIB)
        client.writer.close()
        assert await asyncio.wait_for(heard, PATIENCE_S) == PREFACE + b"!" * MIB


async def test_nobody_behind_is_the_client_s_loss_alone() -> None:
    inner = InnerListeners()
    front = Front("127.0.0.1", 0, inner, ConnectionLimits())
    await front.start()
    here = Standing(front)
    assert await (await here.client()).exchange(PREFACE) == b""
    assert await (await here.client()).exchange(TLS_HELLO) == b""
    here.leave()
    front.close()
    await front.finish()


async def test_closing_lets_nobody_in_and_whoever_is_in_finish() -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        await go_on.wait()
        writer.write(b"the last word")

    async with standing(slow) as here:
        client, silent = await here.client(), await here.client()
        client.writer.write(PREFACE)
        assert await client.reader.read(1_000) == b"plaintext:"
        here.front.close()
        assert await silent.rest() == b""
        with pytest.raises(OSError):
            await here.client()
        go_on.set()
        await here.front.finish()
        assert await client.rest() == b"the last word"


async def test_finishing_waits_for_nobody_for_long() -> None:
    async def for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with standing(for_ever) as here:
        client = await here.client()
        client.writer.write(PREFACE)
        assert await client.reader.read(1_000) == b"plaintext:"
        here.front.close()
        await asyncio.wait_for(here.front.finish(), PATIENCE_S)
        assert await client.rest() == b""


def test_a_folder_is_for_this_user_and_gone_at_the_end() -> None:
    inner = InnerListeners(abstract=False)
    folder = Path(inner.tls.removeprefix("unix:")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    inner.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    "passes",
    [
        test_the_first_byte_may_come_alone,
        test_silence_is_let_go_after_a_while,
        test_of_many_silent_ones_the_oldest_go,
        test_more_than_there_is_room_for_are_turned_away_and_it_is_said_once,
        test_much_passes_both_ways_unchanged,
        test_who_does_not_read_is_not_written_to,
        test_when_the_client_goes_the_server_hears_the_rest_and_the_end,
        test_nobody_behind_is_the_client_s_loss_alone,
        test_closing_lets_nobody_in_and_whoever_is_in_finish,
        test_finishing_waits_for_nobody_for_long,
    ],
)
def test_it_is_the_same_in_the_faster_event_loop(passes: Callable[[], Coroutine[None, None, None]]) -> None:
    """The one `popmq serve` runs in, where it is installed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(passes())
