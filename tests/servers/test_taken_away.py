"""`popmq server drain`: a server goes, and its clients stay served."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing

import pytest

import popserver
from popclient import Producer, SimpleConsumer, UnsupportedByServer
from popclient.admin import Admin
from tests.support.server_process import POPMQ, ServerProcess, clean_environment, served
from tests.support.waiting import eventually
from tests.support.workers import workers

pytestmark = pytest.mark.timeout(180)

PLAIN = ("--tls", "plaintext", "--min-invisible", "0s")
WITHIN_S = 30.0
LONG, SHORT = ("--handover", "1h"), ("--handover", "300ms")


async def drain(endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
    """As an operator types it."""
    process = await asyncio.create_subprocess_exec(
        *(POPMQ, "--endpoint", endpoint, "--json", "server", "drain", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    )
    out, err = await process.communicate()
    return subprocess.CompletedProcess((), process.returncode or 0, out.decode(), err.decode())


async def states(server: ServerProcess) -> dict[str, str]:
    def found() -> dict[str, str]:
        with closing(Admin(server.endpoint)) as admin:
            return {each.address: "leaving" if each.leaving else "running" for each in admin.status().servers}

    return await asyncio.to_thread(found)


@pytest.fixture
async def stays(postgres_url: str) -> AsyncIterator[ServerProcess]:
    async with served(postgres_url, *PLAIN) as server:
        yield server


async def both_are_known(*servers: ServerProcess) -> None:
    async def are_known() -> bool:
        return all([len(await states(each)) == len(servers) for each in servers])

    await eventually(are_known, "the servers know each other", within_s=WITHIN_S)


async def test_it_serves_on_and_then_it_stops(postgres_url: str, stays: ServerProcess) -> None:
    async with served(postgres_url, *PLAIN, *LONG) as goes:
        await both_are_known(goes, stays)
        said = await drain(goes.endpoint)
        assert said.returncode == 0, said.stderr
        assert json.loads(said.stdout) == {"address": goes.endpoint, "handover_ms": 3_600_000, "stopped": False}
        assert await states(stays) == {goes.endpoint: "leaving", stays.endpoint: "running"}
        again = await drain(goes.endpoint)
        assert (again.returncode, again.stdout) == (0, said.stdout)
        refused = await drain(stays.endpoint)
        assert refused.returncode == 1
        assert "no other server on this database can take the clients over; start another one first" in refused.stderr
        assert await asyncio.to_thread(passes, goes.endpoint)
        # Whoever stops the process has no patience.
        assert await asyncio.wait_for(goes.stop(), WITHIN_S) == 0
        assert await states(stays) == {stays.endpoint: "running"}


async def test_who_waits_learns_of_the_end(postgres_url: str, stays: ServerProcess) -> None:
    async with served(postgres_url, *PLAIN, *SHORT) as goes:
        await both_are_known(goes, stays)
        said = await drain(goes.endpoint, "--wait")
        assert said.returncode == 0, said.stderr
        assert json.loads(said.stdout) == {"address": goes.endpoint, "handover_ms": 300, "stopped": True}
        assert await asyncio.wait_for(goes.ended(), WITHIN_S) == 0
        assert await asyncio.to_thread(passes, stays.endpoint)


async def test_our_clients_go_at_once(postgres_url: str, stays: ServerProcess) -> None:
    """To another of their addresses."""
    async with served(postgres_url, *PLAIN, *LONG) as goes:
        await both_are_known(goes, stays)
        with Producer(f"{goes.endpoint};{stays.endpoint}") as producer, closing(Admin(stays.endpoint)) as admin:
            await asyncio.to_thread(producer.send, "orders", b"one")
            assert await asyncio.to_thread(admin.list_clients) == []
            await drain(goes.endpoint)

            async def is_here() -> bool:
                return len(await asyncio.to_thread(admin.list_clients)) == 1

            await eventually(is_here, "the client is at the server that stays", within_s=WITHIN_S)
            await asyncio.to_thread(producer.send, "orders", b"two")


async def test_all_workers_go(postgres_url: str, stays: ServerProcess) -> None:
    async with workers(postgres_url, 2, *PLAIN, *SHORT) as goes:
        with closing(Admin(goes.endpoint)) as admin:

            async def are_known() -> bool:
                return len((await asyncio.to_thread(admin.status)).servers) == 3

            await eventually(are_known, "the servers know each other", within_s=WITHIN_S)
        pids = set(goes.running())
        said = await drain(goes.endpoint, "--wait")
        assert said.returncode == 0, said.stderr
        assert await asyncio.wait_for(goes.ended(), WITHIN_S) == 0
        handed = goes.lines("clients are handed over to other servers; then this one stops")
        assert sorted(each["worker"] for each in handed) == [1, 2]
        assert len(pids) == 2
        assert goes.lines("worker ended") == []
    assert await asyncio.to_thread(passes, stays.endpoint)


async def test_workers_that_hand_over_stop_at_once_when_told(postgres_url: str, stays: ServerProcess) -> None:
    async with workers(postgres_url, 2, *PLAIN, *LONG) as goes:
        await both_are_known(stays, goes)
        goes.signal(signal.SIGUSR1)
        await goes.logged("clients are handed over to other servers; then this one stops", 2)
        assert await asyncio.to_thread(passes, goes.endpoint)
        assert await asyncio.wait_for(goes.stop(), WITHIN_S) == 0


async def test_a_lone_server_stops_at_the_signal(postgres_url: str) -> None:
    """A supervisor that has the signal for every server has it for the last one too."""
    async with served(postgres_url, *PLAIN, *LONG) as lone:
        lone.signal(signal.SIGUSR1)
        assert await asyncio.wait_for(lone.ended(), WITHIN_S) == 0
        assert "no other server can take the clients over" in lone.stderr


def test_a_server_inside_a_program_is_not_stopped() -> None:
    with popserver.embedded() as broker, Admin(broker.endpoint) as admin:
        with pytest.raises(UnsupportedByServer, match="this server is a part of another program; stop that program"):
            admin.drain()
        assert not admin.status().servers


def passes(endpoint: str) -> bool:
    """A new client sends and gets a message."""
    with Producer(endpoint) as producer, SimpleConsumer(endpoint, "billing", "orders") as consumer:
        sent = producer.send("orders", b"x")
        for message in consumer.receive(await_duration=10.0):
            consumer.ack(message)
            if message.message_id == sent.message_id:
                return True
    return False
