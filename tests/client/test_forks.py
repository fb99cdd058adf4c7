"""`os.fork()` in a program with clients: a child uses gRPC of its own, or is refused at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

import popserver
from popclient.admin import Admin
from tests.support.waiting import soon

KINDS = ("producer", "simple", "push", "pull", "queue_push", "admin")
# What every program begins with: `use(kind)` makes a client and uses it, `again(client)` uses it once more, and
# `forked(work)` runs `work` in a child, which ends as a program does, and returns how it ended.
BEGINNING = """
    import asyncio, gc, os, signal, sys, threading
    from popclient import *
    from popclient import aio
    from popclient.admin import Admin

    endpoint = sys.argv[1]
    is_done = lambda *_: ConsumeResult.SUCCESS
    is_consumed = lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    make = {
        "producer": lambda: Producer(endpoint),
        "simple": lambda: SimpleConsumer(endpoint, "simple", "t"),
        "push": lambda: PushConsumer(endpoint, "push", "t", is_done),
        "pull": lambda: PullConsumer(endpoint, "pull"),
        "queue_push": lambda: QueuePushConsumer(endpoint, "queues", "t", is_consumed),
        "admin": lambda: Admin(endpoint),
    }
    uses = {
        "producer": lambda client: client.send("t", "x"),
        "simple": lambda client: client.receive(await_duration=0),
        "push": lambda client: client.start(),
        "pull": lambda client: client.assign("t"),
        "queue_push": lambda client: client.start(),
        "admin": lambda client: client.status(),
    }

    def use(kind):
        client = make[kind]()
        uses[kind](client)
        return client

    def is_refused(work):
        try:
            work()
        except Forked as refusal:
            return "close every client before the fork" in str(refusal)
        return False

    def forked(work):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            work()
            gc.collect()
            sys.exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended:
            print("the child ended with", ended, file=sys.stderr)
        return ended

    with Producer(endpoint) as first:
        first.send("t", "the topic is there")
"""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with popserver.embedded() as broker:
        yield broker.endpoint


def run(endpoint: str, program: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Runs it behind BEGINNING; returns what it has printed."""
    code = textwrap.dedent(BEGINNING) + textwrap.dedent(program)
    ended = subprocess.run(
        [sys.executable, "-c", code, endpoint, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | (env or {}),
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stdout


FORKS = ("3", "50")


@pytest.mark.parametrize("forks", FORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_makes_clients_if_all_were_closed_before_the_fork(endpoint: str, kind: str, forks: str) -> None:
    program = """
        kind = sys.argv[2]
        for number in range(int(sys.argv[3])):
            client = use(kind)
            client.close()
            assert forked(lambda: use(kind)) == 0  # closed at the child's end
            assert forked(lambda: use(kind).close()) == 0
    """
    run(endpoint, program, kind, forks)


@pytest.mark.parametrize("forks", FORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_of_a_process_with_an_open_client_is_refused_at_once(endpoint: str, kind: str, forks: str) -> None:
    """However it goes on: it uses the inherited client, closes it, drops it, or just ends."""
    program = """
        kind = sys.argv[2]
        client = use(kind)

        def try_all():
            global client
            assert all(is_refused(each) for each in make.values())
            assert is_refused(lambda: uses[kind](client))
            client.close()
            del client
            assert forked(lambda: None) == 0 and is_refused(make["producer"])

        for number in range(int(sys.argv[3])):
            assert forked(try_all) == 0
            assert forked(lambda: None) == 0
            uses[kind](client)  # the parent goes on
        client.close()
        assert forked(lambda: use(kind)) == 0
    """
    run(endpoint, program, kind, forks)


@pytest.mark.parametrize("kind", ["simple", "push", "pull", "queue_push"])
def test_a_consumer_that_has_received_ahead_lets_go_of_grpc(endpoint: str, kind: str) -> None:
    program = """
        kind, first_there = sys.argv[2], threading.Event()
        ahead = f"ahead-{kind}"

        def heard(result):
            first_there.set()
            return result

        def simple():
            client = SimpleConsumer(endpoint, ahead, ahead)
            for _ in range(8):
                assert client.receive(await_duration=5)
            return client

        def push():
            return heard_by(PushConsumer(endpoint, ahead, ahead, lambda _: heard(is_done())))

        def pull():
            client = PullConsumer(endpoint, ahead, consume_from="CONSUME_FROM_FIRST_OFFSET")
            client.subscribe(ahead)
            assert client.poll(5)
            return client

        def queue_push():
            hear = lambda *_: heard(is_consumed())
            return heard_by(QueuePushConsumer(endpoint, ahead, ahead, hear, consume_from="CONSUME_FROM_FIRST_OFFSET"))

        def heard_by(client):
            first_there.clear()
            client.start()
            assert first_there.wait(30)
            return client

        for _ in range(3):
            with Producer(endpoint) as producer:
                producer.send_many([Message(ahead, "x") for _ in range(3_000)]).raise_for_failures()
            globals()[kind]().close()
            assert forked(lambda: use("producer").close()) == 0
    """
    run(endpoint, program, kind)


def test_a_fork_amid_calls_of_other_threads(endpoint: str) -> None:
    program = """
        producer, ended = Producer(endpoint), threading.Event()

        def send():
            while not ended.is_set():
                producer.send("t", "x")

        threads = [threading.Thread(target=send) for _ in range(4)]
        for each in threads:
            each.start()
        for number in range(30):
            assert forked(lambda: is_refused(lambda: Producer(endpoint)) or os._exit(1)) == 0
        ended.set()
        for each in threads:
            each.join()
        print(producer.send("t", "y").message_id)
    """
    assert run(endpoint, program)


def test_asyncio_clients(endpoint: str) -> None:
    program = """
        async def use_it():
            async with aio.Producer(endpoint) as producer, aio.SimpleConsumer(endpoint, "aio", "t") as consumer:
                await producer.send("t", "x")
                await consumer.receive(await_duration=0)

        async def try_all(producer):
            for each in (lambda: producer.send("t", "x"), use_it):
                try:
                    await each()
                except Forked:
                    continue
                os._exit(9)
            await producer.close()

        for number in range(5):
            asyncio.run(use_it())
            assert forked(lambda: asyncio.run(use_it())) == 0

        async def fork_with_an_open_client():
            async with aio.Producer(endpoint) as producer:
                await producer.send("t", "x")
                for number in range(5):
                    assert forked(lambda: threading.Thread(target=lambda: asyncio.run(try_all(producer))).run()) == 0
                await producer.send("t", "x")

        asyncio.run(fork_with_an_open_client())
    """
    run(endpoint, program)


def test_a_client_that_was_not_used_before_the_fork_works_in_both(endpoint: str) -> None:
    """As a web application has it that gunicorn loads before it forks."""
    program = """
        clients = {kind: make[kind]() for kind in make}

        def use_all():
            for kind in make:
                uses[kind](clients[kind])

        for number in range(3):
            assert forked(use_all) == 0
        use_all()
        assert forked(lambda: is_refused(use_all) or os._exit(1)) == 0
    """
    run(endpoint, program)


def test_a_client_that_was_used_without_grpc_says_what_to_do() -> None:
    program = """
        producer = Producer(endpoint)
        producer._bridge.call(lambda: None)

        def send():
            try:
                producer.send("t", "x")
            except Forked as refusal:
                os._exit(7 if str(refusal).endswith("make a new one in the child") else 8)

        assert forked(send) == 7
    """
    with popserver.embedded() as broker:
        run(broker.endpoint, program)


def test_process_pools(endpoint: str) -> None:
    program = """
        import multiprocessing, pickle
        from concurrent.futures import ProcessPoolExecutor

        def work(number):
            with Producer(endpoint) as producer:
                return producer.send("t", str(number)).message_id

        if __name__ == "__main__":
            fork = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(2, mp_context=fork) as pool:
                assert len(set(pool.map(work, range(8)))) == 8
            with fork.Pool(2) as pool:
                assert len(set(pool.map(work, range(8)))) == 8
            with Producer(endpoint) as producer:
                producer.send("t", "x")
                with ProcessPoolExecutor(2, mp_context=fork) as pool:
                    assert is_refused(lambda: list(pool.map(work, range(8))))
                producer.send("t", "x")
    """
    run(endpoint, program)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_are_not_forked_from_the_program(endpoint: str, method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import multiprocessing, sys
            from concurrent.futures import ProcessPoolExecutor
            from popclient import Producer

            def work(endpoint):
                with Producer(endpoint) as producer:
                    return producer.send("t", "x").message_id

            if __name__ == "__main__":
                with Producer(sys.argv[1]) as producer:
                    producer.send("t", "x")
                    context = multiprocessing.get_context(sys.argv[2])
                    with ProcessPoolExecutor(2, mp_context=context) as pool:
                        assert len(set(pool.map(work, [sys.argv[1]] * 4))) == 4
        """)
    )
    command = [sys.executable, str(program), endpoint, method]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_grpc_of_another_library(endpoint: str) -> None:
    """gRPC's own support of forks makes a channel without asyncio work in a child, if the environment asks for it."""
    program = """
        import grpc
        channel = grpc.insecure_channel(endpoint)
        grpc.channel_ready_future(channel).result(60)
        print(forked(lambda: use("producer") if sys.argv[2] == "1" else is_refused(make["producer"]) or os._exit(1)))
    """
    assert run(endpoint, program, "1", env={"GRPC_ENABLE_FORK_SUPPORT": "1"}) == "0\n"
    if Path("/proc/self/task").exists():
        assert run(endpoint, program, "0", env={"GRPC_ENABLE_FORK_SUPPORT": "0"}) == "0\n"


def test_the_environment_stays_as_it_was(endpoint: str) -> None:
    assert run(endpoint, "print(os.environ.get('GRPC_ENABLE_FORK_SUPPORT'))") == "None\n"


def test_an_embedded_broker_is_left_alone_in_a_child(endpoint: str, tmp_path: Path) -> None:
    program = """
        import sqlite3, popserver

        def refuses(work):
            try:
                work()
            except RuntimeError as refusal:
                return "this one was forked from it" in str(refusal)
            return False

        def leave(broker):
            assert refuses(broker.settle) and refuses(lambda: broker.clock.advance("1h"))
            use("producer").close()
            broker.stop()

        file = sys.argv[2]
        for number in range(5):
            with popserver.embedded(file, manual_clock=True) as broker:
                endpoint = broker.endpoint
                assert forked(lambda: leave(broker)) == 0
                use("producer").close()
            with popserver.embedded(file) as broker, SimpleConsumer(broker.endpoint, "g", "t") as consumer:
                consumer.ack(consumer.receive())
                assert forked(lambda: None) == 0
        [answer] = sqlite3.connect(file).execute("PRAGMA integrity_check")
        print(*answer)
    """
    assert run(endpoint, program, str(tmp_path / "popmq.db")) == "ok\n"


APPLICATION = """
from popclient import Producer, SimpleConsumer

with Producer({endpoint!r}) as early:  # as an application does that looks for its topics when it is loaded
    early.send("web", "loaded")
producer = Producer({endpoint!r})


def application(environ, start_response):
    receipt = producer.send("web", environ["PATH_INFO"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [receipt.message_id.encode()]
"""


def test_gunicorn_that_loads_the_application_before_it_forks(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    with popserver.embedded() as broker:
        (tmp_path / "web.py").write_text(APPLICATION.format(endpoint=broker.endpoint))
        served = gunicorn(tmp_path)
        try:
            ids = {served.get(f"/{number}") for number in range(40)}
            assert len(ids) == 40
            served.process.send_signal(signal.SIGHUP)  # new workers, forked from the same process
            ids |= {served.get(f"/{number}") for number in range(40)}
            assert len(ids) == 80
        finally:
            served.process.terminate()
            assert served.process.wait(60) == 0
        with Admin(broker.endpoint) as admin:
            assert [topic.message_count for topic in admin.list_topics() if topic.name == "web"] == [81]
    assert "Forked" not in served.log.read_text()


class Gunicorn:
    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log

    def get(self, path: str) -> str:
        answer = httpx2.get(self.url + path, timeout=30)
        assert answer.status_code == 200, self.log.read_text()
        return answer.text


def gunicorn(folder: Path) -> Gunicorn:
    """Serves `web.py` of the folder, with three workers that are forked from one process that has loaded it."""
    log = folder / "log"
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--bind", "127.0.0.1:0"]
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "web:application"], cwd=folder, stdout=out, stderr=out)
    soon(lambda: log.read_text().count("Booting worker") == 3, within_s=60)
    [port] = re.findall(r"Listening at: http://127.0.0.1:(\d+)", log.read_text())
    return Gunicorn(process, f"http://127.0.0.1:{port}", log)
