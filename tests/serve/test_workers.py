"""`popmq serve --workers N`: real processes on a real Postgres."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest

from popclient import Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.config import ClientConfig
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from tests.support.checker import Call, Outcome, Receive, Send, check
from tests.support.final_state import final, looking, unfinished
from tests.support.server_process import refused
from tests.support.waiting import eventually
from tests.support.workers import Workers, workers
from tests.support.workload import Load, stub_of

pytestmark = pytest.mark.timeout(300)

TOPIC = "orders"
GROUPS = ("billing", "shipping")
PLAIN = ("--tls", "plaintext", "--min-invisible", "0s")


async def _is_done(is_so: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        return await asyncio.to_thread(is_so)

    await eventually(holds, what, within_s=60.0)


class TestStarting:
    async def test_all_serve_on_one_port_and_stop_together(self, postgres_url: str) -> None:
        async with workers(postgres_url, 3, *PLAIN) as server:
            assert server.facts["workers"] == 3
            assert sorted(server.running().values()) == [1, 2, 3]
            with Admin(ClientConfig(endpoints=server.endpoint)) as admin:
                await _is_done(lambda: _listed(admin, server.endpoint) == ["1", "2", "3"], "all are listed as servers")
            assert await server.stop() == 0
            assert server.running() == {}
        assert server.lines("worker ready")[0]["worker"] == 1

    async def test_each_has_its_own_ports_for_operators(self, postgres_url: str) -> None:
        ports = ("--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        async with workers(postgres_url, 2, *PLAIN, *ports) as server:
            http, admin = server.facts["http"].split(","), server.facts["admin"].split(",")
            assert len({*http, *admin}) == 4
            nodes = [await asyncio.to_thread(_node_of, each) for each in http]
            assert nodes == [f"{server.endpoint}/1", f"{server.endpoint}/2"]
            for number, address in enumerate(admin, 1):
                with Admin(ClientConfig(endpoints=address)) as asked:
                    [own] = [each for each in asked.status().servers if each.asked]
                assert own.server_id.endswith(f"-{number}")

    async def test_what_clients_may_use_is_divided(self, postgres_url: str) -> None:
        async with workers(postgres_url, 2, *PLAIN, "--max-connections", "1000") as server:
            with Admin(ClientConfig(endpoints=server.endpoint)) as admin:
                limits = {each.name: each.limit for each in admin.status().budgets}
            assert limits["connections"] == 500
            assert limits["send backlog"] == 64 << 20

    def test_sqlite_is_refused_with_the_way_out(self, sqlite_url: str) -> None:
        done = refused(sqlite_url, "--workers", "2")
        assert done.returncode == 2
        assert "workers=2 needs Postgres: a SQLite file has one writer" in done.stderr
        assert "leave --workers out" in done.stderr

    def test_a_port_of_another_program_is_refused(self, postgres_url: str) -> None:
        """Also if that program would share it: it would get some of the connections."""
        with closing(socket.socket()) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            done = refused(postgres_url, "--workers", "2", "--port", port)
            assert (done.returncode, done.stdout) == (1, "")
            assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in done.stderr
            done = refused(postgres_url, "--workers", "2", "--http", f"127.0.0.1:{port}")
            assert (done.returncode, done.stdout) == (1, "")
            assert f"cannot listen for HTTP on 127.0.0.1:{port}" in done.stderr

    def test_a_worker_that_cannot_start_says_why_once(self) -> None:
        done = refused("postgresql://nobody@127.0.0.1:1/nothing", "--workers", "2")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("popmq: ") == 1
        assert "127.0.0.1" in done.stderr


class TestDying:
    async def test_a_killed_worker_is_replaced_under_load(self, postgres_url: str, tmp_path: Path) -> None:
        seed = random.SystemRandom().randrange(1 << 32)
        load = Load(TOPIC, GROUPS, producers=4, consumers=4, seed=seed)
        async with workers(postgres_url, 2, *PLAIN) as server:
            for count in (1, 2):
                working = asyncio.create_task(load.run(server.endpoint))
                await _next(load, Send)
                pid, number = random.choice(list(server.running().items()))
                server.kill_worker(pid)
                for kind in (Send, Receive):
                    await _next(load, kind)
                ready = await server.logged("worker ready", 2 + count)
                assert ready["worker"] == number
                load.stop()
                await working
            await _consume_the_rest(server, load, postgres_url)
            assert await server.stop() == 0
        _judge(load, postgres_url, tmp_path, seed)

    async def test_those_who_keep_dying_end_it_with_the_last_reason(self, postgres_url: str) -> None:
        async with workers(postgres_url, 2, *PLAIN) as server:
            while server.is_running:
                for pid in server.running():
                    server.kill_worker(pid)
                await asyncio.sleep(0.1)
            assert await server.ended() == 1
        assert "the workers keep ending, each 5 times or more; the last reason was" in server.stderr
        assert "killed by SIGKILL" in server.stderr

    async def test_workers_end_when_their_supervisor_is_killed(self, postgres_url: str) -> None:
        async with workers(postgres_url, 2, *PLAIN) as server:
            pids = list(server.running())
            await server.kill()
            await _is_done(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "all workers ended")


class TestReloading:
    async def test_no_call_is_refused(self, postgres_url: str, tmp_path: Path) -> None:
        seed = random.SystemRandom().randrange(1 << 32)
        load = Load(TOPIC, GROUPS, producers=6, consumers=3, seed=seed)
        async with workers(postgres_url, 2, *PLAIN) as server:
            working = asyncio.create_task(load.run(server.endpoint))
            await _next(load, Receive)
            for _ in range(2):
                before = set(server.running())
                await server.reload()
                assert before.isdisjoint(server.running())
                for kind in (Send, Receive):
                    await _next(load, kind)
            load.stop()
            await working
            failed = [call for call in load.history.calls if call.outcome is Outcome.UNKNOWN]
            refused_sends = [each for each in load.history.calls if isinstance(each, Send) and each not in failed]
            assert failed == [], f"seed {seed}"
            assert {each.outcome for each in refused_sends} == {Outcome.OK}
            await _consume_the_rest(server, load, postgres_url)
        _judge(load, postgres_url, tmp_path, seed)

    async def test_who_connects_anew_for_each_call_is_served(self, postgres_url: str) -> None:
        """A connection that waits to be accepted, or was accepted a moment ago, is not closed with its worker.

        gRPC's library does not repeat a call whose new connection is closed.
        """
        calls = _Calls()
        async with workers(postgres_url, 2, *PLAIN) as server:
            working = [asyncio.create_task(calls.make(server.endpoint)) for _ in range(8)]
            await calls.more()
            await server.reload()
            await calls.more()
            calls.is_over = True
            await asyncio.gather(*working)
        assert calls.failures == []

    async def test_systemd_hears_of_it_from_the_supervisor_alone(
        self, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as systemd:
            systemd.bind(str(tmp_path / "notify"))
            systemd.setblocking(False)
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
            async with workers(postgres_url, 2, *PLAIN) as server:
                await server.reload()
                assert await server.stop() == 0
            heard = []
            with suppress(BlockingIOError):
                while True:
                    heard.append(systemd.recv(4_096).decode().splitlines())
        assert [each[0] for each in heard] == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]
        assert heard[1][1].startswith("MONOTONIC_USEC=")

    async def test_settings_are_read_anew_and_a_wrong_one_changes_nothing(
        self, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        settings = tmp_path / "popmq.toml"
        settings.write_text("max_delay = '1h'\n")
        async with workers(postgres_url, 2, *PLAIN) as server:
            before = server.running()
            settings.write_text("max_delay = 'soon'\n")
            server.signal(signal.SIGHUP)
            said = await server.logged("not reloaded: the workers that run stay as they are")
            assert "max_delay='soon'" in said["reason"]
            assert server.running() == before
            settings.write_text("max_connections = 600\n")
            await server.reload()
            with Admin(ClientConfig(endpoints=server.endpoint)) as admin:
                limits = {each.name: each.limit for each in admin.status().budgets}
            assert limits["connections"] == 300
            assert before.keys().isdisjoint(server.running())


class TestAnotherNumber:
    async def test_more_and_fewer_by_a_reload_refuse_no_call(
        self, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the file: 2, 4, 1. Load on connections that stay, and a connection for each call."""
        monkeypatch.chdir(tmp_path)
        settings = tmp_path / "popmq.toml"
        settings.write_text("workers = 2\n")
        seed = random.SystemRandom().randrange(1 << 32)
        load, calls = Load(TOPIC, GROUPS, producers=3, consumers=1, seed=seed), _Calls()
        async with workers(postgres_url, 0, *PLAIN) as server:
            assert server.facts["workers"] == 2
            working = [asyncio.create_task(load.run(server.endpoint))]
            working += [asyncio.create_task(calls.make(server.endpoint)) for _ in range(2)]
            await _next(load, Receive)
            for count in (4, 1):
                settings.write_text(f"workers = {count}\n")
                await server.reload()
                assert server.lines("reloaded")[-1]["workers"] == count
                assert sorted(server.running().values()) == list(range(1, count + 1))
                for kind in (Send, Receive):
                    await _next(load, kind)
                await calls.more()
            load.stop()
            calls.is_over = True
            await asyncio.gather(*working)
            assert calls.failures == []
            assert [each for each in load.history.calls if each.outcome is Outcome.UNKNOWN] == [], f"seed {seed}"
            await _consume_the_rest(server, load, postgres_url)
            assert await server.stop() == 0
        _judge(load, postgres_url, tmp_path, seed)

    async def test_ports_that_are_taken_change_nothing(
        self, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        settings = tmp_path / "popmq.toml"
        with closing(socket.socket()) as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = other.getsockname()[1]
            settings.write_text("workers = 2\n")
            async with workers(postgres_url, 0, *PLAIN, "--admin", f"127.0.0.1:{taken - 2}") as server:
                before = server.running()
                settings.write_text("workers = 3\n")
                server.signal(signal.SIGHUP)
                said = await server.logged("not reloaded: the workers that run stay as they are")
                assert f"127.0.0.1:{taken}" in said["reason"]
                assert server.running() == before


class TestClients:
    async def test_popclient_goes_on(self, postgres_url: str) -> None:
        """Through a reload and a kill, without a word from its user."""
        async with workers(postgres_url, 2, *PLAIN) as server:
            with _sending(server.endpoint) as sent:
                await _is_done(lambda: len(sent.received) > 20, "messages before")
                await server.reload()
                before = len(sent.received)
                await _is_done(lambda: len(sent.received) > before + 20, "messages after the reload")
                server.kill_worker(random.choice(list(server.running())))
                before = len(sent.received)
                await _is_done(lambda: len(sent.received) > before + 20, "messages after the kill")
            assert sent.failures == []


class _Numbers:
    def __init__(self) -> None:
        self.count = 0
        self.failures: list[str] = []
        self.received: set[str] = set()
        self.stopping = threading.Event()


@contextmanager
def _sending(endpoint: str) -> Iterator[_Numbers]:
    """A producer and a simple consumer that work all the time."""
    numbers = _Numbers()

    def send() -> None:
        with Producer(endpoint) as producer:
            for number in itertools.count():
                if numbers.stopping.is_set():
                    return
                try:
                    producer.send(TOPIC, str(number))
                except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                    numbers.failures.append(repr(error))

    def receive() -> None:
        with SimpleConsumer(endpoint, "billing", TOPIC) as consumer:
            while not numbers.stopping.is_set():
                for message in consumer.receive(await_duration=1.0):
                    consumer.ack(message)
                    numbers.received.add(message.message_id)

    with _running(numbers, send, receive):
        yield numbers


def _listed(admin: Admin, endpoint: str) -> list[str]:
    """The numbers of the workers that run at this address."""
    return sorted(
        each.server_id.rpartition("-")[2]
        for each in admin.status().servers
        if each.running and each.address == endpoint
    )


class _Calls:
    """Clients that make a connection for each call."""

    def __init__(self) -> None:
        self.count = 0
        self.failures: list[str] = []
        self.is_over = False

    async def make(self, endpoint: str) -> None:
        request = wire.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
        while not self.is_over:
            async with stub_of(endpoint) as stub:
                try:
                    await stub.QueryRoute(request, metadata=(("x-mq-client-id", "anew"),), timeout=30)
                except grpc.aio.AioRpcError as error:
                    self.failures.append(f"{error.code()}: {error.details()}")
            self.count += 1

    async def more(self) -> None:
        before = self.count

        async def made() -> bool:
            return self.count > before + 50

        await eventually(made, "calls on connections of their own", within_s=60.0)


@contextmanager
def _running(numbers: _Numbers, *works: Callable[[], None]) -> Iterator[None]:
    threads = [threading.Thread(target=work) for work in works]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        numbers.stopping.set()
        for each in threads:
            each.join()


async def _next(load: Load, kind: type[Call]) -> None:
    """Wait for a call that began after this moment, and is OK."""
    known = len(load.history.calls)

    async def made() -> bool:
        return any(isinstance(call, kind) and call.outcome is Outcome.OK for call in load.history.calls[known:])

    await eventually(made, f"a {kind.__name__} that is OK", within_s=60.0)


async def _consume_the_rest(server: Workers, load: Load, url: str) -> None:
    working = asyncio.create_task(load.run_consumers(server.endpoint))
    await _is_done(lambda: _is_empty(url), "all consumed")
    load.stop()
    await working


def _is_empty(url: str) -> bool:
    with looking(url) as conn:
        return unfinished(conn, TOPIC) == 0


def _judge(load: Load, url: str, folder: Path, seed: int) -> None:
    load.history.write(folder / "history.jsonl")
    with looking(url) as conn:
        violations = check(load.history, final(conn, TOPIC))
    assert not violations, f"seed {seed}:\n" + "\n".join(map(str, violations[:20]))


def _node_of(http: str) -> str:
    with urlopen(f"http://{http}/metrics") as answer:
        text = answer.read().decode()
    [line] = [line for line in text.splitlines() if line.startswith("popmq_ready{")]
    return str(json.loads(line.split("node_id=")[1].split("}")[0].split(",")[0]))
