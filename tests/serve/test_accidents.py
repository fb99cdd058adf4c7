"""What goes wrong at a start, a reload or an end of workers, and who does not notice."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from urllib.request import urlopen

import grpc
import psycopg
import pytest

from popclient.admin import Admin
from popclient.config import ClientConfig
from popproto.v2 import definition_pb2 as pb
from tests.serve.startup_hook import WAIT, StartupHook
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.raw_client import raw_client
from tests.support.waiting import eventually
from tests.support.workers import WITHIN_S, Workers, workers

OLDER = "0099"  # a schema before this one

pytestmark = pytest.mark.timeout(300)

PLAIN = ("--tls", "plaintext", "--min-invisible", "0s")
_WAITING = "SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'popmq'"


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with postgres_server(own=True) as server:
        yield server


@pytest.fixture
def spoiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartupHook:
    return StartupHook(tmp_path, monkeypatch)


class TestStopping:
    async def test_who_connects_in_a_drain_is_refused(self, own_postgres: PostgresServer) -> None:
        """And so goes elsewhere, instead of waiting for nobody."""
        async with workers(own_postgres.url, 2, *PLAIN) as server, raw_client(server.endpoint) as client:
            assert (await client.send("before")).code == pb.OK
            own_postgres.let_commits_wait()
            sending = asyncio.create_task(client.send("held"))
            await _is(lambda: _waits(own_postgres), "a commit that waits")
            server.signal(signal.SIGTERM)
            await _is(lambda: _refuses(server.endpoint), "a connection that is refused")
            assert server.is_running
            assert not sending.done()
            own_postgres.let_commits_pass()
            assert (await sending).code == pb.OK
            assert await server.ended() == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    async def test_a_commit_that_never_ends_holds_no_process(
        self, own_postgres: PostgresServer, spoiled: StartupHook, number: signal.Signals
    ) -> None:
        """SIGKILL: of the supervisor alone."""
        spoiled.by("from popserver.serve import process; process.STOP_S = 0.1")
        async with workers(own_postgres.url, 2, *PLAIN, "--drain-timeout", "0s") as server:
            async with raw_client(server.endpoint) as client:
                own_postgres.let_commits_wait()
                sending = asyncio.create_task(client.send("held"))
                await _is(lambda: _waits(own_postgres), "a commit that waits")
                pids = server.running()
                server.signal(number)
                await _is(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of the workers")
                with pytest.raises(grpc.aio.AioRpcError):
                    await sending
            assert await server.ended() == (1 if number is signal.SIGTERM else -signal.SIGKILL)
            assert "a statement of the database still runs" in server.stderr

    async def test_signals_of_a_terminal_do_not_end_a_worker(self, postgres_url: str) -> None:
        async with workers(postgres_url, 2, *PLAIN) as server:
            for pid in server.running():
                [line] = [each for each in _status(pid) if each.startswith("SigIgn:")]
                ignored = int(line.split()[1], 16)
                assert all(ignored >> (number - 1) & 1 for number in (signal.SIGHUP, signal.SIGINT))


class TestWithoutAStandby:
    """The start waits without end for its first commit, and hears what it is told."""

    @pytest.mark.parametrize("count", [1, 2])
    async def test_it_says_so_and_can_be_stopped(self, own_postgres: PostgresServer, count: int) -> None:
        async with _waiting_start(own_postgres, count) as (server, starting):
            server.signal(signal.SIGTERM)
            await asyncio.wait([starting], timeout=WITHIN_S)
            assert starting.done()
            assert not server.is_running

    async def test_it_leaves_no_worker_behind(self, own_postgres: PostgresServer) -> None:
        async with _waiting_start(own_postgres, 2) as (server, _):
            [pid] = server.running()
            server.signal(signal.SIGKILL)
            await _is(lambda: not Path(f"/proc/{pid}").exists(), "the end of the worker")

    async def test_it_goes_on_when_there_is_one(self, own_postgres: PostgresServer) -> None:
        async with _waiting_start(own_postgres, 2) as (server, starting):
            own_postgres.let_commits_pass()
            await starting
            assert await server.stop() == 0


class TestReloading:
    async def test_the_schema_is_never_upgraded_under_old_workers(self, postgres_url: str) -> None:
        async with workers(postgres_url, 2, *PLAIN) as server, raw_client(server.endpoint) as client:
            with psycopg.connect(postgres_url) as conn:
                conn.execute("UPDATE alembic_version SET version_num = %s", (OLDER,))
            before = server.running()
            server.signal(signal.SIGHUP)
            said = await server.logged("not reloaded: the workers that run stay as they are")
            assert "stop the server, then start it" in said["reason"]
            with psycopg.connect(postgres_url) as conn:
                assert conn.execute("SELECT version_num FROM alembic_version").fetchone() == (OLDER,)
            assert server.running() == before
            assert (await client.send("m")).code == pb.OK

    async def test_it_survives_workers_that_write_something_else(self, postgres_url: str, spoiled: StartupHook) -> None:
        async with workers(postgres_url, 2, *PLAIN) as server:
            before = server.running()
            spoiled.by("print('hello', flush=True)")
            server.signal(signal.SIGHUP)
            said = await server.logged("not reloaded: the workers that run stay as they are")
            assert "wrote something else than its report" in said["reason"]
            assert server.running() == before
            server.kill_worker(next(iter(before)))
            await server.logged("worker cannot start")
            spoiled.no_more()
            await server.logged("worker ready", 3)
            await server.reload()
            assert before.keys().isdisjoint(server.running())

    async def test_what_a_library_prints_goes_to_the_log(self, postgres_url: str, spoiled: StartupHook) -> None:
        spoiled.at_loading("print('a word', flush=True)", 1, 2)
        async with workers(postgres_url, 2, *PLAIN) as server:
            assert server.stderr.count("a word") == 2

    async def test_a_worker_that_was_just_being_started_has_the_new_settings_too(
        self, postgres_url: str, spoiled: StartupHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        admin = ("--admin", "127.0.0.1:0")
        async with workers(postgres_url, 2, *PLAIN, *admin) as server:
            spoiled.at_loading(WAIT, 1)
            [first] = [pid for pid, number in server.running().items() if number == 1]
            server.kill_worker(first)
            await _is(lambda: (tmp_path / "waits").exists(), "a worker that has read its settings")
            (tmp_path / "popmq.toml").write_text("max_connections = 600\n")
            server.signal(signal.SIGHUP)
            await server.logged("reloading")
            spoiled.no_more()
            await server.logged("reloaded")
            for address in server.facts["admin"].split(","):
                assert await asyncio.to_thread(_connections_of, address) == 300


class TestPauses:
    async def test_probes_of_a_worker_that_waits_are_refused(self, postgres_url: str, spoiled: StartupHook) -> None:
        ports = ("--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        async with workers(postgres_url, 2, *PLAIN, *ports) as server:
            http, admin = (server.facts[name].split(",")[0] for name in ("http", "admin"))
            spoiled.by("if WORKER == 1: sys.exit(3)")
            [first] = [pid for pid, number in server.running().items() if number == 1]
            server.kill_worker(first)
            await _is(lambda: _refuses(http) and _refuses(admin), "refused connections")
            spoiled.no_more()
            await _is(lambda: _answers(http), "an answer of the next worker")
            assert not _refuses(admin)
            assert await server.stop() == 0


@asynccontextmanager
async def _waiting_start(postgres: PostgresServer, count: int) -> AsyncIterator[tuple[Workers, asyncio.Task[None]]]:
    postgres.let_commits_wait()
    server = Workers(postgres.url, count, *PLAIN)
    starting = asyncio.create_task(server.start())
    try:
        await _is(lambda: "the start waits for a synchronous standby" in server.stderr, "what it waits for")
        yield server, starting
    finally:
        if server.is_running:
            await server.kill()
        with suppress(AssertionError):  # no ready line
            await starting


async def _is(is_so: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return await asyncio.to_thread(is_so)

    await eventually(holds, what, within_s=WITHIN_S)


def _refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with closing(socket.socket()) as client:
        return client.connect_ex((host, int(port))) != 0


def _answers(http: str) -> bool:
    with suppress(OSError), urlopen(f"http://{http}/livez", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _connections_of(address: str) -> int:
    with Admin(ClientConfig(endpoints=address)) as admin:
        return {each.name: each.limit for each in admin.status().budgets}["connections"]


def _status(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text().splitlines()


def _waits(postgres: PostgresServer) -> bool:
    with psycopg.connect(postgres.url) as conn:
        return conn.execute(_WAITING.encode()).fetchone() is not None
