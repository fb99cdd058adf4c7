"""Where a listener runs, whatever it is called with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from popclient import ConsumeResult, Message, MessageView, Producer, PushConsumer
from popclient._engine.runner import Rejected, TaskRunner, ThreadRunner
from popclient._push import dispatcher
from tests.support.scripted_server import ServerThread, until, until_in_thread


class Call:
    """Keeps what it was told."""

    def __init__(self, listen: Callable[[], Any], *, may_begin: bool = True) -> None:
        self.listen = listen
        self.may_begin = may_begin
        self.ends: list[Any] = []
        self.errors: list[BaseException | None] = []

    def begin(self) -> bool:
        return self.may_begin

    def end(self, returned: Any, error: BaseException | None, /) -> None:
        self.ends.append(returned if error is None else error)

    def ended(self, error: BaseException | None, /) -> None:
        self.errors.append(error)


async def test_tasks_run_so_many_at_once_and_the_others_in_order() -> None:
    runner, gate, begun = TaskRunner("g", 2), asyncio.Event(), list[int]()

    async def listen(number: int) -> int:
        begun.append(number)
        await gate.wait()
        return number

    calls = [Call(lambda number=number: listen(number)) for number in range(5)]
    for call in calls:
        runner.run(call)
    await until(lambda: begun == [0, 1])
    assert runner.unfinished == 5
    gate.set()
    await runner.idle()
    assert (begun, runner.unfinished) == ([0, 1, 2, 3, 4], 0)
    assert [(call.ends, call.errors) for call in calls] == [([number], [None]) for number in range(5)]


async def test_a_call_that_is_called_off_or_never_begins_has_no_answer() -> None:
    runner = TaskRunner("g", 1)

    async def forever() -> None:
        await asyncio.Event().wait()

    off, running, waiting = Call(forever, may_begin=False), Call(forever), Call(forever)
    for call in (off, running, waiting):
        runner.run(call)
    await until(lambda: off.errors == [None])
    await asyncio.sleep(0)
    runner.stop()
    await runner.idle()
    assert (off.ends, waiting.ends) == ([], [])
    assert [type(each) for each in (*running.ends, *waiting.errors)] == [asyncio.CancelledError] * 2
    assert running.errors == [None]


async def test_a_call_that_is_cancelled_before_its_first_step_ends_all_the_same() -> None:
    runner, call = TaskRunner("g", 1), Call(lambda: asyncio.Event().wait())
    runner.run(call)
    runner.cancel(call)
    await runner.idle()
    assert call.ends == []
    assert isinstance(call.errors[0], asyncio.CancelledError)


async def test_a_plain_function_in_a_task_is_told_what_it_lacks() -> None:
    runner, call = TaskRunner("g", 1), Call(lambda: 5)
    runner.run(call)
    await runner.idle()
    assert "the listener returned 5, which cannot be awaited; write it with `async def`" in str(call.ends[0])


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_any_thread_a_call_is_rejected_and_stays_with_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
    runner, first, second = ThreadRunner("g-", 2, post=posted.put), Call(lambda: 1), Call(lambda: 2)
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Rejected, match=r"thread g-1 is not started: can't start new thread"):
            runner.run(first)
    assert runner.unfinished == 0
    runner.run(first)
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", refuse)
        runner.run(second)  # by the thread that is there
    for _ in range(2):
        posted.get(timeout=10)()
    assert (first.ends, second.ends, runner.unfinished) == ([1], [2], 0)
    runner.stop()


def send(threaded: ServerThread, *bodies: str) -> None:
    with Producer(threaded.endpoints) as producer:
        producer.send_many([Message("t", body) for body in bodies]).raise_for_failures()


def test_a_push_consumer_without_threads_hands_its_messages_out_later(
    threaded: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "RUN_AGAIN", 0.01)
    refused: list[str] = []
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread.name.startswith("push-") and len(refused) < 3:
            refused.append(thread.name)
            refuse(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    seen: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        return ConsumeResult.SUCCESS

    send(threaded, "a", "b")
    with PushConsumer(threaded.endpoints, "push", "t", listener, concurrency=1):
        until_in_thread(lambda: len(seen) == 2)
    assert (seen, len(refused)) == (["a", "b"], 3)


def test_a_message_that_times_out_before_there_is_a_thread_is_not_consumed(
    threaded: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "RUN_AGAIN", 0.01)
    start, is_full = threading.Thread.start, threading.Event()
    is_full.set()

    def scarce(thread: threading.Thread) -> None:
        if is_full.is_set() and thread.name.startswith("push-"):
            refuse(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    seen: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        return ConsumeResult.SUCCESS

    send(threaded, "late")
    with PushConsumer(threaded.endpoints, "push", "t", listener, concurrency=1, consumption_timeout=1):
        until_in_thread(lambda: threaded.server.requests("ChangeInvisibleDuration"))
        is_full.clear()
        send(threaded, "next")
        until_in_thread(lambda: seen == ["next"])
