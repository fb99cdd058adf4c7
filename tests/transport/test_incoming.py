"""Requests on their way in: judged by the headers, counted before they are decoded, not waited for without end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.http2 import Connection, framed
from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Rules
from popserver.services.clients import MESSAGING
from popserver.transport.entry_limits import bytes_beside_bodies, has_more_fields
from popserver.transport.incoming import SMALL_BYTES
from tests.support.running_broker import until
from tests.support.wire_server import CLIENT, LIMITS, WireServer, a_message, headers, opened
from tests.transport.small_budgets import MIB, NARROW, PATIENCE_S, budget, narrow

SECRET = "a-secret-of-root"
EMPTY_ENTRY = b"\x0a\x00"
EMPTY_GROUP = b"\x7b\x7c"  # of a field that no message has


@contextmanager
def unsent(wire_server: WireServer, method: str, client_id: str | None = CLIENT) -> Iterator[Any]:
    """A call whose headers are there, and whose request never comes."""
    descriptor = MESSAGING.methods_by_name[method]
    answer: Any = getattr(wire, descriptor.output_type.name)
    open_call: Any = wire_server.channel.stream_stream(f"/{MESSAGING.full_name}/{method}", None, answer.FromString)
    call = open_call(metadata=headers(client_id, {}))
    try:
        yield call
    finally:
        call.cancel()


async def first(call: Any) -> pb.Status:
    answer = await asyncio.wait_for(call.read(), PATIENCE_S)
    assert answer is not grpc.aio.EOF
    status: pb.Status = answer.status
    return status


# ---- Who may not come in is not read ----


@pytest.mark.parametrize("method", sorted(set(MESSAGING.methods_by_name) - {"ChangeInvisibleDuration"}))
async def test_who_does_not_sign_is_refused_before_the_request_is_there(tmp_path: Path, method: str) -> None:
    async with opened(tmp_path, limits=LIMITS, rules=Rules(auth=True), admin=("root", SECRET)) as wire_server:
        with unsent(wire_server, method) as call:
            status = await first(call)
            assert status.code == pb.UNAUTHORIZED
        assert [each.peak for each in wire_server.broker.engine.budgets if "request" in each.name] == [0, 0, 0]


async def test_a_refusal_that_repeats_the_handle_waits_for_it_a_little(tmp_path: Path) -> None:
    limits = LIMITS._replace(unsigned_request_ms=200)
    async with opened(tmp_path, limits=limits, rules=Rules(auth=True), admin=("root", SECRET)) as wire_server:
        with unsent(wire_server, "ChangeInvisibleDuration") as call:
            assert (await first(call)).code == pb.UNAUTHORIZED
        request = wire.ChangeInvisibleDurationRequest(receipt_handle="h")
        answer = await wire_server.call("ChangeInvisibleDuration", request)
        assert (answer.status.code, answer.receipt_handle) == (pb.UNAUTHORIZED, "h")
        assert [each.used for each in wire_server.broker.engine.budgets if "request" in each.name] == [0, 0, 0]


async def test_who_has_no_client_id_is_refused_before_the_request_is_there(wire_server: WireServer) -> None:
    with unsent(wire_server, "SendMessage", client_id=None) as call:
        assert (await first(call)).code == pb.CLIENT_ID_REQUIRED


async def test_administration_is_refused_before_the_request_is_there(tmp_path: Path) -> None:
    rules = Rules(auth=True)
    async with opened(tmp_path, rules=rules, admin=("root", SECRET), administered=True) as wire_server:
        open_call: Any = wire_server.channel.stream_stream(
            "/popmq.v1.Admin/CreateTopic", None, admin.CreateTopicResponse.FromString
        )
        call = open_call()
        assert (await first(call)).code == pb.UNAUTHORIZED
        call.cancel()


async def test_a_call_that_ends_without_a_request_is_answered(wire_server: WireServer) -> None:
    with unsent(wire_server, "QueryRoute") as call:
        await call.done_writing()
        status = await first(call)
        assert (status.code, status.message) == (pb.BAD_REQUEST, "the call ended without a request; send one")


# ---- Requests that do not arrive ----


class Sender:
    """A connection with a call whose request is partly sent."""

    def __init__(self, connection: Connection, method: str, client_id: str | None = CLIENT) -> None:
        self.connection = connection
        self.call = connection.call(f"/{MESSAGING.full_name}/{method}", headers(client_id, {}))
        self.sending: asyncio.Future[None] | None = None

    def send(self, size: int, sent: int) -> None:
        """Announce a request of `size` bytes, and send some of them as soon as the server allows."""
        pieces = [framed(size), bytes(sent)]
        self.sending = asyncio.ensure_future(self.connection.send(self.call, pieces, end=False))


@asynccontextmanager
async def senders(
    wire_server: WireServer, count: int, method: str = "SendMessage", **options: Any
) -> AsyncIterator[list[Sender]]:
    endpoint = f"127.0.0.1:{wire_server.server.port}"
    made = [Sender(await Connection.to(endpoint, "127.0.0.1"), method, **options) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            if each.sending is not None:
                each.sending.cancel()
            each.connection.close()


@pytest.mark.builtin("memory is taken before a request arrives")
async def test_large_requests_that_do_not_fit_wait_a_moment_and_are_refused(tmp_path: Path) -> None:
    """Each announces 1 MiB, and stops in the middle; 3 MiB are allowed."""
    async with narrow(tmp_path) as wire_server, senders(wire_server, 5) as made:
        large = budget(wire_server, "large requests")
        for each in made:
            each.send(MIB - 5, 600_000)
        await until(lambda: sum(each.call.ended.is_set() for each in made) == 2)
        assert large.used == 3 * (MIB - 5)
        assert (await wire_server.send(a_message("small", body=bytes(SMALL_BYTES // 2)))).status.code == pb.OK
        refused = await wire_server.send(a_message("large", body=bytes(SMALL_BYTES)))
        assert refused.status.code == pb.TOO_MANY_REQUESTS
        assert "--max-incoming" in refused.status.message
        for each in made:
            each.connection.close()
        await until(lambda: large.used == 0)
        assert (await wire_server.send(a_message("large", body=bytes(SMALL_BYTES)))).status.code == pb.OK
        assert budget(wire_server, "small requests").used == 0


@pytest.mark.builtin("memory is taken before a request arrives")
async def test_a_large_request_waits_for_its_turn(tmp_path: Path) -> None:
    async with narrow(tmp_path) as wire_server, senders(wire_server, 3) as made:
        large = budget(wire_server, "large requests")
        for each in made:
            each.send(MIB - 5, 100_000)
        await until(lambda: large.used == 3 * (MIB - 5))
        sending = asyncio.ensure_future(wire_server.send(a_message("large", body=bytes(SMALL_BYTES))))
        await until(lambda: bool(cast("Any", large)._waiting))
        made[0].connection.close()
        assert (await sending).status.code == pb.OK


async def test_nothing_of_a_large_request_comes_before_there_is_memory(tmp_path: Path) -> None:
    async with (
        narrow(tmp_path, limits=NARROW._replace(incoming_bytes_max=MIB)) as wire_server,
        senders(wire_server, 1) as (one,),
    ):
        one.send(MIB - 5, MIB - 5)
        await until(one.call.ended.is_set)
        assert (budget(wire_server, "large requests").peak, budget(wire_server, "large requests").refused) == (0, 1)


@pytest.mark.builtin("memory is taken before a request arrives")
async def test_what_announces_too_much_is_refused_before_it_is_there(tmp_path: Path) -> None:
    async with narrow(tmp_path) as wire_server:
        answer = await wire_server.send(a_message(body=bytes(2 * MIB)))
        assert answer.status.code == pb.BAD_REQUEST
        assert f"at most {MIB} bytes" in answer.status.message
        assert budget(wire_server, "large requests").peak == 0


@pytest.mark.builtin("memory is taken before a request arrives")
async def test_a_few_bytes_reserve_no_more_than_they_are(tmp_path: Path) -> None:
    """Health checks need no signature; each of these announces more than a check may have, or never ends."""
    async with narrow(tmp_path) as wire_server, senders(wire_server, 3) as made:
        unsigned = budget(wire_server, "requests without a signature")
        for each, size in zip(made, (MIB - 5, SMALL_BYTES, 1_000), strict=True):
            each.call = each.connection.call("/grpc.health.v1.Health/Check")
            each.send(size, 100)
        await until(made[0].call.ended.is_set)
        assert made[0].call.outcome == "INVALID_ARGUMENT"
        check: Any = wire_server.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"\x0a\x08liveness")
        assert unsigned.peak < 100


@pytest.mark.builtin("memory is taken before a request arrives")
async def test_one_client_s_unread_data_costs_no_other_its_connection(tmp_path: Path) -> None:
    async with (
        narrow(tmp_path) as wire_server,
        senders(wire_server, 1) as (one,),
        senders(wire_server, 2, "Heartbeat") as others,
    ):
        for each in others:
            each.send(1_000, 3)
        watches = [one.connection.call("/grpc.health.v1.Health/Watch") for _ in range(60)]
        for watch in watches:
            pieces = [framed(0), bytes(60_000)]
            asyncio.ensure_future(one.connection.send(watch, pieces, end=False))  # noqa: RUF006
        await until(lambda: one.connection.is_closed)
        assert not any(each.connection.is_closed for each in others)


async def test_data_that_no_call_reads_has_a_budget(tmp_path: Path) -> None:
    """The calls wait for messages, and their client goes on sending."""
    async with narrow(tmp_path) as wire_server, senders(wire_server, 1) as (one,):
        calls = [one.connection.call(f"/{MESSAGING.full_name}/Telemetry", headers(CLIENT, {})) for _ in range(40)]
        for call in calls:
            # A large frame, whose turn does not come: 64 KiB of it may be sent.
            asyncio.ensure_future(one.connection.send(call, [framed(4 * MIB), bytes(64_000)], end=False))  # noqa: RUF006
        await until(lambda: all(call.ended.is_set() for call in calls))
        assert (await wire_server.send(a_message("small"))).status.code == pb.OK


async def test_a_request_that_comes_too_slowly_is_refused(tmp_path: Path) -> None:
    async with narrow(tmp_path, limits=NARROW._replace(request_ms=300)) as wire_server:
        with unsent(wire_server, "SendMessage") as call:
            status = await first(call)
            assert (status.code, status.message) == (pb.REQUEST_TIMEOUT, "the request had not arrived after 0.3 s")
        await until(lambda: budget(wire_server, "large requests").used == 0)


@pytest.mark.builtin("memory is taken before a request arrives")
async def test_who_leaves_gives_his_place_back(tmp_path: Path) -> None:
    async with narrow(tmp_path) as wire_server, senders(wire_server, 1) as (one,):
        one.send(MIB - 5, 100)
        await until(lambda: budget(wire_server, "large requests").used == MIB - 5)
        one.connection.close()
        await until(lambda: budget(wire_server, "large requests").used == 0)


@pytest.mark.builtin("memory is taken before a request arrives")
async def test_callers_without_a_signature_take_no_room_from_the_others(tmp_path: Path) -> None:
    """An empty heartbeat is all they may send; while they hold back its end, a signed client sends what it likes."""
    async with opened(tmp_path, limits=NARROW, rules=Rules(auth=True), admin=("root", SECRET)) as wire_server:
        unsigned = budget(wire_server, "requests without a signature")
        async with senders(wire_server, 2, "Heartbeat", client_id=None) as (one, beyond):
            one.send(MIB - 5, 100)
            await until(lambda: unsigned.used == MIB - 5)
            beyond.send(2 * SMALL_BYTES, 100)
            await until(beyond.call.ended.is_set)
            assert unsigned.refused == 1
            assert budget(wire_server, "large requests").used == 0


# ---- Requests that have arrived ----


async def test_a_request_counts_until_it_is_answered(wire_server: WireServer) -> None:
    small = budget(wire_server, "small requests")
    await wire_server.call("QueryRoute", wire.QueryRouteRequest(topic=pb.Resource(name="flights")))
    assert small.peak > 0
    assert small.used == 0


@pytest.mark.parametrize("method", ["AckMessage", "QueryRoute", "Telemetry"])
async def test_only_sends_may_be_large(wire_server: WireServer, method: str) -> None:
    data = wire.AckMessageRequest(topic=pb.Resource(name="x" * (5 * MIB))).SerializeToString()
    before = await wire_server.digest()
    response: Any = getattr(wire, MESSAGING.methods_by_name[method].output_type.name)
    answer = response.FromString(await wire_server.raw(method, data))
    assert answer.status.code == pb.BAD_REQUEST
    assert f"{4 * MIB} bytes" in answer.status.message
    assert await wire_server.digest() == before


@pytest.mark.parametrize("method", ["SendMessage", "AckMessage"])
async def test_a_list_of_empty_entries_is_not_decoded(wire_server: WireServer, method: str) -> None:
    """Decoded, each entry of two bytes takes a hundred."""
    response: Any = getattr(wire, MESSAGING.methods_by_name[method].output_type.name)
    for before in (b"", EMPTY_GROUP):  # the decoder passes over the second
        answer = response.FromString(await wire_server.raw(method, before + EMPTY_ENTRY * 1_000_000))
        assert answer.status.code == pb.BAD_REQUEST
        assert "at most 16384 fields" in answer.status.message


async def test_a_list_of_empty_entries_inside_of_a_message_is_not_decoded(wire_server: WireServer) -> None:
    with_keys = pb.Message()
    with_keys.system_properties.keys.extend([""] * (2 * MIB + 1))
    data = wire.SendMessageRequest(messages=[with_keys]).SerializeToString()
    answer = wire.SendMessageResponse.FromString(await wire_server.raw("SendMessage", data))
    assert answer.status.code == pb.BAD_REQUEST
    assert f"at most {4 * MIB} bytes beside bodies" in answer.status.message


def test_bodies_are_told_from_what_is_beside_them() -> None:
    message = a_message()
    message.user_properties["a"] = "b"
    message.body = b"x" * 1_000
    request = wire.SendMessageRequest(messages=[message] * 5)
    data, kind = request.SerializeToString(), wire.SendMessageRequest.DESCRIPTOR
    assert bytes_beside_bodies(data, kind, 100) == len(data) - 5_000
    assert bytes_beside_bodies(data, kind, 0) == len(data)


@given(st.binary(max_size=200), st.integers(0, 20))
def test_any_bytes_can_be_weighed(data: bytes, most: int) -> None:
    assert 0 <= bytes_beside_bodies(EMPTY_ENTRY + data, wire.SendMessageRequest.DESCRIPTOR, most) <= 2 + len(data)


@given(st.lists(st.sampled_from(["entry", "topic", "group"]), max_size=40), st.integers(0, 50))
def test_fields_are_counted_as_they_are(kinds: list[str], most: int) -> None:
    part = {
        "entry": wire.AckMessageRequest(entries=[wire.AckMessageEntry(receipt_handle="h" * 200)]),
        "topic": wire.AckMessageRequest(topic=pb.Resource(name="t")),
        "group": wire.AckMessageRequest(group=pb.Resource(name="g")),
    }
    data = b"".join(part[kind].SerializeToString() for kind in kinds)
    assert has_more_fields(data, most) == (len(kinds) > most)


def test_numbers_are_fields_too() -> None:
    data = b"\x08\x96\x01" + b"\x11" + struct.pack("<d", 1.0) + b"\x1d" + struct.pack("<f", 1.0)
    assert has_more_fields(data, 2)
    assert not has_more_fields(data, 3)


@given(st.binary(max_size=200), st.integers(0, 20))
def test_any_bytes_can_be_counted(data: bytes, most: int) -> None:
    assert has_more_fields(data, most) in (True, False)
