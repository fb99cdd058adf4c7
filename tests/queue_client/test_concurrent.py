"""Concurrent consumption: batches, what fails, what is late, and what becomes of the progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from popclient import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeStatus,
    MessageQueue,
)
from popclient._engine.runner import Rejected
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from tests.queue_client.queue_consumers import Q, QueueConsumers, Watching, sent_back
from tests.support.scripted_server import status, until

SUCCESS, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
RETRY = MessageQueue("%RETRY%g", 0)


class Slow:
    """A listener that holds each message until it is told how it ends."""

    def __init__(self) -> None:
        self.ends: dict[str, asyncio.Future[Any]] = {}

    async def __call__(self, messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        end = self.ends[messages[0].text] = asyncio.get_running_loop().create_future()
        return await end

    async def has(self, *texts: str) -> None:
        await until(lambda: set(self.ends) == set(texts))

    def end(self, text: str, result: Any = SUCCESS) -> None:
        self.ends.pop(text).set_result(result)


def always(result: Any) -> Callable[..., Any]:
    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        return result

    return listener


@pytest.mark.row("E4")
async def test_what_a_pull_brings_is_cut_into_batches(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, map(str, range(32)))
    await consumers.start(consume_message_batch_max_size=10)
    await until(lambda: len(consumers.seen) == 32)
    assert [len(call) for call in consumers.calls] == [10, 10, 10, 2]


@pytest.mark.row("E5")
@pytest.mark.row("E2")
async def test_what_the_pool_rejects_is_submitted_again_in_five_seconds(consumers: QueueConsumers) -> None:
    core = consumers.make(consume_message_batch_max_size=10)
    runner, run = core.parts.runner, core.parts.runner.run
    room = 1

    def full(job: Any) -> None:
        nonlocal room
        if not room:
            raise Rejected("the pool is full")
        room -= 1
        run(job)

    runner.run = full  # type: ignore[method-assign]
    await consumers.server.fill(Q, map(str, range(32)))
    await core.start()
    await until(lambda: len(consumers.seen) == 10)
    room = 99
    await consumers.clock.advance(4.9)
    assert len(consumers.seen) == 10
    await consumers.clock.advance(0.1)
    await until(lambda: consumers.offset(core) == 32)
    assert sorted(consumers.texts, key=int) == [str(number) for number in range(32)]


@pytest.mark.row("E6")
async def test_every_message_says_when_its_listener_was_called_and_the_sequence_is_read_only(
    consumers: QueueConsumers,
) -> None:
    await consumers.server.fill(Q, "a")
    await consumers.start()
    await until(lambda: consumers.seen)
    assert consumers.seen[0].properties["CONSUME_START_TIME"] == str(consumers.clock.epoch_ms())
    kinds: list[type] = []

    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        kinds.append(type(messages))
        return SUCCESS

    await consumers.start(listener, group="h")
    await until(lambda: kinds == [tuple])


@pytest.mark.row("E7")
@pytest.mark.parametrize(
    "ends, wanted",
    [
        ("SUCCESS", ConsumeStatus.SUCCESS),
        ("FAILED", ConsumeStatus.FAILED),
        ("EXCEPTION", ConsumeStatus.EXCEPTION),
        ("RETURNNULL", ConsumeStatus.RETURNNULL),
        ("TIMEOUT", ConsumeStatus.TIMEOUT),
    ],
)
async def test_how_a_listener_ended(consumers: QueueConsumers, ends: str, wanted: ConsumeStatus) -> None:
    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        if ends == "EXCEPTION":
            raise KeyError("a defect")
        if ends == "TIMEOUT":
            await consumers.clock.advance(30)
        return {"FAILED": LATER, "RETURNNULL": None}.get(ends, SUCCESS)

    watching = Watching()
    await consumers.server.fill(Q, "a")
    core = await consumers.start(listener, interceptors=[watching], consume_timeout=30)
    await until(lambda: watching.ends)
    assert watching.ends[0].status is wanted
    await until(lambda: consumers.offset(core) == 1)
    assert sent_back(consumers) == ([] if wanted in (ConsumeStatus.SUCCESS, ConsumeStatus.TIMEOUT) else [(0, 0)])


@pytest.mark.row("E17")
async def test_interceptors_see_pull_and_listener_in_order(consumers: QueueConsumers) -> None:
    watching = Watching()
    await consumers.server.fill(Q, "a")
    await consumers.start(interceptors=[watching])
    await until(lambda: len(watching.ends) == 1)
    mine = [heard for heard in watching.heard if "%RETRY%" not in heard]
    order = [mine.index(each) for each in ("before_receive t", "after_receive t 1", "before_consume a")]
    assert order == sorted(order)
    assert mine.index("before_consume a") < mine.index("after_consume a")


@pytest.mark.row("E8")
@pytest.mark.parametrize(
    "ack_index, result, failed",
    [
        (2, SUCCESS, [3, 4]),
        (None, SUCCESS, []),
        (99, SUCCESS, []),
        (-1, SUCCESS, [0, 1, 2, 3, 4]),
        (2, LATER, [0, 1, 2, 3, 4]),
    ],
)
async def test_of_a_batch_the_tail_behind_ack_index_has_failed(
    consumers: QueueConsumers, ack_index: int | None, result: Any, failed: list[int]
) -> None:
    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        if ack_index is not None:
            context.ack_index = ack_index
        return result

    await consumers.server.fill(Q, "abcde")
    core = await consumers.start(listener, consume_message_batch_max_size=5)
    await until(lambda: consumers.offset(core) == 5)
    assert [offset for offset, _ in sent_back(consumers)] == failed
    told = core.parts.statistics.by_topic()["t"]
    assert (round(told.consume_ok_tps * 60), round(told.consume_failed_tps * 60)) == (5 - len(failed), len(failed))


@pytest.mark.row("E9")
@pytest.mark.row("E15")
@pytest.mark.parametrize("level", [0, 3, -1])
async def test_a_failed_message_is_handed_back_with_the_level_that_its_listener_wants(
    consumers: QueueConsumers, level: int
) -> None:
    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        context.delay_level_when_next_consume = level
        return LATER

    await consumers.server.fill(Q, "a")
    core = await consumers.start(listener, max_reconsume_times=5)
    await until(lambda: consumers.offset(core) == 1)
    [request] = consumers.server.sent_back
    assert (request.group.name, request.queue.topic.name, request.queue.queue_id, request.offset) == ("g", "t", 0, 0)
    assert (request.delay_level, request.max_reconsume_times) == (level, 5)


async def test_how_often_it_may_fail_is_the_groups_unless_told(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "a")
    await consumers.start(always(LATER))
    await until(lambda: consumers.server.sent_back)
    assert not consumers.server.sent_back[0].HasField("max_reconsume_times")


@pytest.mark.row("E10")
async def test_what_cannot_be_handed_back_is_tried_again_here_and_holds_the_progress(consumers: QueueConsumers) -> None:
    attempts: list[int] = []

    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        if messages[0].text == "b":
            return SUCCESS
        attempts.append(messages[0].delivery_attempt)
        return LATER if len(attempts) == 1 else SUCCESS

    consumers.server.answers["SendBack"] = lambda _: legacy.SendBackResponse(
        status=status(pb.INTERNAL_SERVER_ERROR, "no")
    )
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(listener)
    await until(lambda: attempts == [1] and consumers.clock.waits(5.0))
    assert consumers.offset(core) == 0
    await consumers.clock.advance(4.9)
    assert attempts == [1]
    await consumers.clock.advance(0.1)
    await until(lambda: consumers.offset(core) == 2)
    assert attempts == [1, 2]


@pytest.mark.row("E12")
async def test_what_becomes_of_a_queue_that_was_given_up_counts_no_more(consumers: QueueConsumers) -> None:
    slow = Slow()
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(slow)
    await slow.has("a", "b")
    dict(core.parts.owned())[Q].dropped = True
    slow.end("a")
    slow.end("b", LATER)
    await until(lambda: core.parts.statistics.by_topic()["t"].consume_failed_msgs == 1)
    assert (consumers.offset(core), sent_back(consumers)) == (None, [])


@pytest.mark.row("E13")
async def test_the_progress_is_the_first_offset_that_is_not_finished(consumers: QueueConsumers) -> None:
    slow = Slow()
    await consumers.server.fill(Q, "abcd")
    core = await consumers.start(slow)
    await slow.has(*"abcd")
    for text, offset in (("d", 0), ("b", 0), ("a", 2)):
        slow.end(text)
        await until(lambda offset=offset: consumers.offset(core) == offset)
    await core.close()
    assert consumers.server.progress[Q] == 2
    again = await consumers.start(slow)
    await slow.has("c", "d")
    slow.end("c")
    slow.end("d")
    await until(lambda: consumers.offset(again) == 4)


@pytest.mark.row("E14")
async def test_a_retry_shows_the_topic_that_it_comes_from(consumers: QueueConsumers) -> None:
    await consumers.server.fill(RETRY, "a")
    [copy] = consumers.server.queues[RETRY]
    copy.user_properties["RETRY_TOPIC"] = "t"
    copy.system_properties.delivery_attempt = 2
    results = iter([LATER, SUCCESS])

    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        consumers.note(messages)
        return next(results)

    core = await consumers.start(listener)
    await until(lambda: consumers.server.sent_back)
    assert [(view.topic, view.delivery_attempt) for view in consumers.seen] == [("t", 2)]
    # It is handed back as it was pulled.
    [request] = consumers.server.sent_back
    assert (request.queue.topic.name, request.offset) == (RETRY.topic, 0)
    await until(lambda: consumers.offset(core, RETRY) == 1)


@pytest.mark.row("D10")
@pytest.mark.row("E3")
async def test_what_is_too_long_with_the_listener_is_handed_back_once(consumers: QueueConsumers) -> None:
    slow = Slow()
    core = await consumers.start(slow)
    await consumers.owns(core, 0)
    await consumers.server.fill(Q, map(str, range(20)))
    await slow.has(*map(str, range(20)))
    await consumers.wait(900)
    assert sent_back(consumers) == []
    await consumers.wait(900)
    await until(lambda: len(consumers.server.sent_back) == 16)
    assert sent_back(consumers) == [(offset, 3) for offset in range(16)]
    await until(lambda: consumers.offset(core) == 16)
    for text in map(str, range(20)):  # late successes and late failures alike
        slow.end(text, SUCCESS if int(text) % 2 or int(text) > 15 else LATER)
    await until(lambda: consumers.offset(core) == 20)
    assert len(consumers.server.sent_back) == 16


@pytest.mark.row("D10")
async def test_a_late_message_that_cannot_be_handed_back_stays_for_the_next_sweep(consumers: QueueConsumers) -> None:
    slow = Slow()
    answers = iter([legacy.SendBackResponse(status=status(pb.INTERNAL_SERVER_ERROR, "no"))])
    consumers.server.answers["SendBack"] = lambda _: next(answers, None)
    await consumers.server.fill(Q, "a")
    core = await consumers.start(slow, consume_timeout=10)
    await slow.has("a")
    await consumers.comes(lambda: consumers.server.requests("SendBack"), 21)
    assert (consumers.offset(core), sent_back(consumers)) == (None, [])
    await consumers.comes(lambda: sent_back(consumers) == [(0, 3)], 21)
    slow.end("a")
    await until(lambda: consumers.offset(core) == 1)


@pytest.mark.row("C1")
async def test_too_many_messages_in_hand_hold_the_pull_back(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    slow = Slow()
    await consumers.server.fill(Q, map(str, range(1_200)))
    core = await consumers.start(slow, consume_threads=5)
    await until(lambda: consumers.clock.waits(0.05))
    pq = dict(core.parts.owned())[Q]
    assert 1_000 < pq.cached.messages <= 1_032
    assert "1024 messages" in caplog.text and "pull_threshold_for_queue 1000" in caplog.text
    pulls = len(consumers.server.pulls_of(Q))
    for _ in range(30):
        slow.end(next(iter(slow.ends)))
        await asyncio.sleep(0)
        await until(lambda: len(slow.ends) == 5)
    assert len(consumers.server.pulls_of(Q)) == pulls
    await consumers.clock.advance(0.05)
    await until(lambda: len(consumers.server.pulls_of(Q)) == pulls + 1)


@pytest.mark.row("C2")
async def test_too_many_bytes_in_hand_hold_the_pull_back(consumers: QueueConsumers) -> None:
    slow = Slow()
    await consumers.server.fill(Q, ["x" * 1024 * 1024] * 6)
    core = await consumers.start(slow, pull_batch_size=1, pull_threshold_size_for_queue=3)
    await until(lambda: consumers.clock.waits(0.05))
    assert dict(core.parts.owned())[Q].cached.bytes == 4 * 1024 * 1024


@pytest.mark.row("C3")
async def test_a_message_that_does_not_finish_slows_the_queue_down(consumers: QueueConsumers) -> None:
    """What is finished behind it does not count, so the queue is pulled on, a batch each 50 ms."""
    first, done = asyncio.Event(), list[str]()

    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        if messages[0].text == "0":
            await first.wait()
        done.extend(each.text for each in messages)
        return SUCCESS

    await consumers.server.fill(Q, map(str, range(5_000)))
    core = await consumers.start(listener)
    while len(done) < 4_999:
        await until(lambda: len(done) == 4_999 or consumers.clock.waits(0.05))
        await consumers.clock.advance(0.05)
    assert consumers.offset(core) == 0
    first.set()
    await until(lambda: consumers.offset(core) == 5_000)


@pytest.mark.row("C3")
async def test_with_a_limit_of_its_own_it_stops_the_queue(consumers: QueueConsumers) -> None:
    first, done = asyncio.Event(), list[str]()

    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        if messages[0].text == "0":
            await first.wait()
        done.extend(each.text for each in messages)
        return SUCCESS

    await consumers.server.fill(Q, map(str, range(5_000)))
    core = await consumers.start(listener, max_unfinished_span=2_000)
    for _ in range(20):
        await until(lambda: consumers.clock.waits(0.05) and len(done) == max(consumers.server.pulls_of(Q)) - 1 + 32)
        await consumers.clock.advance(0.05)
    assert 2_000 <= len(done) <= 2_032
    assert consumers.offset(core) == 0
    first.set()
    while len(done) < 5_000:
        await until(lambda: len(done) == 5_000 or consumers.clock.waits(0.05))
        await consumers.clock.advance(0.05)
    await until(lambda: consumers.offset(core) == 5_000)


@pytest.mark.row("C3")
async def test_messages_in_hand_bound_the_span(consumers: QueueConsumers) -> None:
    first = asyncio.Event()

    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        if messages[0].text == "0" or int(messages[0].text) > 1_990:
            await first.wait()
        return SUCCESS

    await consumers.server.fill(Q, map(str, range(3_000)))
    core = await consumers.start(listener)
    await until(lambda: consumers.clock.waits(0.05))
    assert 2_000 < dict(core.parts.owned())[Q].cached.span <= 2_032
    assert max(consumers.server.pulls_of(Q)) <= 2_000
    assert consumers.offset(core) == 0
    first.set()
    await until(lambda: (consumers.offset(core) or 0) > 1_990)
    await consumers.clock.advance(0.05)
    await until(lambda: consumers.offset(core) == 3_000)


@pytest.mark.row("C5")
async def test_a_topics_threshold_is_shared_by_the_queues_that_are_owned(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 4
    consumers.server.notices = True
    first = await consumers.start(pull_threshold_for_topic=100)
    await consumers.owns(first, 0, 1, 2, 3)
    await until(lambda: first.limits("t").pull_threshold_for_queue == 25)
    await consumers.start(pull_threshold_for_topic=100)
    await consumers.comes(lambda: first.limits("t").pull_threshold_for_queue == 50, 20)


async def test_a_closing_consumer_lets_its_listener_finish_and_begins_nothing(consumers: QueueConsumers) -> None:
    slow = Slow()
    await consumers.server.fill(Q, "abc")
    core = await consumers.start(slow, consume_threads=2)
    await slow.has("a", "b")
    closing = core.begin_closing(5)
    slow.end("a")
    slow.end("b", LATER)
    await closing
    assert (consumers.server.progress[Q], sent_back(consumers), slow.ends) == (2, [(1, 0)], {})
    assert core.state == "SHUTDOWN_ALREADY"
    await until(lambda: consumers.server.members == {})


async def test_who_does_not_wait_for_the_listener_leaves_its_messages_to_the_next_owner(
    consumers: QueueConsumers,
) -> None:
    slow = Slow()
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(slow)
    await slow.has("a", "b")
    slow.end("a")
    await until(lambda: consumers.offset(core) == 1)
    await core.close()
    assert consumers.server.progress[Q] == 1
    await consumers.start()
    await until(lambda: consumers.texts == ["b"])
