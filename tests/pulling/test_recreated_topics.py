"""A topic that is deleted and made anew: pulls, commits and hand-backs that belong to the one before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popproto.v1 import legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popserver.filters import TagFilter
from popserver.model.errors import TopicNotFound, TopicRecreated
from popserver.model.group import NewGroup
from popserver.model.topic import NewTopic, QueueName, Topic
from popserver.pulling.flow import PullRequest
from popserver.pulling.offsets import NamedOffset
from popserver.pulling.rules import NO_OFFSET, Pulled, PullStatus
from popserver.pulling.send_back_flow import HandedBack
from tests.support.builders import GROUP, TOPIC
from tests.support.running_broker import RunningBroker, until
from tests.support.several_brokers import SeveralBrokers
from tests.support.wire_pull import legacy, make_topic, pull_batch, queue_name, update_offset
from tests.support.wire_pull import pull as pull_message
from tests.support.wire_server import GROUP as GROUP_ON_THE_WIRE
from tests.support.wire_server import WireServer, a_message

pytestmark = pytest.mark.timeout(14)  # a pull that is broken may wait for ever

SECOND = 1_000
HERE = QueueName(TOPIC, 0)


async def made(broker: RunningBroker, queues: int = 1) -> Topic:
    await broker.topic(queues=queues)
    return await broker.broker.catalog.topic(TOPIC)


async def anew(broker: RunningBroker, queues: int = 1) -> Topic:
    """As one operator does it: the name is free at once."""
    await broker.broker.catalog.delete_topic(TOPIC)
    return await broker.broker.catalog.create_topic(NewTopic(TOPIC, queues))


async def pull(broker: RunningBroker, offset: int, *, generation: int = 0, poll_ms: int = 0) -> Pulled:
    until_ms = broker.clock.now_ms() + poll_ms
    return await broker.broker.consuming.pulls.pull(
        PullRequest(GROUP, TOPIC, 0, offset, 32, TagFilter(), until_ms, generation=generation)
    )


async def stored(broker: RunningBroker) -> int:
    (progress,) = await broker.broker.consuming.offsets.fetch(GROUP, [HERE])
    return progress.offset


async def test_each_topic_has_a_generation_of_its_own(either_broker: RunningBroker) -> None:
    """The clock stands still: a time alone would not tell them apart."""
    topics = [await made(either_broker)] + [await anew(either_broker) for _ in range(3)]
    assert len({each.created_at_ms for each in topics}) == 1
    assert len({each.generation for each in topics}) == 4
    assert all(0 < each.generation < 1 << 63 for each in topics)
    (progress,) = await either_broker.broker.consuming.offsets.fetch(GROUP, [HERE])
    assert progress.generation == topics[-1].generation


@pytest.mark.row("B9")
@pytest.mark.parametrize("offset", [0, 2, 5, 999])
async def test_a_pull_of_the_topic_before_is_told_so(either_broker: RunningBroker, offset: int) -> None:
    before = await made(either_broker)
    after = await anew(either_broker)
    await either_broker.send(3)
    pulled = await pull(either_broker, offset, generation=before.generation, poll_ms=15 * SECOND)
    assert (pulled.status, pulled.messages, pulled.next_offset) == (PullStatus.RECREATED, [], 0)
    assert (pulled.min_offset, pulled.end_offset, pulled.generation) == (0, 3, after.generation)
    found = await pull(either_broker, 0, generation=after.generation)
    assert (found.status, len(found.messages), found.generation) == (PullStatus.FOUND, 3, after.generation)


async def test_so_is_one_of_a_queue_that_the_new_topic_does_not_have(broker: RunningBroker) -> None:
    before = await made(broker, 4)
    after = await anew(broker, queues=1)
    wish = PullRequest(GROUP, TOPIC, 3, 7, 32, TagFilter(), 0, generation=before.generation)
    pulled = await broker.broker.consuming.pulls.pull(wish)
    assert pulled == Pulled(PullStatus.RECREATED, [], 0, 0, 0, after.generation)


@pytest.mark.row("B9")
@pytest.mark.parametrize("knows", [True, False], ids=["it names its generation", "it does not"])
async def test_a_pull_that_is_held_ends_when_the_topic_is_made_anew(either_broker: RunningBroker, knows: bool) -> None:
    before = await made(either_broker)
    generation = before.generation if knows else 0
    waiting = asyncio.create_task(pull(either_broker, 0, generation=generation, poll_ms=15 * SECOND))
    await until(lambda: either_broker.broker.consuming.pulls.parked.count == 1)
    await either_broker.broker.catalog.delete_topic(TOPIC)
    assert not waiting.done(), "a topic may come"
    await either_broker.broker.catalog.create_topic(NewTopic(TOPIC, 1))
    assert (await waiting).status is PullStatus.RECREATED
    assert not either_broker.broker.consuming.pulls._parked_at


@pytest.mark.row("B9")
async def test_so_does_one_that_was_about_to_be_held(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is made anew between its look and its parking."""
    await made(broker)
    pulls = broker.broker.consuming.pulls
    look = pulls._read
    looks = 0

    async def look_and_make_anew(*given: Any) -> Pulled:
        nonlocal looks
        looks += 1
        found = await look(*given)
        if looks == 1:
            await anew(broker)
        return found

    monkeypatch.setattr(pulls, "_read", look_and_make_anew)
    assert (await pull(broker, 0, poll_ms=60 * SECOND)).status is PullStatus.RECREATED


@pytest.mark.row("B9")
async def test_so_does_one_of_several_if_another_has_left(broker: RunningBroker) -> None:
    await made(broker)
    parked = broker.broker.consuming.pulls.parked
    leaves, stays = (asyncio.create_task(pull(broker, 0, poll_ms=60 * SECOND)) for _ in range(2))
    await until(lambda: parked.count == 2)
    leaves.cancel()
    await until(lambda: parked.count == 1)
    await anew(broker)
    assert (await stays).status is PullStatus.RECREATED
    assert not broker.broker.consuming.pulls._parked_at


async def test_at_two_servers_it_is_the_same(servers: SeveralBrokers) -> None:
    before = await made(servers.a)
    waiting = asyncio.create_task(pull(servers.b, 0, generation=before.generation, poll_ms=15 * SECOND))
    await until(lambda: servers.b.broker.consuming.pulls.parked.count == 1)
    await anew(servers.a)
    assert (await waiting).status is PullStatus.RECREATED
    assert (
        await servers.b.broker.consuming.offsets.commit(GROUP, [NamedOffset(QueueName(TOPIC, 0, before.generation), 0)])
    )[0].refusal is not None


async def test_a_server_that_remembers_the_topic_before_looks_again(servers: SeveralBrokers) -> None:
    """The client has met the new topic at another server, and the notice of it is still on its way here."""
    before = await made(servers.a)
    await pull(servers.b, 0)
    after = await anew(servers.a)
    servers.b.broker.catalog._topics[TOPIC] = before
    await servers.a.send(1)
    found = await pull(servers.b, 0, generation=after.generation)
    assert (found.status, found.generation) == (PullStatus.FOUND, after.generation)


@pytest.mark.row("B9")
async def test_a_commit_of_the_topic_before_changes_nothing(either_broker: RunningBroker) -> None:
    before = await made(either_broker)
    after = await anew(either_broker)
    await either_broker.send(3)
    late = NamedOffset(QueueName(TOPIC, 0, before.generation), 2)
    (done,) = await either_broker.broker.consuming.offsets.commit(GROUP, [late])
    assert isinstance(done.refusal, TopicRecreated)
    assert "topic 'orders' was deleted and created again" in done.refusal.sentence
    assert (done.stored.offset, done.stored.generation) == (NO_OFFSET, after.generation)
    rides = PullRequest(GROUP, TOPIC, 0, 2, 32, TagFilter(), 0, commit_offset=2, generation=before.generation)
    assert (await either_broker.broker.consuming.pulls.pull(rides)).status is PullStatus.RECREATED
    assert await stored(either_broker) == NO_OFFSET
    timely = NamedOffset(QueueName(TOPIC, 0, after.generation), 2)
    (done,) = await either_broker.broker.consuming.offsets.commit(GROUP, [timely])
    assert (done.refusal, done.stored.offset, done.stored.generation) == (None, 2, after.generation)


async def test_a_message_of_the_topic_before_is_not_handed_back(either_broker: RunningBroker) -> None:
    before = await made(either_broker)
    await anew(either_broker)
    await either_broker.send(1)
    with pytest.raises(TopicRecreated):
        await either_broker.broker.consuming.retries.send_back(
            GROUP, "c", HandedBack(QueueName(TOPIC, 0, before.generation), 0, -1)
        )
    assert await stored(either_broker) == NO_OFFSET


async def test_a_message_is_handed_back_to_a_server_that_remembers_the_topic_before(broker: RunningBroker) -> None:
    before = await made(broker)
    after = await anew(broker)
    await broker.send(1)
    broker.broker.catalog._topics[TOPIC] = before
    failed = HandedBack(QueueName(TOPIC, 0, after.generation), 0)
    assert await broker.broker.consuming.retries.send_back(GROUP, "c", failed) is False


async def test_an_offset_is_committed_at_a_server_that_remembers_the_topic_before(broker: RunningBroker) -> None:
    before = await made(broker)
    after = await anew(broker)
    await broker.send(1)
    broker.broker.catalog._topics[TOPIC] = before
    here = QueueName(TOPIC, 0, after.generation)
    (done,) = await broker.broker.consuming.offsets.commit(GROUP, [NamedOffset(here, 1)])
    assert (done.refusal, done.stored.offset) == (None, 1)


async def test_no_topic_is_no_other_generation(strict_broker: RunningBroker) -> None:
    await strict_broker.broker.catalog.create_group(NewGroup(GROUP))
    await strict_broker.broker.catalog.create_topic(NewTopic(TOPIC, 1))
    topic = await strict_broker.broker.catalog.topic(TOPIC)
    await strict_broker.broker.catalog.delete_topic(TOPIC)
    with pytest.raises(TopicNotFound):
        await pull(strict_broker, 0, generation=topic.generation)
    (done,) = await strict_broker.broker.consuming.offsets.commit(
        GROUP, [NamedOffset(HERE._replace(generation=topic.generation), 0)]
    )
    assert isinstance(done.refusal, TopicNotFound)


# ---- Clients that know of no generations ----


@pytest.mark.row("B9")
async def test_without_progress_an_offset_beyond_the_end_leads_to_the_beginning(either_wire_server: WireServer) -> None:
    """It may be of the topic before: from the end on, all of this one would be skipped."""
    await make_topic(either_wire_server)
    await either_wire_server.send(*(a_message(f"m{number}") for number in range(3)))
    answer = await pull_message(either_wire_server, 5)
    assert (answer.code, answer.next_offset) == (pb.ILLEGAL_OFFSET, 0)
    assert (await update_offset(either_wire_server, 1)).code == pb.OK
    answer = await pull_message(either_wire_server, 5)
    assert (answer.code, answer.next_offset) == (pb.ILLEGAL_OFFSET, 3), "the group has been in this one"


async def test_on_the_wire(either_wire_server: WireServer) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(a_message("m0"))
    fetched = await legacy(
        either_wire_server,
        "FetchOffsets",
        legacy_pb2.FetchOffsetsRequest(group=GROUP_ON_THE_WIRE, queues=[queue_name(0)]),
    )
    generation = fetched.offsets[0].queue.generation
    assert generation > 0
    for pull_by in (pull_message, pull_batch):
        assert (await pull_by(either_wire_server, 0, extras={"sys_flag": 4, "generation": generation})).ids == ["m0"]
        answer = await pull_by(either_wire_server, 1, extras={"sys_flag": 4, "generation": generation - 1})
        assert (answer.code, answer.next_offset, answer.messages) == (pb.ILLEGAL_OFFSET, 0, [])
        assert answer.status.message == (
            "topic 'flights' was deleted and created again, and offset 1 belongs to the old topic; queue 0 of topic"
            " 'flights' begins at 0, continue there"
        )
    name = queue_name(0)
    name.generation = generation - 1
    entry = legacy_pb2.QueueOffset(queue=name, offset=1)
    done = await legacy(
        either_wire_server, "CommitOffsets", legacy_pb2.CommitOffsetsRequest(group=GROUP_ON_THE_WIRE, offsets=[entry])
    )
    (result,) = done.results
    assert result.status.code == pb.PRECONDITION_FAILED
    assert (result.stored.offset, result.stored.queue.generation) == (-1, generation)
    back = legacy_pb2.SendBackRequest(group=GROUP_ON_THE_WIRE, queue=name, offset=0)
    assert (await legacy(either_wire_server, "SendBack", back)).status.code == pb.PRECONDITION_FAILED
