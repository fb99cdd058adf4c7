"""What ends a wait besides a message: the beat that finds what a wake-up lost, and the end of what is waited for."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from popserver.catalog import groups
from popserver.engine import wakeups
from popserver.lite.flow import LiteAction
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, StoreUnavailable, TopicNotFound
from popserver.model.group import Group, LiteModel, Mode, NewGroup
from popserver.model.names import Resource, dead_letter_topic
from popserver.model.topic import MessageType, NewTopic, Topic
from popserver.pulling.rules import PullStatus
from tests.pulling.test_held_pulls import held, pull
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.lite_broker import lite_messages
from tests.support.running_broker import RunningBroker, ids, running_broker, until
from tests.support.several_brokers import SeveralBrokers

pytestmark = pytest.mark.timeout(14)  # a wait that is broken may have no end

SECOND = 1_000
LONG_MS = 120 * SECOND  # also of real time: a wait that ends before has been ended


def lose_wakeups(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.broker.engine.writer.effects, "ready", lambda _topic_ids: None)


def by_this_clock_alone(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits end by the test's clock, and not in real time too, where a second is short."""
    monkeypatch.setattr(broker.clock, "call_at_deadline", broker.clock.call_at)


# The beat.


@pytest.mark.row("A5")
async def test_a_receive_finds_at_the_beat_what_a_lost_wakeup_told(
    either_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = await either_broker.poll(poll_ms=20 * SECOND)
    lose_wakeups(either_broker, monkeypatch)
    (sent,) = await either_broker.send()
    await either_broker.advance(5 * SECOND - 1)
    assert not poll.done()
    await either_broker.advance(1)
    assert ids(await poll) == [sent.message_id]


@pytest.mark.row("A5")
async def test_a_repeated_receive_does_so_too(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls that are shorter than the beat: the server remembers that there was nothing, and not for long."""
    assert await broker.receive() == []
    lose_wakeups(broker, monkeypatch)
    (sent,) = await broker.send()
    assert await broker.receive() == []
    await broker.advance(5 * SECOND)
    assert ids(await broker.receive()) == [sent.message_id]


def have_ended(polls: list[asyncio.Task[Any]], count: int) -> bool:
    return sum(each.done() for each in polls) == count


async def test_a_beat_does_not_ask_again_while_it_gets_no_answer(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topic()
    poll = await broker.poll(poll_ms=LONG_MS)
    answers: list[Resource] = []
    is_there = False

    async def check_again(_group: Group, topic: Topic) -> None:
        if not is_there:
            raise StoreUnavailable("gone")
        answers.append(topic.name)

    monkeypatch.setattr(broker.broker.catalog, "check_again", check_again)
    for _ in range(3):
        await broker.advance(5 * SECOND)
    is_there = True
    await broker.advance(4 * SECOND)
    assert answers == [TOPIC]
    poll.cancel()


@pytest.mark.row("A5")
async def test_a_beat_asks_for_some_of_many_polls_in_turn(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its turn within one round, also if others end meanwhile, by what they found or because they left."""
    monkeypatch.setattr(wakeups, "BEAT_POLLS_MAX", 2)
    names = [Resource("", f"g{number}") for number in range(8)]
    polls = [await broker.poll(group=each, poll_ms=LONG_MS) for each in names]
    lose_wakeups(broker, monkeypatch)
    (sent,) = await broker.send()
    for turn in (polls[0:2], polls[2:4], polls[5:7], polls[7:]):
        waiting = [each for each in polls if not each.done() and each not in turn]
        await broker.advance(5 * SECOND)
        for each in turn:
            assert ids(await ended(each)) == [sent.message_id]
        assert not any(each.done() for each in waiting)
        polls[4].cancel()
        await until(polls[4].done)
    assert broker.parked == 0


@pytest.mark.row("A5")
async def test_a_beat_asks_for_those_first_that_have_not_looked_for_longest(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none finds anything, and all wait on."""
    monkeypatch.setattr(wakeups, "BEAT_POLLS_MAX", 2)
    names = [Resource("", f"g{number}") for number in range(5)]
    polls = [await broker.poll(group=each, poll_ms=LONG_MS) for each in names]
    asked: list[str] = []
    ask = broker.broker.consuming.polls._search

    async def noted(request: Any, *more: Any) -> Any:
        asked.append(request.group.name.name)
        return await ask(request, *more)

    monkeypatch.setattr(broker.broker.consuming.polls, "_search", noted)
    for beat in range(1, 6):
        await broker.advance(5 * SECOND)
        await until(lambda: len(asked) == 2 * beat and broker.parked == 5)  # noqa: B023
    assert asked == [f"g{number % 5}" for number in range(10)]
    for each in polls:
        each.cancel()


@pytest.mark.row("A5")
async def test_a_held_pull_finds_at_the_beat_what_a_lost_wakeup_told(
    either_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await either_broker.topic()
    waiting = await held(either_broker, poll_ms=15 * SECOND)
    lose_wakeups(either_broker, monkeypatch)
    await either_broker.send()
    await either_broker.advance(5 * SECOND - 1)
    assert not waiting.done()
    await either_broker.advance(1)
    pulled = await waiting
    assert (pulled.status, len(pulled.messages)) == (PullStatus.FOUND, 1)


@pytest.mark.row("A5")
async def test_a_beat_without_the_store_ends_no_wait(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.topic()
    polls = [await broker.poll(poll_ms=LONG_MS) for _ in range(2)]
    waiting = await held(broker, poll_ms=LONG_MS)
    looks = 0

    async def gone(*_: Any, **__: Any) -> Any:
        nonlocal looks
        looks += 1
        raise StoreUnavailable("gone")

    with monkeypatch.context() as without_store:
        without_store.setattr(broker.broker.consuming.polls, "_take", gone)
        without_store.setattr(broker.broker.consuming.pulls.parked, "_ends_of", gone)
        await broker.advance(5 * SECOND)
        await until(lambda: looks == 2)
        await until(lambda: broker.parked == 2)
        await broker.advance(5 * SECOND)
        await until(lambda: looks == 4)
    await until(lambda: broker.parked == 2)
    assert not any(each.done() for each in [*polls, waiting])
    lose_wakeups(broker, monkeypatch)
    await broker.send()
    await broker.advance(5 * SECOND)
    await until(partial(have_ended, [*polls, waiting], 2))


@pytest.mark.row("A5")
async def test_without_long_polling_a_pull_waits_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(long_polling=False) as broker:
        by_this_clock_alone(broker, monkeypatch)
        await broker.topic()
        waiting = await held(broker, poll_ms=15 * SECOND)
        await broker.send()
        await broker.broker.settle()
        assert not waiting.done(), "no wake-up: it is looked at on the beat"
        await broker.advance(SECOND - 1)
        assert not waiting.done()
        await broker.advance(1)
        assert broker.broker.consuming.pulls.parked.count == 0, "by the clock that the test moves"
        assert (await waiting).status in (PullStatus.FOUND, PullStatus.NO_NEW_MSG)
        assert len((await pull(broker)).messages) == 1


@pytest.mark.row("A5")
async def test_without_long_polling_the_beat_comes_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(long_polling=False) as broker:
        by_this_clock_alone(broker, monkeypatch)
        await broker.topic()
        first = await held(broker, poll_ms=15 * SECOND)
        await broker.advance(400)
        second = await held(broker, poll_ms=15 * SECOND)
        await broker.send()
        await broker.advance(599)
        assert not first.done()
        assert not second.done()
        await broker.advance(1)
        await broker.advance(SECOND)
        assert (await ended(second)).status is PullStatus.FOUND


# The end of what is waited for.


async def ended(task: asyncio.Task[Any]) -> Any:
    """Its answer, which comes though the clock stands still."""
    return await asyncio.wait_for(task, 20)


async def delete_topic(broker: RunningBroker) -> None:
    await broker.broker.catalog.delete_topic(TOPIC)


async def delete_group(broker: RunningBroker) -> None:
    await broker.broker.catalog.delete_group(GROUP)


async def add_queues(broker: RunningBroker) -> None:
    await broker.broker.catalog.update_topic(TOPIC, queue_count=4)


async def change_group(broker: RunningBroker) -> None:
    await broker.broker.catalog.update_group(groups.UpdateGroup(GROUP, max_attempts=3))


async def change_users(broker: RunningBroker) -> None:
    broker.broker.sessions.waits.change_all()


ENDS = [delete_topic, delete_group, add_queues, change_group]


@pytest.mark.parametrize("end", [*ENDS, change_users])
async def test_it_ends_a_receive(either_broker: RunningBroker, end: Any) -> None:
    await either_broker.topic()
    poll = await either_broker.poll(poll_ms=LONG_MS)
    await end(either_broker)
    assert await ended(poll) == []
    assert either_broker.parked == 0
    again = await either_broker.poll(poll_ms=LONG_MS)
    (sent,) = await either_broker.send()
    assert ids(await ended(again)) == [sent.message_id]


@pytest.mark.parametrize("end", ENDS)
async def test_it_ends_a_receive_at_another_server(servers: SeveralBrokers, end: Any) -> None:
    a, b = servers.a, servers.b
    await a.topic()
    poll = await b.poll(poll_ms=LONG_MS)
    await end(a)
    assert await ended(poll) == []
    again = await b.poll(poll_ms=LONG_MS)
    (sent,) = await a.send()
    assert ids(await ended(again)) == [sent.message_id]


@pytest.mark.row("A5")
@pytest.mark.parametrize("end", [delete_topic, delete_group, add_queues])
async def test_a_receive_finds_at_the_beat_what_a_lost_notification_told(
    servers: SeveralBrokers, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    a, b = servers.a, servers.b
    await a.topic()
    poll = await b.poll(poll_ms=LONG_MS)
    with monkeypatch.context() as silent:
        silent.setattr(a.broker.engine.writer, "announcement", lambda _: "")
        await end(a)
    await servers.advance(5 * SECOND - 1)
    assert not poll.done()
    await servers.advance(1)
    assert await ended(poll) == []
    again = await b.poll(poll_ms=LONG_MS)
    (sent,) = await a.send()
    assert ids(await ended(again)) == [sent.message_id]


@pytest.mark.parametrize("end", [delete_topic, delete_group])
async def test_it_ends_the_receive_of_a_paused_group(either_broker: RunningBroker, end: Any) -> None:
    await either_broker.topic()
    await either_broker.receive()
    await either_broker.broker.progress().pause(GROUP, None, None, paused_by="")
    paused = either_broker.broker.paused
    poll = asyncio.create_task(either_broker.receive(poll_ms=LONG_MS))
    await until(lambda: paused.waiting == 1)
    await end(either_broker)
    assert await ended(poll) == []


@pytest.mark.parametrize("end", [delete_group, change_group])
async def test_it_ends_the_pull_of_a_paused_group(broker: RunningBroker, end: Any) -> None:
    await broker.topic()
    await broker.group()
    await broker.broker.progress().pause(GROUP, None, None, paused_by="")
    paused = broker.broker.paused
    waiting = asyncio.create_task(pull(broker, poll_ms=LONG_MS))
    await until(lambda: paused.waiting == 1)
    await end(broker)
    await broker.broker.settle()
    assert (paused.waiting, waiting.done()) == (0, True)
    assert (await waiting).status is PullStatus.NO_NEW_MSG


async def test_it_ends_the_receive_of_a_lite_consumer(either_broker: RunningBroker) -> None:
    inner = either_broker.broker
    await inner.catalog.create_topic(NewTopic(TOPIC, 1, (MessageType.LITE,)))
    await inner.catalog.create_group(NewGroup(GROUP, lite=LiteModel.SHARED))
    await inner.sessions.lite.sync(GROUP, TOPIC, "c1", LiteAction.PARTIAL_ADD, ["one"], None)
    poll = await either_broker.poll(poll_ms=LONG_MS)
    await inner.catalog.delete_topic(TOPIC)
    assert await ended(poll) == []
    with pytest.raises(TopicNotFound):
        await either_broker.receive()
    await inner.catalog.create_topic(NewTopic(TOPIC, 1, (MessageType.LITE,)))
    await inner.sessions.lite.sync(GROUP, TOPIC, "c1", LiteAction.PARTIAL_ADD, ["one"], None)
    again = await either_broker.poll(poll_ms=LONG_MS)
    (sent,) = await either_broker.send(lite_messages("one"))
    assert ids(await ended(again)) == [sent.message_id]


async def test_a_group_of_lite_consumers_waits_for_its_dead_letters_as_others_do(broker: RunningBroker) -> None:
    await broker.broker.catalog.create_topic(NewTopic(TOPIC, 1, (MessageType.LITE,)))
    await broker.broker.catalog.create_group(NewGroup(GROUP, lite=LiteModel.SHARED))
    await broker.broker.sessions.lite.sync(GROUP, TOPIC, "c1", LiteAction.PARTIAL_ADD, ["one"], None)
    await broker.send(lite_messages("one"))
    (held,) = await broker.receive()
    poll = await broker.poll(poll_ms=LONG_MS, topic=dead_letter_topic(GROUP))
    await broker.broker.forward_to_dead_letter_queue(GROUP, TOPIC, held.receipt_handle, ids([held])[0])
    assert len(await ended(poll)) == 1


async def test_a_held_pull_of_a_deleted_group_is_answered_empty(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.a.group()
    for waiting_at in (servers.a, servers.b):
        waiting = await held(waiting_at, poll_ms=LONG_MS)
        await servers.a.broker.catalog.delete_group(GROUP)
        assert (await ended(waiting)).status is PullStatus.NO_NEW_MSG
        await servers.a.group()


@pytest.mark.row("A5")
async def test_a_held_pull_of_a_deleted_topic_is_refused_at_the_beat(servers: SeveralBrokers) -> None:
    """Not before: if the topic is made anew meanwhile, the pull is told so, whose offset is one of the topic before."""
    for waiting_at in (servers.a, servers.b):
        await servers.a.topic()
        waiting = await held(waiting_at, poll_ms=LONG_MS)
        await servers.a.broker.catalog.delete_topic(TOPIC)
        await servers.advance(5 * SECOND - 1)
        assert not waiting.done()
        await servers.advance(1)
        with pytest.raises(TopicNotFound, match="topic 'orders' does not exist"):
            await ended(waiting)


async def test_who_asks_again_is_told_precisely() -> None:
    """Where nothing is created on first use, and where the group has got the other mode."""
    async with running_broker(auto_create=False) as broker:
        await broker.topic()
        await broker.group()
        poll = await broker.poll(poll_ms=LONG_MS)
        await broker.broker.catalog.delete_topic(TOPIC)
        assert await ended(poll) == []
        with pytest.raises(TopicNotFound):
            await broker.receive()
        await broker.topic()
        poll = await broker.poll(poll_ms=LONG_MS)
        await broker.broker.catalog.delete_group(GROUP)
        assert await ended(poll) == []
        with pytest.raises(ConsumerGroupNotFound):
            await broker.receive()
        await broker.group()
        await broker.broker.catalog.set_group_mode(await broker.broker.catalog.group(GROUP), Mode.PULL)
        with pytest.raises(BadRequest):
            await broker.receive()


async def test_a_deletion_between_the_look_and_the_wait_is_not_missed(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topic()
    await broker.receive()
    polls = broker.broker.consuming.polls
    ask = polls._search

    async def ask_then_delete(*given: Any) -> Any:
        found = await ask(*given)
        await broker.broker.catalog.delete_topic(TOPIC)
        return found

    monkeypatch.setattr(polls, "_search", ask_then_delete)
    await broker.advance(5 * SECOND)  # so that it asks, although it knows that the topic was empty
    assert await ended(asyncio.create_task(broker.receive(poll_ms=LONG_MS))) == []


async def test_the_first_receive_of_a_new_group_waits(broker: RunningBroker) -> None:
    """It changes the group itself, which gets its mode."""
    poll = await broker.poll(poll_ms=LONG_MS)
    (sent,) = await broker.send([a_message()])
    assert ids(await ended(poll)) == [sent.message_id]


async def test_a_deletion_while_a_held_pull_looks_at_its_group_is_not_missed(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topic()
    catalog = broker.broker.catalog
    waiting = await held(broker, poll_ms=LONG_MS)
    look = catalog.known_group

    async def look_then_delete(name: Resource) -> Any:
        found = await look(name)
        monkeypatch.setattr(catalog, "known_group", look)
        await catalog.delete_group(name)
        return found

    group = await catalog.group(GROUP)
    monkeypatch.setattr(catalog, "known_group", look_then_delete)
    await catalog.set_group_mode(group, Mode.PULL)
    assert (await ended(waiting)).status is PullStatus.NO_NEW_MSG
