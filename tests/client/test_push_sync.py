"""The synchronous push consumer: threads, signals, and a process that just ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from popclient import ClientClosed, ConsumeResult, Interceptor, Message, MessageView, NotFound, Producer, PushConsumer
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.client.push_consumers import acked, failed, given_back
from tests.support.client_program import AT_ONCE_S, run
from tests.support.scripted_server import ServerThread, status, until_in_thread

SUCCESS = ConsumeResult.SUCCESS


def send(server: ServerThread, count: int, **more: Any) -> None:
    with Producer(server.endpoints) as producer:
        producer.send_many([Message("t", str(number), **more) for number in range(count)]).raise_for_failures()


def threads_of(group: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{group}-")]


@pytest.mark.row("E1")
def test_daemon_threads_named_after_the_group_share_the_work(threaded: ServerThread) -> None:
    send(threaded, 200)
    seen: list[str] = []
    names: set[str] = set()
    together = threading.Barrier(20)

    def listener(message: MessageView) -> ConsumeResult:
        if len(names) < 20:
            names.add(threading.current_thread().name)
            together.wait(60)
        seen.append(message.text)
        return SUCCESS

    with PushConsumer(threaded.endpoints, "push", "t", listener) as consumer:
        until_in_thread(lambda: len(acked(threaded.server)) == 200)
        until_in_thread(lambda: consumer.cached == (0, 0))
        assert (consumer.healthy, consumer.group) == (True, "push")
        assert "healthy" in repr(consumer)
        assert consumer.client_id
        workers = threads_of("push")
        assert all(thread.daemon for thread in workers)
    assert sorted(seen, key=int) == [str(number) for number in range(200)]
    assert names == {f"push-{number}" for number in range(1, 21)}
    until_in_thread(lambda: not any(thread.is_alive() for thread in workers))


def test_idle_threads_are_not_started(threaded: ServerThread) -> None:
    with PushConsumer(threaded.endpoints, "push", "t", lambda _: SUCCESS):
        send(threaded, 1)
        until_in_thread(lambda: acked(threaded.server))
        assert len(threads_of("push")) == 1


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_whatever_the_listener_raises_its_thread_lives_on(threaded: ServerThread, error: BaseException) -> None:
    send(threaded, 1)

    def listener(message: MessageView) -> ConsumeResult:
        if message.text == "0":
            raise error
        return SUCCESS

    with PushConsumer(threaded.endpoints, "push", "t", listener, concurrency=1):
        until_in_thread(lambda: len(failed(threaded.server)) == 1)
        with Producer(threaded.endpoints) as producer:
            producer.send("t", "1")
        until_in_thread(lambda: acked(threaded.server))


@pytest.mark.parametrize("answer, acks", [(SUCCESS, 1), (ConsumeResult.FAILURE, 0), (None, 0), ("SUCCESS", 0), (1, 0)])
def test_success_alone_acks(threaded: ServerThread, answer: Any, acks: int) -> None:
    send(threaded, 1)
    with PushConsumer(threaded.endpoints, "push", "t", lambda _: answer):
        until_in_thread(lambda: acked(threaded.server) or failed(threaded.server))
    assert (len(acked(threaded.server)), len(failed(threaded.server))) == (acks, 1 - acks)


def test_a_batch_listener_and_hooks_in_its_thread(threaded: ServerThread) -> None:
    send(threaded, 40)
    where: list[tuple[str, int]] = []

    class Where(Interceptor):
        def before_consume(self, messages: Sequence[MessageView], /) -> None:
            where.append(("before", threading.get_ident()))

        def after_consume(self, messages: Sequence[MessageView], consumption: Any, /) -> None:
            where.append(("after", threading.get_ident()))

    def listener(messages: Sequence[MessageView]) -> ConsumeResult:
        where.append((f"listener {len(messages)}", threading.get_ident()))
        return SUCCESS

    given: dict[str, Any] = {"batch_size": 32, "concurrency": 1, "interceptors": [Where()]}
    with PushConsumer(threaded.endpoints, "push", "t", listener, **given):
        until_in_thread(lambda: len(acked(threaded.server)) == 40)
    assert [what for what, _ in where] == ["before", "listener 32", "after", "before", "listener 8", "after"]
    assert len({thread for _, thread in where}) == 1


def test_a_listener_that_takes_too_long_keeps_its_thread_and_its_late_success_is_not_acked(
    threaded: ServerThread,
) -> None:
    send(threaded, 1)
    release = threading.Event()
    ended: list[str] = []

    class Statuses(Interceptor):
        def after_consume(self, _: Sequence[MessageView], consumption: Any, /) -> None:
            ended.append(consumption.status)

    def listener(_: MessageView) -> ConsumeResult:
        release.wait(60)
        return SUCCESS

    given: dict[str, Any] = {"consumption_timeout": 0.05, "interceptors": [Statuses()]}
    with PushConsumer(threaded.endpoints, "push", "t", listener, **given) as consumer:
        until_in_thread(lambda: len(failed(threaded.server)) == 1 and consumer.cached == (0, 0))
        release.set()
        until_in_thread(lambda: ended == ["TIMEOUT"])
    assert not acked(threaded.server)


def test_message_groups_stay_in_order_over_threads(threaded: ServerThread) -> None:
    threaded.server.capabilities, threaded.server.fifo = "", True
    with Producer(threaded.endpoints) as producer:
        for number in range(30):
            producer.send_many([Message("t", str(number), message_group=group) for group in "abcdefgh"])
    seen: dict[str, list[int]] = {group: [] for group in "abcdefgh"}

    def listener(message: MessageView) -> ConsumeResult:
        seen[message.message_group or ""].append(int(message.text))
        return SUCCESS

    with PushConsumer(threaded.endpoints, "push", "t", listener):
        until_in_thread(lambda: len(acked(threaded.server)) == 240)
    assert list(seen.values()) == [list(range(30))] * 8


# ---- The end ----


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    """What a listener waits for; set at the end at the latest."""
    event = threading.Event()
    yield event
    event.set()


def test_closing_waits_for_what_runs_and_gives_the_rest_back(threaded: ServerThread, waiting: threading.Event) -> None:
    send(threaded, 10)
    begun: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        begun.append(message.text)
        waiting.wait(60)
        return SUCCESS

    consumer = PushConsumer(threaded.endpoints, "push", "t", listener, concurrency=2)
    with ThreadPoolExecutor(2) as pool, consumer:
        until_in_thread(lambda: len(begun) == 2 and consumer.cached.messages == 10)
        closing = [pool.submit(consumer.close) for _ in range(2)]
        until_in_thread(lambda: len(given_back(threaded.server)) == 8)
        assert not any(each.done() for each in closing)
        waiting.set()
        for each in closing:
            each.result(60)
    assert len(acked(threaded.server)) == 2
    assert threaded.server.calls[-1][0] == "NotifyClientTermination"
    with pytest.raises(ClientClosed):
        consumer.start()


def test_a_listener_that_hangs_is_left_behind(threaded: ServerThread, waiting: threading.Event) -> None:
    send(threaded, 1)
    begun = threading.Event()

    def listener(_: MessageView) -> ConsumeResult:
        begun.set()
        waiting.wait(60)
        return SUCCESS

    with PushConsumer(threaded.endpoints, "push", "t", listener, drain_timeout=0.05):
        assert begun.wait(60)
        began = time.monotonic()
    assert time.monotonic() - began < AT_ONCE_S
    assert threaded.server.requests("NotifyClientTermination")
    waiting.set()  # its late success finds nobody
    until_in_thread(lambda: not threads_of("push"))
    assert not acked(threaded.server)


def test_the_listener_may_close_its_consumer(threaded: ServerThread) -> None:
    send(threaded, 3)

    def listener(_: MessageView) -> ConsumeResult:
        consumer.close()
        return SUCCESS

    consumer = PushConsumer(threaded.endpoints, "push", "t", listener, concurrency=1)
    consumer.run()
    assert (len(acked(threaded.server)), len(given_back(threaded.server))) == (1, 2)


def test_run_ends_at_sigterm_and_leaves_the_handlers_as_they_were(threaded: ServerThread) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    seen: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        os.kill(os.getpid(), signal.SIGTERM)
        return SUCCESS

    send(threaded, 1)
    PushConsumer(threaded.endpoints, "push", "t", listener).run()
    assert len(acked(threaded.server)) == 1
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_consumer_that_cannot_start_closes(threaded: ServerThread) -> None:
    threaded.server.answers["QueryRoute"] = lambda _: rpc.QueryRouteResponse(status=status(pb.TOPIC_NOT_FOUND))
    with pytest.raises(NotFound), PushConsumer(threaded.endpoints, "push", "t", lambda _: SUCCESS):
        pass


UNCLOSED = """
    import sys, threading, time
    from popclient import ClientConfig, ConsumeResult, PushConsumer
    begun = threading.Event()
    def listener(message):
        begun.set()
        {work}
        return ConsumeResult.SUCCESS
    config = ClientConfig(sys.argv[1], request_timeout=60, close_timeout=60)
    consumer = PushConsumer(config, "push", "t", listener, concurrency=1, drain_timeout=60)
    consumer.start()
    begun.wait(60)
    print(time.time())
"""


@pytest.mark.parametrize("work", ["pass", "time.sleep(60)"])
def test_a_process_that_forgets_to_close_ends_at_once(threaded: ServerThread, work: str) -> None:
    send(threaded, 5)
    ended, took = run(UNCLOSED.format(work=work), threaded.endpoints)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert took < AT_ONCE_S
    until_in_thread(lambda: threaded.server.requests("NotifyClientTermination"))


@pytest.mark.user("U23")
def test_a_process_drains_at_sigterm_within_a_second(threaded: ServerThread) -> None:
    send(threaded, 500)
    script = """
        import sys, threading, time
        from popclient import ConsumeResult, Interceptor, PushConsumer
        turn = threading.Lock()
        begun = []
        def listener(message):
            with turn:
                begun.append(message)
                time.sleep(0.05)
            return ConsumeResult.SUCCESS
        class Count(Interceptor):
            received = 0
            def after_receive(self, topic, messages, error):
                self.received += len(messages)
                if messages and self.received == 500:
                    print("all here", flush=True)
        PushConsumer(sys.argv[1], "push", "t", listener, concurrency=4, interceptors=[Count()]).run()
        print(len(begun), flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), threaded.endpoints]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "all here\n"
        process.terminate()
        began = time.monotonic()
        assert process.wait(300) == 0, process.stderr.read()
        assert time.monotonic() - began < AT_ONCE_S
        assert len(acked(threaded.server)) == int(process.stdout.read())
    assert len(acked(threaded.server)) + len(given_back(threaded.server)) == 500
    assert not failed(threaded.server)
