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
from tests.support.queue_consumers import Desk, Q
from tests.support.scripted_server import status, until

SUCCESS, SUSPEND = ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
COMMIT, ROLLBACK = ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK
OTHER = ("t", 0)


def answers(desk: Desk, results: Iterator[Any], prepare: Callable[[ConsumeOrderlyContext], object] = bool) -> Any:
    """A listener that notes what it gets and answers one result after the other, SUCCESS at last."""

    async def listener(messages: Any, context: ConsumeOrderlyContext) -> Any:
        desk.note(messages)
        prepare(context)
        result = next(results, SUCCESS)
        if isinstance(result, Exception):
            raise result
        return result

    return OrderlyListener(listener)


class Held:
    """An orderly listener that waits until it is told how it ends."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
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


async def test_messages_of_a_queue_come_one_after_the_other(desk: Desk) -> None:
    held = Held(desk)
    await desk.server.fill(Q, "abc")
    core = await desk.start(held.listener)
    for done in range(1, 4):
        await held.finish()
        await until(lambda done=done: desk.offset(core) == done)
    assert desk.calls == [["a"], ["b"], ["c"]]
    await desk.server.fill(Q, "d")
    await held.finish()
    await until(lambda: desk.offset(core) == 4)


@pytest.mark.row("F2")
async def test_a_queue_whose_lock_is_refused_is_tried_again_in_half_a_second(desk: Desk) -> None:
    desk.server.holders[OTHER] = "somebody else"
    await desk.server.fill(Q, "a")
    core = await desk.start(answers(desk, iter([])))
    await until(lambda: desk.clock.waits(0.5))
    assert Q not in core.parts.table
    await desk.clock.advance(0.4)
    locks = len(desk.server.requests("LockQueues"))
    await desk.clock.advance(0.1)
    await until(lambda: len(desk.server.requests("LockQueues")) > locks)
    assert desk.server.pulls_of(Q) == []
    del desk.server.holders[OTHER]
    await desk.comes(lambda: desk.texts == ["a"], 1)
    assert desk.server.holders[OTHER] == core.session.client_id


@pytest.mark.row("F3")
async def test_locks_are_renewed_every_20_s_for_the_first_time_after_one(desk: Desk) -> None:
    await desk.start(answers(desk, iter([])))
    await until(lambda: desk.server.pulls_of(Q))

    def renewals() -> int:
        return sum(len(each.queues) == 2 for each in desk.server.requests("LockQueues"))

    at = [desk.clock.now()]
    for renewed in (1, 2, 3):
        await desk.comes(lambda renewed=renewed: renewals() == renewed, 22)
        at.append(desk.clock.now())
    assert [later - earlier for earlier, later in itertools.pairwise(at)] == pytest.approx([1, 20, 20], abs=1.5)


@pytest.mark.row("F3")
@pytest.mark.row("F4")
async def test_an_owner_that_cannot_renew_stops_after_30_s_and_a_lost_lock_stops_pulls(desk: Desk) -> None:
    desk.server.widths["%RETRY%g"] = 0
    core = await desk.start(answers(desk, iter([])))
    await until(lambda: desk.server.pulls_of(Q) == [0])
    desk.server.answers["LockQueues"] = lambda _: legacy.LockQueuesResponse(status=status(pb.INTERNAL_SERVER_ERROR))
    pq = dict(core.parts.owned())[Q]
    await desk.advance(31, step=1)
    assert pq.locked and pq.is_lock_expired(desk.clock.now())
    await desk.server.fill(Q, "a")
    await until(lambda: pq.cached.messages == 1)
    await until(lambda: not pq.locked)  # the look before the listener is called has found it expired
    await desk.breathe()
    assert desk.seen == []
    # With the lock back it is taken up again: who knows whether somebody had it meanwhile.
    del desk.server.answers["LockQueues"]
    await desk.comes(lambda: desk.texts == ["a"], 4)
    assert pq.dropped and not pq.locked
    # And now somebody has.
    desk.server.holders[OTHER] = "somebody else"
    await desk.comes(lambda: Q not in dict(core.parts.owned()), 21)
    pulls = len(desk.server.pulls_of(Q))
    await desk.server.fill(Q, "b")
    await desk.advance(9, step=1)
    assert (len(desk.server.pulls_of(Q)), desk.texts) == (pulls, ["a"])


@pytest.mark.row("F3")
@pytest.mark.parametrize("asking", ["takes the lock", "renews the lock"])
async def test_a_lock_counts_from_the_asking_however_late_the_answer_comes(desk: Desk, asking: str) -> None:
    """The server's 60 s begin when it answers, the client's 30 s before it asks: so the client always ends first."""

    def answer_after_25_s(request: legacy.LockQueuesRequest) -> object:
        return desk.clock.advance(25) if any(name.topic.name == "t" for name in request.queues) else None

    if asking == "takes the lock":
        desk.server.answers["LockQueues"] = answer_after_25_s
    core = await desk.start(answers(desk, iter([])))
    await until(lambda: desk.server.pulls_of(Q))
    pq = dict(core.parts.owned())[Q]
    if asking == "renews the lock":
        core._periodic._tasks.cancel()
        desk.server.answers["LockQueues"] = answer_after_25_s
        assert core.parts.locks is not None
        await core.parts.locks.renew()
    answered = desk.clock.now()
    assert (pq.has_lock(answered + 4.5), pq.has_lock(answered + 5.5)) == (True, False)


@pytest.mark.row("F4")
async def test_a_queue_whose_lock_is_lost_is_looked_at_again_in_3_s_until_it_is_given_up(desk: Desk) -> None:
    core = await desk.start(answers(desk, iter([])))
    await until(lambda: desk.server.pulls_of(Q) == [0])
    dict(core.parts.owned())[Q].unlock()
    await desk.server.fill(Q, "a")
    await until(lambda: desk.clock.waits(3.0))
    assert (desk.server.pulls_of(Q), desk.texts) == ([0], [])
    await desk.comes(lambda: desk.texts == ["a"], 21)


@pytest.mark.row("F5")
@pytest.mark.parametrize("renewal", ["refused", "too late"])
async def test_what_was_cached_under_a_lock_that_was_lost_is_not_consumed_behind_its_next_owner(
    desk: Desk, renewal: str
) -> None:
    results = itertools.chain([SUCCESS] * 3, itertools.repeat(SUSPEND))
    await desk.server.fill(Q, map(str, range(10)))
    core = await desk.start(answers(desk, results), suspend_current_queue_time=30)
    await until(lambda: desk.texts == ["0", "1", "2", "3"])
    # Another member takes it, consumes all, commits, and goes; ours hears of it, or was away for as long.
    core._periodic._tasks.cancel()
    desk.server.holders[OTHER] = "somebody else"
    desk.server.progress[Q] = 10
    assert core.parts.locks is not None
    if renewal == "refused":
        await core.parts.locks.renew()
    else:
        desk.clock._now += 31
    del desk.server.holders[OTHER]
    await core.parts.locks.renew()
    await desk.comes(lambda: desk.server.pulls_of(Q)[-1] == 10, 21)
    await desk.server.fill(Q, ["10"])
    await desk.wait(31)
    assert desk.texts == ["0", "1", "2", "3", "10"]
    assert desk.server.progress[Q] == 10  # nothing of ours was committed


@pytest.mark.row("F6")
async def test_the_listener_of_a_queue_to_be_given_up_has_20_s_from_then_on_and_its_lock_is_kept(desk: Desk) -> None:
    desk.server.widths["t"] = 2
    held = Held(desk)
    second = MessageQueue("t", 1)
    await desk.server.fill(second, "a")
    first = await desk.start(held.listener)
    await until(lambda: desk.texts == ["a"])
    await desk.advance(18, step=1)  # the last renewal was 17 s ago
    other = await desk.start(answers(desk, iter([])), pull_loop=PullLoop(desk.clock))
    pq = dict(first.parts.owned())[second]
    first._rebalancing.wake_at_once()
    await desk.comes(lambda: pq.dropped, 1)
    began, renewed = desk.clock.now(), pq.last_lock_timestamp
    await desk.comes(lambda: pq.last_lock_timestamp > renewed, 4)
    await desk.comes(lambda: desk.server.holders.get(("t", 1)) == other.session.client_id, 25)
    assert desk.clock.now() - began > 19.5
    assert second not in first.parts.table


@pytest.mark.row("F5")
async def test_the_first_pull_after_a_lock_begins_at_the_servers_progress(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    await desk.server.fill(Q, map(str, range(120)))
    told = iter([100, 100, 40])  # the first is at the start

    def fetch(request: legacy.FetchOffsetsRequest) -> legacy.FetchOffsetsResponse:
        offsets = [
            legacy.QueueOffset(queue=name, offset=next(told, 40) if name.topic.name == "t" else -1)
            for name in request.queues
        ]
        return legacy.FetchOffsetsResponse(status=status(pb.OK), offsets=offsets)

    desk.server.answers["FetchOffsets"] = fetch
    await desk.start(answers(desk, iter([])))
    await until(lambda: desk.server.pulls_of(Q)[:1] == [40])
    assert "t:0 begins at 40, not at 100" in caplog.text


@pytest.mark.row("F6")
async def test_a_queue_is_given_up_only_when_its_listener_has_ended(desk: Desk) -> None:
    desk.server.widths["t"] = 2
    held = Held(desk)
    second = MessageQueue("t", 1)
    await desk.server.fill(second, "ab")
    first = await desk.start(held.listener)
    await until(lambda: desk.texts == ["a"])
    pq = dict(first.parts.owned())[second]
    other = await desk.start(answers(desk, iter([])))
    await desk.comes(lambda: pq.try_unlock_times >= 1, 21)
    assert pq.dropped and desk.texts == ["a"]
    assert desk.server.holders["t", 1] == first.session.client_id
    await held.finish()
    await desk.comes(lambda: desk.server.holders.get(("t", 1)) == other.session.client_id, 5)
    # What the old owner had in hand when it gave up comes again; nothing came out of order, nothing at once.
    await desk.comes(lambda: desk.texts == ["a", "a", "b"], 5)
    assert other.session.client_id != first.session.client_id


@pytest.mark.row("F6")
async def test_a_listener_that_never_ends_is_waited_for_no_longer_than_20_s(desk: Desk) -> None:
    desk.server.widths["t"] = 2
    held = Held(desk)
    second = MessageQueue("t", 1)
    await desk.server.fill(second, "a")
    first = await desk.start(held.listener)
    await until(lambda: desk.texts == ["a"])
    other = await desk.start(answers(desk, iter([])))
    await desk.comes(lambda: desk.server.holders.get(("t", 1)) == other.session.client_id, 45)
    assert second not in first.parts.table


@pytest.mark.row("F7")
async def test_what_fails_keeps_its_place_and_comes_again_after_a_pause(desk: Desk) -> None:
    await desk.server.fill(Q, "ab")
    core = await desk.start(answers(desk, iter([SUSPEND, KeyError("a defect"), None])))
    at = []
    for calls in range(1, 5):
        await desk.comes(lambda calls=calls: len(desk.calls) >= calls, 2)
        at.append(desk.clock.now())
        assert desk.offset(core) is None or calls == 4
    assert [later - earlier for earlier, later in itertools.pairwise(at)] == pytest.approx([1, 1, 1], abs=0.3)
    await until(lambda: desk.offset(core) == 2)
    assert desk.texts == ["a"] * 4 + ["b"]
    assert [view.delivery_attempt for view in desk.seen] == [4, 4, 4, 4, 1]  # one view, counted up
    assert desk.server.sent_back == []


@pytest.mark.row("F7")
@pytest.mark.parametrize("asked, pause", [(-1, 2.0), (1, 0.01), (500, 0.5), (99_999, 30.0)])
async def test_the_pause_is_the_listeners_or_the_consumers_within_bounds(desk: Desk, asked: int, pause: float) -> None:
    def prepare(context: ConsumeOrderlyContext) -> None:
        context.suspend_current_queue_millis = asked

    await desk.server.fill(Q, "a")
    await desk.start(answers(desk, iter([SUSPEND]), prepare), suspend_current_queue_time=2)
    await until(lambda: desk.clock.waits(pause))


@pytest.mark.row("F8")
async def test_after_60_s_at_one_queue_the_others_have_their_turn(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    async def listener(messages: Any, context: ConsumeOrderlyContext) -> Any:
        desk.note(messages)
        await desk.clock.advance(25)
        return SUCCESS

    await desk.server.fill(Q, "abcd")
    await desk.start(OrderlyListener(listener), model="BROADCASTING")
    await until(lambda: desk.texts == ["a", "b", "c"] and desk.clock.waits(0.01))
    await desk.clock.advance(0.01)
    await until(lambda: desk.texts == ["a", "b", "c", "d"])


@pytest.mark.row("F8")
async def test_one_thread_serves_two_queues_in_turn(desk: Desk) -> None:
    desk.server.widths["t"] = 2
    for queue in (0, 1):
        await desk.server.fill(MessageQueue("t", queue), [f"{queue}{each}" for each in "abc"])
    await desk.start(answers(desk, iter([])), consume_threads=1)
    await until(lambda: len(desk.seen) == 6)
    for number in "01":
        assert [text for text in desk.texts if text[0] == number] == [f"{number}{each}" for each in "abc"]
    assert {text[0] for text in desk.texts[:4]} == {"0", "1"}


@pytest.mark.row("F10")
async def test_broadcasting_needs_no_lock(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    await desk.server.fill(Q, "ab")
    core = await desk.start(answers(desk, iter([])), model="BROADCASTING")
    await until(lambda: desk.offset(core) == 2)
    assert desk.texts == ["a", "b"]
    assert desk.server.requests("LockQueues") == []


@pytest.mark.row("F11")
async def test_without_auto_commit_the_listener_commits_or_rolls_back(desk: Desk) -> None:
    def prepare(context: ConsumeOrderlyContext) -> None:
        context.auto_commit = False

    await desk.server.fill(Q, "abcd")
    results = iter([SUCCESS, SUCCESS, ROLLBACK, SUCCESS, COMMIT, SUCCESS, COMMIT])
    core = await desk.start(answers(desk, results, prepare))
    await until(lambda: desk.texts == ["a", "b", "c"])
    assert desk.offset(core) is None
    await desk.comes(lambda: desk.offset(core) == 4, 3)
    assert desk.texts == ["a", "b", "c", "a", "b", "c", "d"]
    assert dict(core.parts.owned())[Q].is_empty


async def test_commit_and_rollback_count_as_success_with_auto_commit(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    await desk.server.fill(Q, "ab")
    core = await desk.start(answers(desk, iter([COMMIT, ROLLBACK])))
    await until(lambda: desk.offset(core) == 2)
    assert caplog.text.count("counts as SUCCESS") == 2


@pytest.mark.row("E16")
async def test_what_has_failed_often_enough_becomes_a_dead_letter_and_the_queue_goes_on(desk: Desk) -> None:
    await desk.server.fill(Q, "ab")
    core = await desk.start(answers(desk, iter([SUSPEND, SUSPEND, SUSPEND])), max_reconsume_times=2)
    await desk.comes(lambda: desk.offset(core) == 2, 5)
    assert desk.texts == ["a", "a", "a", "b"]
    [request] = desk.server.sent_back
    assert (request.offset, request.delay_level, request.max_reconsume_times) == (0, -1, 2)


async def test_a_dead_letter_that_the_server_does_not_take_keeps_its_place(desk: Desk) -> None:
    await desk.server.fill(Q, "a")
    desk.server.answers["SendBack"] = lambda _: legacy.SendBackResponse(status=status(pb.INTERNAL_SERVER_ERROR))
    core = await desk.start(answers(desk, iter([SUSPEND] * 3)), max_reconsume_times=1)
    await desk.comes(lambda: len(desk.seen) == 4, 5)
    await until(lambda: desk.offset(core) == 1)


async def test_closing_waits_for_the_batch_and_frees_the_locks(desk: Desk) -> None:
    held = Held(desk)
    await desk.server.fill(Q, "ab")
    core = await desk.start(held.listener)
    await until(lambda: desk.texts == ["a"])
    closing = core.begin_closing(5)
    await held.finish()
    await closing
    assert desk.server.progress[Q] == 1
    assert (desk.texts, desk.server.holders) == (["a"], {})


async def test_closing_frees_the_lock_of_a_queue_that_is_being_taken_up(desk: Desk) -> None:
    async def answer(_: object) -> None:
        if len(desk.server.requests("FetchOffsets")) > 1:  # the first is at the start
            await asyncio.Event().wait()

    desk.server.answers["FetchOffsets"] = answer
    core = await desk.start(Held(desk).listener)
    await until(lambda: len(desk.server.requests("FetchOffsets")) == 2)
    assert desk.server.holders
    assert core.parts.owned() == []
    await core.begin_closing(5)
    assert desk.server.holders == {}
