"""Starting is quick; SIGTERM is a goodbye: what waits is answered, what is on its way is done, then exit code 0."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import grpc

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from tests.support.checker import check
from tests.support.final_state import final, looking
from tests.support.raw_client import raw_client
from tests.support.server_process import served
from tests.support.waiting import eventually
from tests.support.workload import Load, stub_of

LIBRARIES = "google.protobuf.message, hpack, sqlalchemy, sqlalchemy.dialects.postgresql, structlog, pydantic_settings"
TIMES_THE_LIBRARIES = 2
GOODBYE_S = 10.0
POLL_MS = 20_000
POLLS = 20
STARTS = 8
ENOUGH_CALLS = 200


async def test_starting_is_quick(sqlite_url: str) -> None:
    """The best of some starts, the first of which makes the schema; counted in what its libraries alone take."""
    ours, theirs = [], []
    for _ in range(STARTS):
        theirs.append(work_of_libraries_s())
        async with served(sqlite_url) as server:
            ours.append(server.cpu_s())
            assert await server.stop() == 0
        if min(ours) < TIMES_THE_LIBRARIES * min(theirs):
            return
    raise AssertionError(f"each start took {TIMES_THE_LIBRARIES} times what the libraries take: {ours}, {theirs}")


def work_of_libraries_s() -> float:
    """The processor time of an interpreter that only reads what a server is built upon."""
    before = os.times()
    subprocess.run([sys.executable, "-c", f"import {LIBRARIES}"], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


async def test_polls_that_wait_are_answered_empty(database_url: str) -> None:
    async with served(database_url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("m")).code == pb.OK
        assert await client.drain(1)
        waiting = [asyncio.create_task(client.receive(poll_ms=POLL_MS)) for _ in range(POLLS)]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        assert await server.stop() == 0
        assert time.monotonic() - began < GOODBYE_S
        for status, messages in await asyncio.gather(*waiting):
            assert status.code == pb.MESSAGE_NOT_FOUND
            assert not messages


async def test_an_open_telemetry_stream_does_not_keep_it(sqlite_url: str) -> None:
    async with served(sqlite_url) as server, stub_of(server.endpoint) as stub:
        stream = stub.Telemetry(metadata=(("x-mq-client-id", "lingering"),))
        await stream.write(_producer_settings())
        assert (await stream.read()).status.code == pb.OK
        began = time.monotonic()
        assert await server.stop() == 0
        assert time.monotonic() - began < GOODBYE_S
        assert await stream.read() in {grpc.aio.EOF, None}


async def test_what_is_on_its_way_is_done(sqlite_url: str) -> None:
    """Under load no call is cut off half-way: what was answered OK is there."""
    load = Load("orders", ["billing"], producers=4, consumers=2, seed=1)
    async with served(sqlite_url, "--min-invisible", "0s") as server:
        working = asyncio.create_task(load.run(server.endpoint))
        await eventually(lambda: _true(len(load.history.calls) > ENOUGH_CALLS), "enough load", within_s=20)
        began = time.monotonic()
        assert await server.stop() == 0
        assert time.monotonic() - began < GOODBYE_S
        load.stop()
        await working
        assert "Traceback" not in server.stderr
    with looking(sqlite_url) as conn:
        left = final(conn, load.topic)
    left.drained = False
    assert check(load.history, left) == []


async def _true(fact: bool) -> bool:
    return fact


def _producer_settings() -> wire.TelemetryCommand:
    settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name="orders")]))
    return wire.TelemetryCommand(settings=settings)
