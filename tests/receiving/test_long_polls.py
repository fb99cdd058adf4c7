"""Parked polls and what wakes them; the clock stands still unless the test moves it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import structlog

from popserver.engine import wakeups
from popserver.engine.wakeups import PollKey
from popserver.model.errors import CommitUnknown, Internal, TooManyRequests
from popserver.model.names import Resource
from popserver.model.retry import RetryPolicy
from popserver.model.states import State
from popserver.receiving import flow, scan
from popserver.receiving.batch import Receive, Received
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.running_broker import RunningBroker, ids, running_broker, unheard_commit, until, watched

SECOND = 1_000


@pytest.mark.row("A4")
@pytest.mark.row("A5")
async def test_an_empty_poll_is_answered_at_its_limit_and_not_before(broker: RunningBroker) -> None:
    poll = await broker.poll(poll_ms=15 * SECOND)
    for _ in range(2):
        await broker.advance(5 * SECOND)
        assert not poll.done()
    await broker.advance(5 * SECOND - 1)
    assert not poll.done()
    await broker.advance(1)
    assert await poll == []
    assert broker.parked == 0


@pytest.mark.row("A4")
async def test_with_a_backlog_it_is_answered_at_once(broker: RunningBroker) -> None:
    (sent,) = await broker.send()
    assert ids(await broker.receive(poll_ms=15 * SECOND)) == [sent.message_id]


@pytest.mark.row("A6")
async def test_a_new_message_wakes_it(either_broker: RunningBroker) -> None:
    poll = await either_broker.poll()
    await either_broker.advance(3 * SECOND)
    (sent,) = await either_broker.send()
    assert ids(await poll) == [sent.message_id]
    assert either_broker.clock.now_ms() % (60 * SECOND) == 3 * SECOND, "at once, not at some beat"


@pytest.mark.row("A7")
async def test_a_message_its_filter_refuses_leaves_it_parked(broker: RunningBroker) -> None:
    poll = await broker.poll(wanted="B")
    await broker.send([a_message(tag="A")])
    await until(lambda: broker.parked == 1)
    await broker.broker.settle()
    assert not poll.done()
    (wanted,) = await broker.send([a_message(tag="B")])
    assert ids(await poll) == [wanted.message_id]


@pytest.mark.row("A7")
async def test_refused_messages_do_not_lengthen_its_stay(broker: RunningBroker) -> None:
    poll = await broker.poll(wanted="B", poll_ms=15 * SECOND)
    await broker.advance(14 * SECOND)
    await broker.send([a_message(tag="A")])
    await until(lambda: broker.parked == 1)
    await broker.advance(1 * SECOND)
    assert await poll == []


@pytest.mark.row("A10")
async def test_the_end_of_a_hold_wakes_it(either_broker: RunningBroker) -> None:
    await either_broker.send()
    await either_broker.receive(invisible_ms=10 * SECOND)
    poll = await either_broker.poll()
    await either_broker.advance(10 * SECOND - 1)
    assert not poll.done()
    await either_broker.advance(1)
    assert [each.attempt for each in await poll] == [2]


@pytest.mark.row("A10")
async def test_a_retry_that_is_due_wakes_it(broker: RunningBroker) -> None:
    await broker.send()
    (held,) = await broker.receive(push=True)
    poll = await broker.poll()
    await broker.change(held, 5 * SECOND)
    await broker.advance(5 * SECOND - 1)
    assert not poll.done()
    await broker.advance(1)
    assert [each.attempt for each in await poll] == [2]


async def test_a_message_given_back_wakes_it(broker: RunningBroker) -> None:
    await broker.send()
    (held,) = await broker.receive()
    poll = await broker.poll()
    await broker.change(held, 0, give_back=True)
    assert [each.attempt for each in await poll] == [1]


async def test_a_dead_letter_wakes_the_poll_on_its_topic(broker: RunningBroker) -> None:
    await broker.group(retry=RetryPolicy(max_attempts=1))
    dead_letters = Resource("", "%DLQ%billing")
    poll = await broker.poll(topic=dead_letters, group=Resource("", "undertakers"))
    (sent,) = await broker.send()
    await broker.receive(invisible_ms=SECOND)
    await broker.advance(SECOND)
    (dead,) = await poll
    assert dead.stored.dead_letter_of == ("orders", sent.message_id)


async def test_a_queue_added_while_it_is_parked(broker: RunningBroker) -> None:
    await broker.topic()
    poll = await broker.poll()
    await broker.broker.catalog.update_topic(TOPIC, queue_count=8)
    assert await poll == [], "its client asks again, and then the poll knows the topic as it is"
    poll = await broker.poll()
    (sent,) = await broker.send()
    assert ids(await poll) == [sent.message_id]


async def test_each_group_is_woken(broker: RunningBroker) -> None:
    polls = [await broker.poll(group=Resource("", name)) for name in ("a", "b", "c")]
    (sent,) = await broker.send()
    assert [ids(each) for each in await asyncio.gather(*polls)] == [[sent.message_id]] * 3


async def test_another_topics_message_wakes_nobody(broker: RunningBroker) -> None:
    poll = await broker.poll()
    other = Resource("", "other")
    await broker.send([a_message(other)])
    await broker.broker.settle()
    assert not poll.done()
    assert broker.broker.engine.wakeups.wake_number(poll_topic_id(broker)) == 0
    await broker.advance(15 * SECOND)
    assert await poll == []


def poll_topic_id(broker: RunningBroker) -> int:
    return broker.broker.catalog._topics[TOPIC].topic_id


async def test_one_message_one_poll_is_woken_and_passes_on_what_it_leaves(broker: RunningBroker) -> None:
    polls = [await broker.poll(batch_size=1, client_id=f"c{n}") for n in range(5)]
    await broker.send(3)
    await until(lambda: sum(each.done() for each in polls) == 3)
    await until(lambda: broker.parked == 2)  # the next one was woken too, for what may have been left
    assert [each.done() for each in polls] == [True, True, True, False, False], "the longest waiting first"


async def test_an_idle_poll_that_comes_again_does_not_ask_the_store(broker: RunningBroker) -> None:
    await broker.receive()
    asked: list[object] = []
    receive = broker.broker.consuming.polls._take
    broker.broker.consuming.polls._take = lambda *given: asked.append(given) or receive(*given)  # type: ignore[method-assign]
    for _ in range(5):
        assert await broker.receive() == []
    assert asked == []
    await broker.send()
    assert len(await broker.receive()) == len(asked) == 1


@pytest.mark.row("A8")
@pytest.mark.parametrize(("cost_ms", "warnings"), [(5 * SECOND, 0), (5 * SECOND + 1, 1)])
async def test_a_look_that_takes_too_long_is_logged(broker: RunningBroker, cost_ms: int, warnings: int) -> None:
    await broker.receive()
    await broker.send()
    with (
        structlog.testing.capture_logs() as logs,
        watched(
            broker.broker.engine.database,
            "COMMIT",
            lambda: setattr(broker.clock, "_now_ms", broker.clock.now_ms() + cost_ms),
        ),
    ):
        await broker.receive()
    assert [(each["log_level"], each["cost_ms"], each["group"]) for each in logs] == [
        ("warning", cost_ms, "billing")
    ] * warnings


@pytest.mark.row("A9")
async def test_the_1025th_poll_of_a_group_on_a_topic_is_answered(broker: RunningBroker) -> None:
    await broker.poll()
    polls = [asyncio.create_task(broker.receive(poll_ms=15 * SECOND)) for _ in range(1_023)]
    await until(lambda: broker.parked == wakeups.PARKED_PER_TOPIC_AND_GROUP_MAX)
    with pytest.raises(
        TooManyRequests, match=r"1024 polls are waiting, too many for group 'billing' on topic 'orders'"
    ):
        await broker.receive(poll_ms=15 * SECOND)
    other = await broker.poll(group=Resource("", "other"))
    assert broker.parked == 1_025
    await broker.broker.drain()
    assert [await each for each in (*polls, other)] == [[]] * 1_024


async def test_all_groups_together_have_a_limit_too(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "PARKED_MAX", 2)
    polls = [await broker.poll(group=Resource("", name)) for name in ("a", "b")]
    with pytest.raises(TooManyRequests):
        await broker.receive(group=Resource("", "c"), poll_ms=SECOND)
    await broker.advance(15 * SECOND)
    assert [await each for each in polls] == [[], []]


async def test_draining_answers_every_poll_empty_and_parks_none(broker: RunningBroker) -> None:
    polls = [await broker.poll(client_id=f"c{n}") for n in range(3)]
    await broker.broker.drain()
    assert [await each for each in polls] == [[]] * 3
    assert await broker.receive(poll_ms=15 * SECOND) == []


async def test_messages_its_filter_refuses_do_not_keep_it_beyond_its_limit(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another goes on where it stops."""
    monkeypatch.setattr(scan, "WINDOW_OFFSETS", 2)
    await broker.topic(queues=1)
    waiting = await broker.poll(wanted="B", client_id="waiting")
    looks = 0

    def time_passes() -> None:
        nonlocal looks
        looks += 1
        broker.clock._now_ms += SECOND

    with watched(broker.broker.engine.database, "UPDATE progress", time_passes):
        await broker.send([a_message(tag="A") for _ in range(20)] + [a_message(tag="B")])
        assert await broker.receive(wanted="B", poll_ms=3 * SECOND, client_id="hasty") == []
        assert len(await waiting) == 1
    assert looks == 11


async def test_a_receive_that_does_not_wait_searches_on_if_its_filter_refuses_many(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "WINDOW_OFFSETS", 2)
    (*_, wanted) = await broker.send([a_message(tag="A") for _ in range(20)] + [a_message(tag="B")])
    assert ids(await broker.receive(wanted="B")) == [wanted.message_id]


async def test_but_not_for_ever(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "WINDOW_OFFSETS", 2)
    await broker.send([a_message(tag="A") for _ in range(40)] + [a_message(tag="B")])

    looks: list[int] = []

    def time_passes() -> None:
        looks.append(broker.clock.now_ms())
        broker.clock._now_ms += flow.SEARCH_MS // 5

    with watched(broker.broker.engine.database, "UPDATE progress", time_passes):
        assert await broker.receive(wanted="B") == []
    assert looks[-1] - looks[0] == flow.SEARCH_MS, "no search begins later"


@pytest.mark.parametrize("is_locked", [True, False])
async def test_where_all_is_locked_it_looks_at_each_queue_and_then_pauses(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    await broker.topic(queues=3)
    searches: list[int] = []
    pauses: list[int] = []

    submit = broker.broker.engine.writer.submit

    async def search(request: Any, **more: Any) -> Any:
        if not isinstance(request, Receive):
            return await submit(request, **more)
        assert more == {"answers": 32, "frames": 32}
        searches.append(request.searches)
        return Received([], more=len(searches) < 8, is_locked=is_locked)

    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds == flow.LOCKED_PAUSE_S:
            pauses.append(len(searches))
        await sleep(0)

    monkeypatch.setattr(broker.broker.engine.writer, "submit", search)
    monkeypatch.setattr(asyncio, "sleep", pause)
    assert await broker.receive() == []
    assert searches == [*range(8)]
    assert pauses == ([3, 6] if is_locked else [])


async def test_it_waits_for_memory_before_it_looks(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await broker.receive() == []
    (first,) = await broker.send()
    submit, searches = broker.broker.engine.writer.submit, []

    async def search(request: Any, **more: Any) -> Any:
        searches.extend([request] if isinstance(request, Receive) else [])
        return await submit(request, **more)

    monkeypatch.setattr(broker.broker.engine.writer, "submit", search)
    undelivered, limit = broker.broker.engine.undelivered, broker.broker.engine.budgets["undelivered"].limit
    undelivered.carry(limit)
    receive = asyncio.create_task(broker.receive(poll_ms=15 * SECOND))
    (second,) = await broker.send()
    assert searches == [], "a later request was answered"
    undelivered.carried(limit)
    assert set(ids(await receive)) == {first.message_id, second.message_id}


@pytest.mark.parametrize("wanted", ["*", "A || B"])
async def test_the_memory_of_its_filter_is_counted_while_it_waits(broker: RunningBroker, wanted: str) -> None:
    used = broker.broker.engine.budgets["filters"]
    poll = await broker.poll(wanted=wanted)
    assert (used.used > 0) is (wanted != "*")
    await broker.broker.drain()
    assert await poll == []
    assert used.used == 0


@pytest.mark.row("K9")
@pytest.mark.parametrize("is_repeated", [False, True])
async def test_one_whose_answer_does_not_fit_into_the_transaction_has_the_next(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, is_repeated: bool
) -> None:
    """Otherwise its client would take "no message" for the answer, and the messages would stay held."""
    await broker.send(3)
    if is_repeated:
        await broker.receive(attempt_id="a")
    rooms = iter([0])
    monkeypatch.setattr(broker.broker.engine.writer, "_answer_capacity", lambda: next(rooms, 1_000_000))
    assert [each.attempt for each in await broker.receive(attempt_id="a")] == [1, 1, 1]


@pytest.mark.parametrize("end", ["it is cancelled", "its look fails"])
async def test_a_woken_poll_that_dies_hands_on_what_it_was_woken_for(broker: RunningBroker, end: str) -> None:
    dying, next_one = await broker.poll(client_id="dying"), await broker.poll(client_id="next")
    look, looking = broker.broker.consuming.polls._take, asyncio.Event()

    async def die(_request: Receive, _key: PollKey) -> Received:
        broker.broker.consuming.polls._take = look  # type: ignore[method-assign]
        looking.set()
        if end == "its look fails":
            raise Internal
        return await asyncio.Future()

    broker.broker.consuming.polls._take = die  # type: ignore[method-assign, assignment]
    (sent,) = await broker.send()
    await looking.wait()
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    async with asyncio.timeout(60):
        assert ids(await next_one) == [sent.message_id]


async def test_a_beat_is_handed_on_as_a_beat(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at a beat may fail without an end of the wait."""
    monkeypatch.setattr(wakeups, "BEAT_POLLS_MAX", 1)
    dying, next_one = await broker.poll(client_id="dying"), await broker.poll(client_id="next")
    looks: list[str] = []
    look = broker.broker.consuming.polls._take

    async def fail(request: Receive, _key: PollKey) -> Received:
        looks.append(request.client_id)
        if len(looks) == 1:
            return await asyncio.Future()
        raise Internal

    monkeypatch.setattr(broker.broker.consuming.polls, "_take", fail)
    await broker.advance(5 * SECOND)
    await until(lambda: looks == ["dying"])
    dying.cancel()
    await until(lambda: looks == ["dying", "next"])
    monkeypatch.setattr(broker.broker.consuming.polls, "_take", look)
    (sent,) = await broker.send()
    assert ids(await next_one) == [sent.message_id]


async def test_what_a_receive_may_have_been_granted_comes_again_soon(sqlite_url: str) -> None:
    """Its COMMIT was done, but nobody heard of it: the hold would last for an hour."""
    async with running_broker(sqlite_url) as broker:
        await broker.send()
        await broker.broker.catalog.subscription(GROUP, TOPIC)
        unheard_commit(broker.broker)
        with pytest.raises(CommitUnknown):
            await broker.receive(invisible_ms=3_600_000)
        await broker.broker.settle()
        assert [each.attempt for each in await broker.receive()] == [1], "nobody can have begun with it"


class TestAClientThatLeaves:
    async def test_while_parked_it_wakes_nobody_and_holds_nothing(self, broker: RunningBroker) -> None:
        gone, here = await broker.poll(client_id="gone"), await broker.poll(client_id="here")
        gone.cancel()
        await until(lambda: broker.parked == 1)
        (sent,) = await broker.send()
        assert ids(await here) == [sent.message_id]

    async def test_just_as_it_was_woken_it_hands_the_ring_on(self, broker: RunningBroker) -> None:
        gone, here = await broker.poll(client_id="gone"), await broker.poll(client_id="here")
        seat_topic = poll_topic_id(broker)
        (sent,) = await broker.send()
        # The send has rung for `gone`; or it has not yet run on: either way the message must reach `here`.
        broker.broker.engine.wakeups.wake(seat_topic)
        gone.cancel()
        if gone.done() and not gone.cancelled():
            assert ids(await gone) == [sent.message_id]
        else:
            await broker.advance(SECOND)
            assert ids(await here) == [sent.message_id]

    @pytest.mark.parametrize("is_heard", [True, False])
    async def test_while_its_grant_is_being_committed_the_messages_come_back(
        self, sqlite_url: str, is_heard: bool
    ) -> None:
        """Also if the COMMIT is done and nobody hears of it."""
        reached, gate = threading.Event(), threading.Event()

        def hold_the_commit() -> None:
            reached.set()
            gate.wait(60)

        async with running_broker(sqlite_url) as broker:
            (sent,) = await broker.send()
            await broker.broker.catalog.subscription(GROUP, TOPIC)
            if not is_heard:
                unheard_commit(broker.broker)
            with watched(broker.broker.engine.database, "COMMIT", hold_the_commit):
                poll = asyncio.create_task(broker.receive(invisible_ms=3_600_000))
                await until(reached.is_set)
                poll.cancel()
                await asyncio.gather(poll, return_exceptions=True)
                gate.set()
                await broker.broker.settle()
            assert set((await broker.states()).values()) == {State.READY}
            (again,) = await broker.receive()
            assert (again.stored.message.message_id, again.attempt) == (sent.message_id, 1), "nobody ever got it"
