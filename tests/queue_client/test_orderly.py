"""Orderly consumption: one batch of a queue at a time, under the server's lock."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from popclient import (
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageQueue,
    OrderlyListener,
    QueuePushConsumer,
    aio,
)
from popclient._queue_push.pull_loop import PullLoop
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from tests.queue_client.queue_consumers import Q, QueueConsumers
from tests.support.scripted_server import status, until

SUCCESS, SUSPEND = ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
COMMIT, ROLLBACK = ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK
OTHER = ("t", 0)


def answers(
    consumers: QueueConsumers, results: Iterator[Any], prepare: Callable[[ConsumeOrderlyContext], object] = bool
) -> Any:
    """A listener that notes what it gets and answers one result after the other, SUCCESS at last."""

    async def listener(messages: Any, context: ConsumeOrderlyContext) -> Any:
        consumers.note(messages)
        prepare(context)
        result = next(results, SUCCESS)
        if isinstance(result, Exception):
            raise result
        return result

    return OrderlyListener(listener)


class Held:
    """An orderly listener that waits until it is told how it ends."""

    def __init__(self, consumers: QueueConsumers) -> None:
        self._desk = consumers
        self.end: asyncio.Future[Any] | None = None
        self.listener = OrderlyListener(self._listen)

    async def _listen(self, messages: Any, context: ConsumeOrderlyContext) -> Any:
        self._desk.note(messages)
        self.end = asyncio.get_running_loop().create_future()
        return await self.end

    async def finish(self, result: Any = SUCCESS) -> None:
        await until(lambda: self.end is not None)
        end, self.end = self.end, None
        assert end is not None
        end.set_result(result)


@pytest.mark.row("F1")
def test_the_listeners_type_decides_between_concurrent_and_orderly() -> None:
    class Derived(OrderlyListener):
        def consume(self, messages: Any, context: ConsumeOrderlyContext, /) -> Any:
            return SUCCESS

    def plain(messages: Any, context: Any) -> Any:
        return None

    @OrderlyListener
    def marked(messages: Any, context: Any) -> Any:
        return SUCCESS

    def is_orderly(listener: Any) -> bool:
        return QueuePushConsumer("127.0.0.1:1", "g", "t", listener).consume_orderly

    assert [is_orderly(each) for each in (plain, marked, Derived())] == [False, True, True]
    with pytest.raises(TypeError, match="OrderlyListener has no listener; define consume"):
        OrderlyListener()


async def _orderly_coroutine(messages: Any, context: Any) -> Any:
    return SUCCESS


def test_a_coroutine_function_belongs_to_the_asyncio_consumer() -> None:
    with pytest.raises(TypeError, match=r"popclient\.aio\.QueuePushConsumer"):
        QueuePushConsumer("127.0.0.1:1", "g", "t", OrderlyListener(_orderly_coroutine))
    assert aio.QueuePushConsumer("127.0.0.1:1", "g", "t", OrderlyListener(_orderly_coroutine)).consume_orderly


async def test_messages_of_a_queue_come_one_after_the_other(consumers: QueueConsumers) -> None:
    held = Held(consumers)
    await consumers.server.fill(Q, "abc")
    core = await consumers.start(held.listener)
    for done in range(1, 4):
        await held.finish()
        await until(lambda done=done: consumers.offset(core) == done)
    assert consumers.calls == [["a"], ["b"], ["c"]]
    await consumers.server.fill(Q, "d")
    await held.finish()
    await until(lambda: consumers.offset(core) == 4)


@pytest.mark.row("F2")
async def test_a_queue_whose_lock_is_refused_is_tried_again_in_half_a_second(consumers: QueueConsumers) -> None:
    consumers.server.holders[OTHER] = "somebody else"
    await consumers.server.fill(Q, "a")
    core = await consumers.start(answers(consumers, iter([])))
    await until(lambda: consumers.clock.waits(0.5))
    assert Q not in core.parts.table
    await consumers.clock.advance(0.4)
    locks = len(consumers.server.requests("LockQueues"))
    await consumers.clock.advance(0.1)
    await until(lambda: len(consumers.server.requests("LockQueues")) > locks)
    assert consumers.server.pulls_of(Q) == []
    del consumers.server.holders[OTHER]
    await consumers.comes(lambda: consumers.texts == ["a"], 1)
    assert consumers.server.holders[OTHER] == core.session.client_id


@pytest.mark.row("F3")
async def test_locks_are_renewed_every_20_s_for_the_first_time_after_one(consumers: QueueConsumers) -> None:
    await consumers.start(answers(consumers, iter([])))
    await until(lambda: consumers.server.pulls_of(Q))

    def renewals() -> int:
        return sum(len(each.queues) == 2 for each in consumers.server.requests("LockQueues"))

    at = [consumers.clock.now()]
    for renewed in (1, 2, 3):
        await consumers.comes(lambda renewed=renewed: renewals() == renewed, 22)
        at.append(consumers.clock.now())
    assert [later - earlier for earlier, later in itertools.pairwise(at)] == pytest.approx([1, 20, 20], abs=1.5)


@pytest.mark.row("F3")
@pytest.mark.row("F4")
async def test_an_owner_that_cannot_renew_stops_after_30_s_and_a_lost_lock_stops_pulls(
    consumers: QueueConsumers,
) -> None:
    consumers.server.widths["%RETRY%g"] = 0
    core = await consumers.start(answers(consumers, iter([])))
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    consumers.server.answers["LockQueues"] = lambda _: legacy.LockQueuesResponse(
        status=status(pb.INTERNAL_SERVER_ERROR)
    )
    pq = dict(core.parts.owned())[Q]
    await consumers.advance(31, step=1)
    assert pq.locked and pq.is_lock_expired(consumers.clock.now())
    await consumers.server.fill(Q, "a")
    await until(lambda: pq.cached.messages == 1)
    await until(lambda: not pq.locked)  # the look before the listener is called has found it expired
    await consumers.breathe()
    assert consumers.seen == []
    # With the lock back it is taken up again: who knows whether somebody had it meanwhile.
    del consumers.server.answers["LockQueues"]
    await consumers.comes(lambda: consumers.texts == ["a"], 4)
    assert pq.dropped and not pq.locked
    # And now somebody has.
    consumers.server.holders[OTHER] = "somebody else"
    await consumers.comes(lambda: Q not in dict(core.parts.owned()), 21)
    pulls = len(consumers.server.pulls_of(Q))
    await consumers.server.fill(Q, "b")
    await consumers.advance(9, step=1)
    assert (len(consumers.server.pulls_of(Q)), consumers.texts) == (pulls, ["a"])


@pytest.mark.row("F3")
@pytest.mark.parametrize("asking", ["takes the lock", "renews the lock"])
async def test_a_lock_counts_from_the_asking_however_late_the_answer_comes(
    consumers: QueueConsumers, asking: str
) -> None:
    """The server's 60 s begin when it answers, the client's 30 s before it asks: so the client always ends first."""

    def answer_after_25_s(request: legacy.LockQueuesRequest) -> object:
        return consumers.clock.advance(25) if any(name.topic.name == "t" for name in request.queues) else None

    if asking == "takes the lock":
        consumers.server.answers["LockQueues"] = answer_after_25_s
    core = await consumers.start(answers(consumers, iter([])))
    await until(lambda: consumers.server.pulls_of(Q))
    pq = dict(core.parts.owned())[Q]
    if asking == "renews the lock":
        core._periodic._tasks.cancel()
        consumers.server.answers["LockQueues"] = answer_after_25_s
        assert core.parts.locks is not None
        await core.parts.locks.renew()
    answered = consumers.clock.now()
    assert (pq.has_lock(answered + 4.5), pq.has_lock(answered + 5.5)) == (True, False)


@pytest.mark.row("F4")
async def test_a_queue_whose_lock_is_lost_is_looked_at_again_in_3_s_until_it_is_given_up(
    consumers: QueueConsumers,
) -> None:
    core = await consumers.start(answers(consumers, iter([])))
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    dict(core.parts.owned())[Q].unlock()
    await consumers.server.fill(Q, "a")
    await until(lambda: consumers.clock.waits(3.0))
    assert (consumers.server.pulls_of(Q), consumers.texts) == ([0], [])
    await consumers.comes(lambda: consumers.texts == ["a"], 21)


@pytest.mark.row("F5")
@pytest.mark.parametrize("renewal", ["refused", "too late"])
async def test_what_was_cached_under_a_lock_that_was_lost_is_not_consumed_behind_its_next_owner(
    consumers: QueueConsumers, renewal: str
) -> None:
    results = itertools.chain([SUCCESS] * 3, itertools.repeat(SUSPEND))
    await consumers.server.fill(Q, map(str, range(10)))
    core = await consumers.start(answers(consumers, results), suspend_current_queue_time=30)
    await until(lambda: consumers.texts == ["0", "1", "2", "3"])
    # Another member takes it, consumes all, commits, and goes; ours hears of it, or was away for as long.
    core._periodic._tasks.cancel()
    consumers.server.holders[OTHER] = "somebody else"
    consumers.server.progress[Q] = 10
    assert core.parts.locks is not None
    if renewal == "refused":
        await core.parts.locks.renew()
    else:
        consumers.clock._now += 31
    del consumers.server.holders[OTHER]
    await core.parts.locks.renew()
    await consumers.comes(lambda: consumers.server.pulls_of(Q)[-1] == 10, 21)
    await consumers.server.fill(Q, ["10"])
    await consumers.wait(31)
    assert consumers.texts == ["0", "1", "2", "3", "10"]
    assert consumers.server.progress[Q] == 10  # nothing of ours was committed


@pytest.mark.row("F6")
async def test_the_listener_of_a_queue_to_be_given_up_has_20_s_from_then_on_and_its_lock_is_kept(
    consumers: QueueConsumers,
) -> None:
    consumers.server.widths["t"] = 2
    held = Held(consumers)
    second = MessageQueue("t", 1)
    await consumers.server.fill(second, "a")
    first = await consumers.start(held.listener)
    await until(lambda: consumers.texts == ["a"])
    await consumers.advance(18, step=1)  # the last renewal was 17 s ago
    other = await consumers.start(answers(consumers, iter([])), pull_loop=PullLoop(consumers.clock))
    pq = dict(first.parts.owned())[second]
    first._rebalancing.wake_at_once()
    await consumers.comes(lambda: pq.dropped, 1)
    began, renewed = consumers.clock.now(), pq.last_lock_timestamp
    await consumers.comes(lambda: pq.last_lock_timestamp > renewed, 4)
    await consumers.comes(lambda: consumers.server.holders.get(("t", 1)) == other.session.client_id, 25)
    assert consumers.clock.now() - began > 19.5
    assert second not in first.parts.table


@pytest.mark.row("F5")
async def test_the_first_pull_after_a_lock_begins_at_the_servers_progress(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    await consumers.server.fill(Q, map(str, range(120)))
    told = iter([100, 100, 40])  # the first is at the start

    def fetch(request: legacy.FetchOffsetsRequest) -> legacy.FetchOffsetsResponse:
        offsets = [
            legacy.QueueOffset(queue=name, offset=next(told, 40) if name.topic.name == "t" else -1)
            for name in request.queues
        ]
        return legacy.FetchOffsetsResponse(status=status(pb.OK), offsets=offsets)

    consumers.server.answers["FetchOffsets"] = fetch
    await consumers.start(answers(consumers, iter([])))
    await until(lambda: consumers.server.pulls_of(Q)[:1] == [40])
    assert "t:0 begins at 40, not at 100" in caplog.text


@pytest.mark.row("F6")
async def test_a_queue_is_given_up_only_when_its_listener_has_ended(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 2
    held = Held(consumers)
    second = MessageQueue("t", 1)
    await consumers.server.fill(second, "ab")
    first = await consumers.start(held.listener)
    await until(lambda: consumers.texts == ["a"])
    pq = dict(first.parts.owned())[second]
    other = await consumers.start(answers(consumers, iter([])))
    await consumers.comes(lambda: pq.try_unlock_times >= 1, 21)
    assert pq.dropped and consumers.texts == ["a"]
    assert consumers.server.holders["t", 1] == first.session.client_id
    await held.finish()
    await consumers.comes(lambda: consumers.server.holders.get(("t", 1)) == other.session.client_id, 5)
    # What the old owner had in hand when it gave up comes again; nothing came out of order, nothing at once.
    await consumers.comes(lambda: consumers.texts == ["a", "a", "b"], 5)
    assert other.session.client_id != first.session.client_id


@pytest.mark.row("F6")
async def test_a_listener_that_never_ends_is_waited_for_no_longer_than_20_s(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 2
    held = Held(consumers)
    second = MessageQueue("t", 1)
    await consumers.server.fill(second, "a")
    first = await consumers.start(held.listener)
    await until(lambda: consumers.texts == ["a"])
    other = await consumers.start(answers(consumers, iter([])))
    await consumers.comes(lambda: consumers.server.holders.get(("t", 1)) == other.session.client_id, 45)
    assert second not in first.parts.table


@pytest.mark.row("F7")
async def test_what_fails_keeps_its_place_and_comes_again_after_a_pause(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(answers(consumers, iter([SUSPEND, KeyError("a defect"), None])))
    at = []
    for calls in range(1, 5):
        await consumers.comes(lambda calls=calls: len(consumers.calls) >= calls, 2)
        at.append(consumers.clock.now())
        assert consumers.offset(core) is None or calls == 4
    assert [later - earlier for earlier, later in itertools.pairwise(at)] == pytest.approx([1, 1, 1], abs=0.3)
    await until(lambda: consumers.offset(core) == 2)
    assert consumers.texts == ["a"] * 4 + ["b"]
    assert [view.delivery_attempt for view in consumers.seen] == [4, 4, 4, 4, 1]  # one view, counted up
    assert consumers.server.sent_back == []


@pytest.mark.row("F7")
@pytest.mark.parametrize("asked, pause", [(-1, 2.0), (1, 0.01), (500, 0.5), (99_999, 30.0)])
async def test_the_pause_is_the_listeners_or_the_consumers_within_bounds(
    consumers: QueueConsumers, asked: int, pause: float
) -> None:
    def prepare(context: ConsumeOrderlyContext) -> None:
        context.suspend_current_queue_millis = asked

    await consumers.server.fill(Q, "a")
    await consumers.start(answers(consumers, iter([SUSPEND]), prepare), suspend_current_queue_time=2)
    await until(lambda: consumers.clock.waits(pause))


@pytest.mark.row("F8")
async def test_after_60_s_at_one_queue_the_others_have_their_turn(
    consumers: QueueConsumers, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async def listener(messages: Any, context: ConsumeOrderlyContext) -> Any:
        consumers.note(messages)
        await consumers.clock.advance(25)
        return SUCCESS

    await consumers.server.fill(Q, "abcd")
    await consumers.start(OrderlyListener(listener), model="BROADCASTING")
    await until(lambda: consumers.texts == ["a", "b", "c"] and consumers.clock.waits(0.01))
    await consumers.clock.advance(0.01)
    await until(lambda: consumers.texts == ["a", "b", "c", "d"])


@pytest.mark.row("F8")
async def test_one_thread_serves_two_queues_in_turn(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 2
    for queue in (0, 1):
        await consumers.server.fill(MessageQueue("t", queue), [f"{queue}{each}" for each in "abc"])
    await consumers.start(answers(consumers, iter([])), consume_threads=1)
    await until(lambda: len(consumers.seen) == 6)
    for number in "01":
        assert [text for text in consumers.texts if text[0] == number] == [f"{number}{each}" for each in "abc"]
    assert {text[0] for text in consumers.texts[:4]} == {"0", "1"}


@pytest.mark.row("F10")
async def test_broadcasting_needs_no_lock(
    consumers: QueueConsumers, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(answers(consumers, iter([])), model="BROADCASTING")
    await until(lambda: consumers.offset(core) == 2)
    assert consumers.texts == ["a", "b"]
    assert consumers.server.requests("LockQueues") == []


@pytest.mark.row("F11")
async def test_without_auto_commit_the_listener_commits_or_rolls_back(consumers: QueueConsumers) -> None:
    def prepare(context: ConsumeOrderlyContext) -> None:
        context.auto_commit = False

    await consumers.server.fill(Q, "abcd")
    results = iter([SUCCESS, SUCCESS, ROLLBACK, SUCCESS, COMMIT, SUCCESS, COMMIT])
    core = await consumers.start(answers(consumers, results, prepare))
    await until(lambda: consumers.texts == ["a", "b", "c"])
    assert consumers.offset(core) is None
    await consumers.comes(lambda: consumers.offset(core) == 4, 3)
    assert consumers.texts == ["a", "b", "c", "a", "b", "c", "d"]
    assert dict(core.parts.owned())[Q].is_empty


async def test_commit_and_rollback_count_as_success_with_auto_commit(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(answers(consumers, iter([COMMIT, ROLLBACK])))
    await until(lambda: consumers.offset(core) == 2)
    assert caplog.text.count("counts as SUCCESS") == 2


@pytest.mark.row("E16")
async def test_what_has_failed_often_enough_becomes_a_dead_letter_and_the_queue_goes_on(
    consumers: QueueConsumers,
) -> None:
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(answers(consumers, iter([SUSPEND, SUSPEND, SUSPEND])), max_reconsume_times=2)
    await consumers.comes(lambda: consumers.offset(core) == 2, 5)
    assert consumers.texts == ["a", "a", "a", "b"]
    [request] = consumers.server.sent_back
    assert (request.offset, request.delay_level, request.max_reconsume_times) == (0, -1, 2)


async def test_a_dead_letter_that_the_server_does_not_take_keeps_its_place(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "a")
    consumers.server.answers["SendBack"] = lambda _: legacy.SendBackResponse(status=status(pb.INTERNAL_SERVER_ERROR))
    core = await consumers.start(answers(consumers, iter([SUSPEND] * 3)), max_reconsume_times=1)
    await consumers.comes(lambda: len(consumers.seen) == 4, 5)
    await until(lambda: consumers.offset(core) == 1)


async def test_closing_waits_for_the_batch_and_frees_the_locks(consumers: QueueConsumers) -> None:
    held = Held(consumers)
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(held.listener)
    await until(lambda: consumers.texts == ["a"])
    closing = core.begin_closing(5)
    await held.finish()
    await closing
    assert consumers.server.progress[Q] == 1
    assert (consumers.texts, consumers.server.holders) == (["a"], {})


async def test_closing_frees_the_lock_of_a_queue_that_is_being_taken_up(consumers: QueueConsumers) -> None:
    async def answer(_: object) -> None:
        if len(consumers.server.requests("FetchOffsets")) > 1:  # the first is at the start
            await asyncio.Event().wait()

    consumers.server.answers["FetchOffsets"] = answer
    core = await consumers.start(Held(consumers).listener)
    await until(lambda: len(consumers.server.requests("FetchOffsets")) == 2)
    assert consumers.server.holders
    assert core.parts.owned() == []
    await core.begin_closing(5)
    assert consumers.server.holders == {}
