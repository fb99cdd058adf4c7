"""A paused group gets nothing: in all topics, in one, or of one message group. Holds stay, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from popserver.filters import tags
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, TooManyRequests, TopicNotFound
from popserver.model.group import Mode
from popserver.model.message import Delivery
from popserver.model.names import Resource
from popserver.model.retry import RetryPolicy
from popserver.model.states import State
from popserver.model.topic import MessageType, NewTopic
from popserver.progress.pause import SetPause
from popserver.progress.rules import Edge
from popserver.pulling.flow import PullRequest
from popserver.pulling.rules import Pulled, PullStatus
from tests.support.builders import GROUP, TOPIC, in_order, messages_of
from tests.support.running_broker import RunningBroker, ids, running_broker, until
from tests.support.several_brokers import SeveralBrokers

pytestmark = pytest.mark.timeout(14)  # a wait that is broken may have no end

SECOND = 1_000
OTHER = Resource("", "letters")


async def pause(broker: RunningBroker, topic: Resource | None = None, message_group: str | None = None) -> None:
    await broker.broker.progress().pause(GROUP, topic, message_group, paused_by="ops")


async def resume(broker: RunningBroker, topic: Resource | None = None, message_group: str | None = None) -> None:
    await broker.broker.progress().resume(GROUP, topic, message_group)


async def ordered(broker: RunningBroker) -> None:
    """A topic of message groups with one queue, which the group has received from."""
    await broker.broker.catalog.create_topic(NewTopic(TOPIC, 1, (MessageType.NORMAL, MessageType.FIFO)))
    await broker.group(retry=RetryPolicy(fifo_interval_ms=SECOND))
    assert await broker.receive() == []


async def parked(broker: RunningBroker, **more: Any) -> asyncio.Task[list[Delivery]]:
    """A receive that waits for the end of a pause."""
    before = broker.broker.paused.waiting
    task = asyncio.create_task(broker.receive(poll_ms=15 * SECOND, **more))
    await until(lambda: broker.broker.paused.waiting > before or task.done())
    assert not task.done(), await task
    return task


def of(deliveries: list[Delivery]) -> list[str]:
    """The message groups of the messages."""
    return [each.stored.message.message_group or "" for each in deliveries]


@pytest.mark.user("U25")
async def test_a_paused_group_gets_nothing_and_its_holds_are_acked(either_broker: RunningBroker) -> None:
    broker = either_broker
    sent = await broker.send(3)
    held = await broker.receive(1)
    await pause(broker)
    assert await broker.receive() == []
    assert await broker.ack(*held) == [None]
    assert await broker.broker.progress().lag(GROUP, None) is not None
    await resume(broker)
    assert ids(await broker.receive()) == [each.message_id for each in sent[1:]]


async def test_a_poll_that_waits_is_not_woken_until_the_group_is_resumed(either_broker: RunningBroker) -> None:
    broker = either_broker
    before = await broker.poll()
    await pause(broker)
    during = await parked(broker)
    (sent,) = await broker.send()
    await until(lambda: broker.broker.paused.waiting == 2)
    assert not before.done()
    assert not during.done()
    await resume(broker)
    done, _ = await asyncio.wait([before, during], return_when=asyncio.FIRST_COMPLETED)
    assert ids(done.pop().result()) == [sent.message_id]
    await broker.advance(15 * SECOND)
    assert sorted(map(len, await asyncio.gather(before, during))) == [0, 1]


async def test_a_poll_of_a_paused_group_ends_at_its_time(broker: RunningBroker) -> None:
    await broker.send()
    await broker.receive(1)
    await pause(broker)
    poll = await parked(broker)
    await broker.advance(15 * SECOND - 1)
    assert not poll.done()
    await broker.advance(1)
    assert await poll == []
    assert broker.broker.paused.waiting == 0


async def test_other_groups_and_other_topics_go_on(broker: RunningBroker) -> None:
    await broker.send(1)
    await broker.send(messages_of(1, OTHER))
    await broker.group()
    await pause(broker, TOPIC)
    assert await broker.receive() == []
    assert len(await broker.receive(topic=OTHER)) == 1
    assert len(await broker.receive(group=Resource("", "others"))) == 1
    await pause(broker)
    await resume(broker, TOPIC)
    assert await broker.receive() == [], "it is paused in all topics still"
    await resume(broker)
    assert len(await broker.receive()) == 1


async def test_a_repeated_receive_of_a_paused_group_gets_what_it_holds(either_broker: RunningBroker) -> None:
    broker = either_broker
    await broker.send(2)
    held = await broker.receive(1, attempt_id="a1")
    await pause(broker)
    assert ids(await broker.receive(2, attempt_id="a1")) == ids(held)
    assert await broker.receive(2, attempt_id="a2") == []


async def test_a_pause_survives_a_restart(database_url: str) -> None:
    async with running_broker(database_url) as first:
        await first.send(1)
        await first.group()
        await pause(first)
    async with running_broker(database_url) as second:
        assert await second.receive() == []
        await resume(second)
        assert len(await second.receive()) == 1


async def test_failed_messages_wait_too_and_no_attempt_is_burnt(broker: RunningBroker) -> None:
    await broker.group(retry=RetryPolicy(max_attempts=2, intervals_ms=(SECOND,)))
    await broker.send(1)
    await broker.receive(push=True, invisible_ms=30 * SECOND)
    (held,) = await broker.query("SELECT attempt FROM delivery")
    await pause(broker)
    (before,) = [held.attempt]
    broker.broker.sessions.clients.close()
    await broker.advance(24 * 3_600 * SECOND)
    assert set((await broker.states()).values()) == {State.READY}
    assert await broker.receive() == []
    await resume(broker)
    (again,) = await broker.receive()
    assert again.attempt == before + 1


async def test_a_paused_message_group_waits_and_the_others_go_on(either_broker: RunningBroker) -> None:
    broker = either_broker
    await ordered(broker)
    await broker.send([*in_order("A", 2), *in_order("B", 2)])
    await pause(broker, TOPIC, "A")
    first = await broker.receive()
    assert of(first) == ["B", "B"]
    await broker.ack(*first)
    await broker.send([*in_order("A", 1), *in_order("B", 1)])
    assert of(await broker.receive()) == ["B"]
    poll = await broker.poll()
    await resume(broker, TOPIC, "A")
    assert of(await poll) == ["A", "A", "A"]


async def test_a_held_message_group_that_is_paused_gives_nothing_more(either_broker: RunningBroker) -> None:
    broker = either_broker
    await ordered(broker)
    await broker.send(in_order("A", 3))
    held = await broker.receive(1)
    await pause(broker, None, "A")
    assert await broker.ack(*held) == [None]
    assert await broker.receive() == []
    await resume(broker, None, "A")
    assert len(await broker.receive()) == 2


async def test_a_hold_of_a_paused_message_group_that_ends_comes_again_after_the_pause(
    either_broker: RunningBroker,
) -> None:
    broker = either_broker
    await ordered(broker)
    await broker.send(in_order("A", 2))
    await broker.receive(2, invisible_ms=10 * SECOND)
    await pause(broker, TOPIC, "A")
    await broker.advance(10 * SECOND)
    assert await broker.receive() == []
    await resume(broker, TOPIC, "A")
    assert [each.attempt for each in await broker.receive()] == [2, 2]


async def test_a_reset_keeps_the_pause_of_a_message_group(either_broker: RunningBroker) -> None:
    broker = either_broker
    await ordered(broker)
    await broker.send([*in_order("A", 2), *in_order("B", 1)])
    await broker.receive()
    await pause(broker, TOPIC, "A")
    await broker.broker.progress().reset(GROUP, TOPIC, None, Edge.BEGINNING, dry_run=False)
    assert of(await broker.receive()) == ["B"]
    await resume(broker, TOPIC, "A")
    assert of(await broker.receive()) == ["A", "A"]


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_paused_and_resumed_order_stays_and_nothing_is_lost(
    either_broker: RunningBroker, seed: int
) -> None:
    """Sends, receives, acks, lapsed holds, pauses and resumes in any order. `running_broker` checks the store."""
    broker, chance = either_broker, random.Random(seed)
    await ordered(broker)
    names = ["A", "B", "C"]
    sent: dict[str, list[str]] = {each: [] for each in names}
    done: dict[str, list[str]] = {each: [] for each in names}
    paused: set[str] = set()
    for _ in range(60):
        name = chance.choice(names)
        match chance.randrange(5):
            case 0:
                sent[name] += [each.message_id for each in await broker.send(in_order(name, chance.randint(1, 3)))]
            case 1 | 2:
                held = await broker.receive(chance.randint(1, 5), invisible_ms=10 * SECOND)
                assert not paused & set(of(held))
                if chance.random() < 0.7:
                    await broker.ack(*held)
                    for each in held:
                        done[each.stored.message.message_group or ""].append(each.stored.message.message_id)
                else:
                    await broker.advance(10 * SECOND)
            case 3:
                await pause(broker, TOPIC, name)
                paused.add(name)
            case 4:
                await resume(broker, TOPIC, name)
                paused.discard(name)
    for name in names:
        await resume(broker, TOPIC, name)
    while held := await broker.receive():
        await broker.ack(*held)
        for each in held:
            done[each.stored.message.message_group or ""].append(each.stored.message.message_id)
    assert done == sent


async def pull(broker: RunningBroker, offset: int = 0, poll_ms: int = 0) -> Pulled:
    until_ms = broker.clock.now_ms() + poll_ms
    return await broker.broker.consuming.pulls.pull(PullRequest(GROUP, TOPIC, 0, offset, 32, tags.parse("*"), until_ms))


async def test_a_paused_group_pulls_nothing_and_stays_where_it_is(either_broker: RunningBroker) -> None:
    broker = either_broker
    await broker.topic()
    await broker.group()
    await broker.send(2)
    await pause(broker)
    pulled = await pull(broker, 1)
    assert (pulled.status, pulled.messages, pulled.next_offset) == (PullStatus.NO_NEW_MSG, [], 1)
    waiting = asyncio.create_task(pull(broker, 0, 15 * SECOND))
    await until(lambda: broker.broker.paused.waiting == 1)
    await broker.send()
    await resume(broker)
    assert [each.offset for each in (await waiting).messages] == [0, 1, 2]
    await pause(broker)
    assert (await pull(broker, 99)).status is PullStatus.OFFSET_ILLEGAL, "a wrong offset is corrected still"


async def test_every_server_of_a_database_stops_and_goes_on(servers: SeveralBrokers) -> None:
    await servers.a.send(1)
    await servers.a.group()
    assert len(await servers.b.receive(invisible_ms=10 * SECOND)) == 1
    await pause(servers.a)
    await until(lambda: servers.b.broker.paused.covers(1, 1))
    await servers.a.send(1)
    poll = await parked(servers.b)
    await resume(servers.a)
    assert len(await poll) == 1


async def test_a_message_group_is_paused_for_every_server(servers: SeveralBrokers) -> None:
    await ordered(servers.a)
    await servers.a.send([*in_order("A", 1), *in_order("B", 1)])
    await pause(servers.a, TOPIC, "A")
    assert of(await servers.b.receive()) == ["B"]
    await resume(servers.b, TOPIC, "A")
    assert of(await servers.a.receive()) == ["A"]


async def test_pausing_and_resuming_twice_changes_nothing(broker: RunningBroker) -> None:
    await broker.group()
    await pause(broker)
    await broker.advance(SECOND)
    await pause(broker)
    (row,) = await broker.query("SELECT * FROM group_pauses")
    assert (row.consumer_group, row.topic, row.message_group, row.paused_by) == ("billing", None, None, "ops")
    assert row.paused_at_ms == broker.clock.now_ms() - SECOND
    await resume(broker)
    await resume(broker)
    assert await broker.query("SELECT * FROM group_pauses") == []


async def test_what_is_deleted_takes_its_pauses_along(broker: RunningBroker) -> None:
    await broker.topic()
    await broker.group()
    await pause(broker)
    await pause(broker, TOPIC)
    await broker.broker.catalog.delete_topic(TOPIC)
    await broker.broker.settle()
    assert [row.topic for row in await broker.query("SELECT * FROM group_pauses")] == [None]
    await broker.broker.catalog.delete_group(GROUP)
    await broker.broker.settle()
    assert await broker.query("SELECT * FROM pause") == []
    await broker.group()
    await broker.send()
    assert len(await broker.receive()) == 1, "a new group of that name is not paused"


async def test_what_cannot_be_paused_is_named(strict_broker: RunningBroker) -> None:
    broker = strict_broker
    with pytest.raises(ConsumerGroupNotFound, match="'billing'"):
        await pause(broker)
    await broker.group()
    with pytest.raises(TopicNotFound, match="'orders'"):
        await pause(broker, TOPIC)
    with pytest.raises(BadRequest, match="has not received from any topic with message groups"):
        await pause(broker, None, "A")
    await broker.topic()
    with pytest.raises(BadRequest, match="has not received from topic 'orders' yet, so message group 'A'"):
        await pause(broker, TOPIC, "A")
    group = await broker.broker.catalog.group(GROUP)
    await broker.broker.catalog.set_group_mode(group, Mode.PULL)
    with pytest.raises(BadRequest, match="consumes whole queues, in order"):
        await pause(broker, TOPIC, "A")
    assert await broker.query("SELECT * FROM pause") == []


async def test_too_many_calls_of_a_paused_group_are_refused(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.catalog.paused.PARKED_PER_TOPIC_AND_GROUP_MAX", 1)
    await broker.group()
    await pause(broker)
    poll = await parked(broker)
    with pytest.raises(TooManyRequests, match="'billing' is paused and 1 of its calls wait already"):
        await broker.receive(poll_ms=SECOND)
    poll.cancel()


async def test_a_receive_that_waited_for_memory_gets_nothing_after_a_pause(broker: RunningBroker) -> None:
    (sent,) = await broker.send()
    undelivered, limit = broker.broker.engine.undelivered, broker.broker.engine.budgets["undelivered"].limit
    undelivered.carry(limit)
    receive = asyncio.create_task(broker.receive(poll_ms=15 * SECOND))
    await until(lambda: broker.broker.consuming.polls.open == 1)
    await pause(broker)
    undelivered.carried(limit)
    await until(lambda: broker.broker.paused.waiting == 1)
    await resume(broker)
    assert ids(await receive) == [sent.message_id]


@pytest.mark.parametrize("message_group", [None, "g"], ids=["group", "message-group"])
async def test_receives_wait_already_while_the_pause_of_the_group_is_stored(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, message_group: str | None
) -> None:
    await ordered(broker)
    topic, group = await broker.broker.catalog.topic(TOPIC), await broker.broker.catalog.group(GROUP)
    writer, seen = broker.broker.engine.writer, []
    submit = writer.submit

    async def look(request: Any) -> Any:
        if isinstance(request, SetPause):
            seen.append(broker.broker.paused.covers(group.group_id, topic.topic_id))
        return await submit(request)

    monkeypatch.setattr(writer, "submit", look)
    await pause(broker, TOPIC, message_group)
    assert seen == [message_group is None]


async def test_a_pause_that_begins_while_the_pauses_are_read_stays(broker: RunningBroker) -> None:
    """An older read does not replace it."""
    paused = broker.broker.paused
    await broker.group()
    with paused.beginning(1, [7]):
        await paused.reload()
        assert paused.covers(1, 7)
    assert not paused.covers(1, 7)
