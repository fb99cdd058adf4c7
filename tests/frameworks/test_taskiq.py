"""Taskiq's own receiver over a real broker: what becomes of each task."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from taskiq import (
    AcknowledgeType,
    AsyncTaskiqDecoratedTask,
    Context,
    NoResultError,
    SendTaskError,
    SimpleRetryMiddleware,
    TaskiqDepends,
)
from taskiq.api import run_receiver_task
from taskiq.brokers.inmemory_broker import InmemoryResultBackend

import popserver
from popclient import GiveUp, NotFound, aio
from popclient.frameworks.taskiq import PopBroker
from popserver import EmbeddedBroker
from tests.frameworks.conftest import PATIENCE_S, Counts, become, reasons
from tests.support.scripted_server import until


@asynccontextmanager
async def worker(broker: PopBroker, **options: Any) -> AsyncIterator[None]:
    """Receives tasks in this process, as `taskiq worker` does in its own."""
    await broker.startup()
    receiving = asyncio.create_task(run_receiver_task(broker, **options))
    try:
        yield
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        await broker.shutdown()


async def advance(broker: EmbeddedBroker, by: str) -> None:
    await asyncio.to_thread(broker.clock.advance, by)


class Flaky:
    """A task that raises the errors it was given, one for each attempt, and then succeeds."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= len(self.errors):
            raise self.errors[self.calls - 1]
        return "done"

    def of(self, broker: PopBroker, **labels: Any) -> AsyncTaskiqDecoratedTask[[], Any]:
        async def flaky() -> str:
            return await self()

        return broker.register_task(flaky, "flaky", **labels)


# ---- Success and failure ----


async def test_a_task_runs_and_its_message_can_be_found_by_its_id(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())

    @broker.task("add", customer="a")
    async def add(one: int, other: int) -> int:
        return one + other

    async with worker(broker):
        sent = await add.kiq(1, other=2)
        assert (await sent.wait_result(timeout=PATIENCE_S)).return_value == 3
        await become(timed, Counts())
    async with aio.Admin(timed.endpoint) as admin:
        [found] = (await admin.find_messages(topic="tasks", key=sent.task_id)).messages
    assert (found.tag, list(found.keys)) == ("add", [sent.task_id])


async def test_a_task_that_raises_comes_again_by_the_groups_intervals_and_has_one_result(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())
    flaky = Flaky(ValueError("no milk"), ValueError("no cup"))
    task = flaky.of(broker)
    async with worker(broker):
        sent = await task.kiq()
        for interval, calls in (("10s", 1), ("30s", 2)):
            await become(timed, Counts(waiting_retry=1))
            assert flaky.calls == calls
            assert not await sent.is_ready()
            await advance(timed, interval)
        result = await sent.wait_result(timeout=PATIENCE_S)
        await become(timed, Counts())
    assert (result.is_err, result.return_value, flaky.calls) == (False, "done", 3)


async def test_after_the_last_attempt_it_is_a_dead_letter_and_the_error_is_its_result(timed: EmbeddedBroker) -> None:
    async with aio.Admin(timed.endpoint) as admin:
        await admin.create_group("workers", max_attempts=2, retry_intervals=[1])
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())
    task = Flaky(*[ValueError("no milk")] * 3).of(broker)
    async with worker(broker):
        sent = await task.kiq()
        await become(timed, Counts(waiting_retry=1))
        await advance(timed, "1s")
        result = await sent.wait_result(timeout=PATIENCE_S)
        await become(timed, Counts(dead_letters=1))
    assert result.is_err
    assert await reasons(timed.endpoint) == ["failed, and no attempt remains: ValueError: no milk"]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()])
async def test_whatever_a_task_raises_it_has_failed_and_the_worker_goes_on(
    timed: EmbeddedBroker, error: BaseException
) -> None:
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())
    task = Flaky(error).of(broker)
    async with worker(broker):
        sent = await task.kiq()
        await become(timed, Counts(waiting_retry=1))
        await advance(timed, "10s")
        assert (await sent.wait_result(timeout=PATIENCE_S)).return_value == "done"


async def test_a_task_in_a_thread_fails_and_succeeds_as_well(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())
    calls: list[int] = []

    @broker.task("slow")
    def slow() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no milk")
        return "done"

    async with worker(broker):
        sent = await slow.kiq()
        await become(timed, Counts(waiting_retry=1))
        await advance(timed, "10s")
        assert (await sent.wait_result(timeout=PATIENCE_S)).return_value == "done"


# ---- Given up ----


async def test_a_rejected_task_is_a_dead_letter_at_once(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())

    @broker.task("rejects")
    async def rejects(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        context.reject()

    async with worker(broker):
        sent = await rejects.kiq()
        assert (await sent.wait_result(timeout=PATIENCE_S)).is_err
        await become(timed, Counts(dead_letters=1))
    assert await reasons(timed.endpoint) == ["forwarded by its consumer: the task was rejected"]


async def test_a_task_that_gives_up_says_why(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())
    task = Flaky(GiveUp("table 7 does not exist")).of(broker)
    async with worker(broker):
        assert (await (await task.kiq()).wait_result(timeout=PATIENCE_S)).is_err
        await become(timed, Counts(dead_letters=1))
    assert await reasons(timed.endpoint) == ["forwarded by its consumer: table 7 does not exist"]


async def test_what_is_no_task_is_a_dead_letter_at_once(timed: EmbeddedBroker) -> None:
    async with aio.Producer(timed.endpoint) as producer:
        await producer.send("tasks", "one espresso")
    async with worker(PopBroker(timed.endpoint)):
        await become(timed, Counts(dead_letters=1))
    [reason] = await reasons(timed.endpoint)
    assert reason.startswith("forwarded by its consumer: this is no task for Taskiq: ")


async def test_a_task_that_this_worker_does_not_know_comes_again(timed: EmbeddedBroker) -> None:
    """Another worker may know it, for example while a new version is rolled out."""
    sender, old = PopBroker(timed.endpoint), PopBroker(timed.endpoint)
    await Flaky().of(sender).kiq()
    await sender.shutdown()
    async with worker(old):
        await become(timed, Counts(waiting_retry=1))
    new = PopBroker(timed.endpoint)
    flaky = Flaky()
    flaky.of(new)
    async with worker(new):
        await advance(timed, "10s")
        await become(timed, Counts())
    assert flaky.calls == 1


# ---- Taskiq's own ways ----


@pytest.mark.parametrize("no_result_on_retry", [True, False])
async def test_a_task_that_taskiq_sends_again_is_done_with_that(
    timed: EmbeddedBroker, no_result_on_retry: bool
) -> None:
    broker = PopBroker(timed.endpoint).with_middlewares(
        SimpleRetryMiddleware(default_retry_count=3, no_result_on_retry=no_result_on_retry)
    )
    flaky = Flaky(ValueError("no milk"))
    task = flaky.of(broker, retry_on_error=True)
    async with worker(broker):
        await task.kiq()
        await until(lambda: flaky.calls == 2)
        await become(timed, Counts())
    async with aio.Admin(timed.endpoint) as admin:
        assert len(await admin.peek_messages("tasks")) == 2


async def test_a_requeued_task_is_done_with_that(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint)
    calls: list[str] = []

    @broker.task("again")
    async def again(context: Context = TaskiqDepends()) -> None:  # noqa: B008
        calls.append(context.message.task_id)
        if len(calls) == 1:
            await context.requeue()

    async with worker(broker):
        sent = await again.kiq()
        await until(lambda: len(calls) == 2)
        await become(timed, Counts())
    assert calls == [sent.task_id] * 2


async def test_a_task_that_wants_no_result_is_done(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint)
    flaky = Flaky(NoResultError())
    async with worker(broker):
        await flaky.of(broker).kiq()
        await until(lambda: flaky.calls == 1)
        await become(timed, Counts())


@pytest.mark.parametrize("when", [AcknowledgeType.WHEN_EXECUTED, AcknowledgeType.WHEN_SAVED])
async def test_a_failure_is_no_ack_whenever_taskiq_acks(timed: EmbeddedBroker, when: AcknowledgeType) -> None:
    broker = PopBroker(timed.endpoint)
    async with worker(broker, ack_time=when):
        await Flaky(ValueError("no milk")).of(broker).kiq()
        await become(timed, Counts(waiting_retry=1))


async def test_a_task_that_is_acked_when_received_runs_once_at_most(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint).with_result_backend(InmemoryResultBackend())
    async with worker(broker, ack_time=AcknowledgeType.WHEN_RECEIVED):
        sent = await Flaky(ValueError("no milk")).of(broker).kiq()
        assert (await sent.wait_result(timeout=PATIENCE_S)).is_err
        await become(timed, Counts())


# ---- Labels ----


async def test_a_delay_is_kept_by_the_server(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint)
    flaky = Flaky()
    task = flaky.of(broker)
    async with worker(broker):
        await task.kicker().with_labels(delay=3_600).kiq()
        async with aio.Admin(timed.endpoint) as admin:
            assert len(await admin.list_scheduled("tasks")) == 1
        await advance(timed, "59m")
        await become(timed, Counts())
        assert flaky.calls == 0
        await advance(timed, "1m")
        await until(lambda: flaky.calls == 1)


async def test_tasks_of_a_message_group_run_in_order_and_wait_for_one_that_fails(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint)
    begun: list[tuple[str, str]] = []

    @broker.task("step")
    async def step(table: str, what: str) -> None:
        begun.append((table, what))
        if len(begun) == 1:
            raise ValueError("not yet")

    async with worker(broker):
        for what in ("open", "pay", "close"):
            await step.kicker().with_labels(message_group="table-7").kiq("7", what)
        await become(timed, Counts(ready=2, waiting_retry=1))
        await step.kicker().with_labels(message_group="table-8").kiq("8", "open")
        await until(lambda: len(begun) == 2)
        await advance(timed, "3s")
        await until(lambda: len(begun) == 5)
        await become(timed, Counts())
    assert begun == [("7", "open"), ("8", "open"), ("7", "open"), ("7", "pay"), ("7", "close")]


async def test_higher_priorities_come_first_in_a_topic_for_them(timed: EmbeddedBroker) -> None:
    async with aio.Admin(timed.endpoint) as admin:
        await admin.create_topic("tasks", accept_message_types=["PRIORITY"])
    broker = PopBroker(timed.endpoint, concurrency=1)
    begun: list[int] = []

    @broker.task("urgent")
    async def urgent(priority: int) -> None:
        begun.append(priority)

    await broker.startup()
    for priority in [1] * 10 + [9]:
        await urgent.kicker().with_labels(priority=priority).kiq(priority)
    await broker.shutdown()
    async with worker(broker, max_async_tasks=1):
        await until(lambda: len(begun) == 11)
    assert begun.index(9) < 5, begun  # one search in eight ignores priorities, so that nothing starves


@pytest.mark.parametrize(
    ("labels", "kind", "says"),
    [
        ({"delay": "soon"}, ValueError, "label delay is 'soon'; it must be a number of seconds"),
        ({"priority": "high"}, ValueError, "label priority is 'high'; it must be a whole number"),
        ({"priority": -1}, ValueError, "priority -1 is not within 0 and 32767"),
        ({"delay": 1, "message_group": "a"}, ValueError, "message_group and delay exclude each other"),
        ({"priority": 1}, NotFound, "popmq topic create tasks --type PRIORITY"),
    ],
)
async def test_labels_that_cannot_be_sent_are_refused(
    timed: EmbeddedBroker, labels: dict[str, Any], kind: type[Exception], says: str
) -> None:
    broker = PopBroker(timed.endpoint)
    try:
        with pytest.raises(SendTaskError) as refused:
            await Flaky().of(broker).kicker().with_labels(**labels).kiq()
    finally:
        await broker.shutdown()
    assert isinstance(refused.value.__cause__, kind)
    assert re.search(says, str(refused.value.__cause__))


# ---- Starts and ends ----


def test_wrong_arguments_are_refused_when_the_broker_is_made() -> None:
    with pytest.raises(ValueError, match="concurrency is 0; it must be at least 1"):
        PopBroker(concurrency=0)
    with pytest.raises(ValueError, match=r"consumption_timeout is 14400; .* to 10800 s"):
        PopBroker(consumption_timeout=14_400)
    with pytest.raises(ValueError, match="a push consumer needs the name of its consumer group"):
        PopBroker(group="")


async def test_a_topic_that_is_missing_is_told_at_the_start() -> None:
    with popserver.embedded(auto_create=False) as server:
        broker = PopBroker(server.endpoint)
        with pytest.raises(NotFound, match="tasks"):
            await broker.startup()
        await broker.shutdown()


async def test_the_refusal_that_ends_a_worker_is_raised() -> None:
    with popserver.embedded(auto_create=False) as server:
        async with aio.Admin(server.endpoint) as admin:
            await admin.create_topic("tasks")
            await admin.create_group("workers")
            broker = PopBroker(server.endpoint)
            broker.is_worker_process = True
            await broker.startup()
            asked = asyncio.create_task(anext(broker.listen()))
            await admin.delete_group("workers")
        with pytest.raises(NotFound, match="workers"):
            await asked
        await broker.shutdown()


async def test_a_broker_starts_again_after_its_end(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint)
    flaky = Flaky()
    task = flaky.of(broker)
    for calls in (1, 2):
        async with worker(broker):
            await task.kiq()
            await until(lambda calls=calls: flaky.calls == calls)
            await become(timed, Counts())


async def test_what_was_not_begun_goes_back_and_its_attempt_does_not_count(timed: EmbeddedBroker) -> None:
    """Taskiq runs one task; the others wait in the worker, one of them with Taskiq."""
    async with aio.Admin(timed.endpoint) as admin:
        await admin.create_group("workers", max_attempts=1)
    broker = PopBroker(timed.endpoint, concurrency=4)
    begun, release = [], asyncio.Event()

    @broker.task("waits")
    async def waits(number: int) -> None:
        begun.append(number)
        await release.wait()

    async with worker(broker, max_async_tasks=1):
        for number in range(6):
            await waits.kiq(number)
        await become(timed, Counts(ready=2, inflight=4))
    # The one that ran has failed at its only attempt: the worker ended before it.
    await become(timed, Counts(ready=5, dead_letters=1))
    assert len(begun) == 1
    [reason] = await reasons(timed.endpoint)
    assert reason.endswith("RuntimeError: the worker ended before the task")
    release.set()
    async with worker(broker):
        await until(lambda: len(begun) == 6)
        await become(timed, Counts(dead_letters=1))


async def test_a_task_that_taskiq_does_not_ack_has_failed_when_it_ends(timed: EmbeddedBroker) -> None:
    broker = PopBroker(timed.endpoint)
    ran: list[int] = []

    @broker.task("odd", ack_type="never")
    async def odd() -> None:
        ran.append(1)

    async with worker(broker):
        await odd.kiq()
        await become(timed, Counts(waiting_retry=1))
