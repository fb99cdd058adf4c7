"""Frames of Telemetry that are half sent: counted, bounded, and never taken for what a connection sends besides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.http2 import Connection, Stream, framed
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.services import MESSAGING
from popserver.transport.half_sent import CALL_BYTES, SLACK_BYTES, Unread
from popserver.transport.incoming import GrpcIncoming
from tests.support.door import CLIENT, LIMITS, TOPIC, Door, a_message, headers, opened
from tests.support.incoming import MIB, NARROW, PATIENCE_S, budget, narrow, permissive
from tests.support.running_broker import until

TELEMETRY = f"/{MESSAGING.full_name}/Telemetry"
HALF = 600_000


class Passing:
    """A connection that counts what it is told."""

    def __init__(self) -> None:
        self.passed = 0
        self.returned = 0


@contextmanager
def connections(opened: list[Connection]) -> Iterator[None]:
    try:
        yield
    finally:
        for each in opened:
            each.close()


async def half_sent(door: Door, count: int, *, on_one: bool = False) -> tuple[list[Connection], list[Stream]]:
    """Streams on which 600 kB of a frame of 1 MiB have come, or as much as the server let come."""
    endpoint = f"127.0.0.1:{door.server.port}"
    made = [await Connection.to(endpoint, "127.0.0.1") for _ in range(1 if on_one else count)]
    streams = [made[i % len(made)].call(TELEMETRY, headers(f"attacker-{i}", {})) for i in range(count)]
    sending = [
        made[i % len(made)].send(stream, [framed(MIB - 5), bytes(HALF)], end=False) for i, stream in enumerate(streams)
    ]
    await asyncio.wait_for(asyncio.gather(*sending), PATIENCE_S)
    return made, streams


async def agreed(door: Door) -> Any:
    """A telemetry stream whose settings are agreed."""
    stream = door.stub.Telemetry(metadata=headers(CLIENT, {}))
    await stream.write(settings())
    answer: Any = await asyncio.wait_for(stream.read(), PATIENCE_S)
    assert answer.status.code == pb.OK
    return stream


def settings() -> wire.TelemetryCommand:
    return wire.TelemetryCommand(
        settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
    )


# ---- With the real server ----


async def test_half_sent_frames_have_a_budget_and_others_are_served(tmp_path: Path) -> None:
    """Each of eight connections wants to keep 600 kB of a frame; 3 MiB are allowed, and 80 KiB of each do not count."""
    async with narrow(tmp_path, permissive(tmp_path)) as door:
        large = budget(door, "large requests")
        own = await agreed(door)
        made, streams = await half_sent(door, 8)
        with connections(made):
            await until(lambda: sum(not each.ended.is_set() for each in streams) <= 6)
            assert large.refused > 0
            going = [each for each in streams if not each.ended.is_set()]
            assert going, "the budget is there to be used"
            await until(lambda: len(going) * (HALF - 80 * 1024) * 0.9 <= large.peak)
            assert large.peak <= 3 * MIB
            assert {each.outcome for each in streams if each not in going} == {"RESOURCE_EXHAUSTED"}
            assert (await door.send(a_message("small"))).status.code == pb.OK
            await own.write(settings())
            again: Any = await asyncio.wait_for(own.read(), PATIENCE_S)
            assert again.status.code == pb.OK
        await until(lambda: large.used == 0)
        own.cancel()


async def test_the_streams_of_one_connection_count_together(tmp_path: Path) -> None:
    async with narrow(tmp_path, permissive(tmp_path)) as door:
        large = budget(door, "large requests")
        own = await agreed(door)
        made, streams = await half_sent(door, 8, on_one=True)
        with connections(made):
            await until(lambda: all(each.ended.is_set() for each in streams))
            assert large.peak <= 3 * MIB
            assert not own.done()
        own.cancel()
        await until(lambda: large.used == 0)


async def test_a_frame_that_comes_too_slowly_ends_its_stream(tmp_path: Path) -> None:
    async with narrow(tmp_path, permissive(tmp_path), NARROW._replace(request_ms=300)) as door:
        own = await agreed(door)
        made, (stream,) = await half_sent(door, 1)
        with connections(made):
            await asyncio.wait_for(stream.ended.wait(), PATIENCE_S)
            assert b"a frame had not arrived after 0.3 s" in stream.answer
            assert not own.done()
        own.cancel()
        await until(lambda: budget(door, "large requests").used == 0)


async def test_what_calls_send_besides_their_requests_never_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A telemetry stream among many calls, small and large, one after the other and at once."""
    found: list[Unread] = []
    frames = GrpcIncoming.frames

    def noted(incoming: GrpcIncoming, call: Any, read: Any) -> Any:
        made = frames(incoming, call, read)
        found.extend(incoming._unread.values())
        return made

    monkeypatch.setattr(GrpcIncoming, "frames", noted)
    async with opened(tmp_path, limits=LIMITS, listening=permissive(tmp_path)) as door:
        stream = await agreed(door)
        (unread,) = found
        signed = {"authorization": "s" * 300}
        for i in range(40):
            route = wire.QueryRouteRequest(topic=TOPIC)
            calls = [door.call("QueryRoute", route, headers=signed | {"x-mq-request-id": f"{i}/{j}"}) for j in range(8)]
            calls.append(door.send(a_message(f"m{i}", body=bytes(500_000 if i % 8 == 0 else 5_000))))
            await asyncio.gather(*calls)
        await until(lambda: unread.count < CALL_BYTES)
        assert (unread.late_since_s, stream.done()) == (None, False)
        assert budget(door, "large requests").refused == 0
        stream.cancel()


async def test_a_packed_request_is_refused_before_it_is_unpacked(door: Door) -> None:
    request = wire.QueryRouteRequest(topic=TOPIC)
    call = door.stub.QueryRoute(request, metadata=headers(CLIENT, {}), compression=grpc.Compression.Gzip)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


# ---- The count ----


CALLS = st.lists(st.tuples(st.integers(0, 200_000), st.integers(20, 900), st.integers(0, 7)), max_size=60)


@given(CALLS)
def test_after_every_call_nothing_is_left(calls: list[tuple[int, int, int]]) -> None:
    """Whatever the calls' sizes and headers are, and however many of them are on their way at once."""
    passing, coming = Passing(), list[int]()
    unread = Unread(passing, "", 0.0)
    for size, overhead, at_once in calls:
        passing.passed += size + overhead
        coming.append(size)
        while len(coming) > at_once:
            unread.read(coming.pop(0))
    for size in coming:
        unread.read(size)
    assert unread.count == 0
    assert unread.check(1.0) == 0


@given(st.integers(SLACK_BYTES, 32 * MIB), CALLS)
def test_what_is_half_sent_is_cleared_by_no_more_than_the_calls_that_are_made(
    held: int, calls: list[tuple[int, int, int]]
) -> None:
    passing = Passing()
    unread = Unread(passing, "", 0.0)
    for size, overhead, _ in calls:  # nothing is cleared in advance
        passing.passed += size + overhead
        unread.read(size)
    passing.passed += held
    for size, overhead, _ in calls:
        passing.passed += size + overhead
        unread.read(size)
    cleared = sum(CALL_BYTES + size // 32 - overhead for size, overhead, _ in calls)
    unread.check(0.0)
    assert unread.count == max(0, held - cleared)


def test_what_has_just_come_does_not_count_yet() -> None:
    passing = Passing()
    unread = Unread(passing, "", 0.0)
    passing.passed += MIB
    assert unread.check(0.06) == 0
    assert unread.check(0.07) == 0
    assert MIB - SLACK_BYTES - 100 <= unread.check(0.12) <= MIB - SLACK_BYTES


def test_pings_and_window_updates_of_a_day_do_not_count() -> None:
    passing = Passing()
    unread = Unread(passing, "", 0.0)
    for minute in range(1, 24 * 60):
        passing.returned += 64 * 1024 + 17
        passing.passed += 17 + 29 + 4 * (13 + 29)
        unread.check(minute * 60.0)
        assert unread.count == 0
