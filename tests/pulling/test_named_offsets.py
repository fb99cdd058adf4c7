"""Offsets by the names of their queues: each commit has the outcome of its queue, and what rides along is kept once."""

from __future__ import annotations

import pytest

from popserver.model.errors import BadRequest, ConsumerGroupNotFound, IllegalOffset, PopError, TooLate, TopicNotFound
from popserver.model.group import Mode
from popserver.model.names import Resource
from popserver.model.topic import QueueName, Topic
from popserver.progress.rules import Edge
from popserver.pulling import offsets as pulling_offsets
from popserver.pulling.offsets import NamedOffset, Offsets
from popserver.pulling.rules import NO_OFFSET, Committed, QueueOffset, QueueProgress
from tests.support.builders import GROUP, TOPIC, messages_of
from tests.support.running_broker import RunningBroker, watched

OTHER, UNREAD = Resource("", "letters"), Resource("", "unread")
END = 3


@pytest.fixture
async def filled(either_broker: RunningBroker) -> RunningBroker:
    """Two topics with two queues each, and three messages in `orders`."""
    for each in (OTHER, TOPIC):
        await either_broker.topic(each, queues=2)
    for _ in range(END):
        await either_broker.send()
    return either_broker


def offsets_of(broker: RunningBroker) -> Offsets:
    return broker.broker.consuming.offsets


async def topic_of(broker: RunningBroker, name: Resource = TOPIC) -> Topic:
    return await broker.broker.catalog.topic(name)


async def ends(broker: RunningBroker, name: Resource = TOPIC) -> list[int]:
    return [(await offsets_of(broker).ends(QueueName(name, number))).end_offset for number in range(2)]


async def test_each_commit_has_the_outcome_of_its_queue(filled: RunningBroker) -> None:
    full = (await ends(filled)).index(max(await ends(filled)))
    generation = (await topic_of(filled)).generation
    wishes = [
        NamedOffset(QueueName(UNREAD, 0), 0),
        NamedOffset(QueueName(TOPIC, full), 1),
        NamedOffset(QueueName(TOPIC, 9), 0),
        NamedOffset(QueueName(OTHER, 0), 7),
        NamedOffset(QueueName(TOPIC, full), 1, resets=0),
    ]
    done = await offsets_of(filled).commit(GROUP, wishes)
    assert [type(each.refusal) for each in done] == [TopicNotFound, type(None), BadRequest, IllegalOffset, type(None)]
    accepted = Committed(None, QueueProgress(1, 0, generation))
    assert (done[1], done[4]) == (accepted, accepted)
    assert [done[at].stored for at in (0, 2)] == [QueueProgress(NO_OFFSET, 0, 0)] * 2
    assert done[3].stored == QueueProgress(NO_OFFSET, 0, (await topic_of(filled, OTHER)).generation)
    assert await filled.query("SELECT name FROM topic WHERE name = 'unread'") == []


async def test_a_commit_that_begins_leaves_progress_that_is_there(filled: RunningBroker) -> None:
    full = (await ends(filled)).index(max(await ends(filled)))
    for offset, begins, stored in ((0, True, 0), (1, True, 0), (1, False, 1)):
        wish = NamedOffset(QueueName(TOPIC, full), offset)
        (done,) = await offsets_of(filled).commit(GROUP, [wish], begins=begins)
        assert (done.refusal, done.stored.offset) == (None, stored)


async def test_a_commit_grows_and_is_refused_from_before_a_reset(filled: RunningBroker) -> None:
    full = (await ends(filled)).index(max(await ends(filled)))
    for offset in (0, 1):
        (done,) = await offsets_of(filled).commit(GROUP, [NamedOffset(QueueName(TOPIC, full), offset)])
        assert done.stored.offset == offset
    await filled.broker.progress().reset(GROUP, TOPIC, full, 0, dry_run=False)
    (late,) = await offsets_of(filled).commit(GROUP, [NamedOffset(QueueName(TOPIC, full), 1, resets=0)])
    assert isinstance(late.refusal, TooLate)
    assert late.stored.offset == 0


async def progress(broker: RunningBroker) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in await broker.query("SELECT queue_id, next_offset FROM progress ORDER BY 1")]


async def test_a_group_that_may_not_be_made_is_named(strict_broker: RunningBroker) -> None:
    await strict_broker.topic()
    with pytest.raises(ConsumerGroupNotFound):
        await offsets_of(strict_broker).commit(GROUP, [NamedOffset(QueueName(TOPIC, 0), 0)])
    (done,) = await offsets_of(strict_broker).commit(GROUP, [NamedOffset(QueueName(UNREAD, 0), 0)])
    assert isinstance(done.refusal, TopicNotFound), "without a queue nobody looks for the group"
    with pytest.raises(PopError, match="blank"):
        await offsets_of(strict_broker).commit(Resource("", " "), [])


async def test_progress_is_fetched_in_the_order_of_the_queues_that_are_named(filled: RunningBroker) -> None:
    wishes = [NamedOffset(QueueName(OTHER, number), 0) for number in (0, 1)]
    await offsets_of(filled).commit(GROUP, wishes[1:])
    await filled.broker.progress().reset(GROUP, OTHER, 0, Edge.BEGINNING, dry_run=False)
    names = [QueueName(OTHER, 1), QueueName(TOPIC, 1), QueueName(OTHER, 0)]
    orders, letters = (await topic_of(filled)).generation, (await topic_of(filled, OTHER)).generation
    assert await offsets_of(filled).fetch(GROUP, names) == [
        QueueProgress(0, 0, letters),
        QueueProgress(NO_OFFSET, 0, orders),
        QueueProgress(0, 1, letters),
    ]


async def test_the_ends_and_the_times_of_a_queue(broker: RunningBroker) -> None:
    await broker.topic()
    await broker.topic(OTHER)
    start_ms = broker.clock.now_ms()
    for _ in range(3):
        await broker.send()
        await broker.advance(1_000)
    await broker.send(messages_of(1, OTHER))
    found = await offsets_of(broker).ends(QueueName(TOPIC, 0))
    assert (found.min_offset, found.end_offset) == (0, 3)
    at = [await offsets_of(broker).at(QueueName(TOPIC, 0), start_ms + ms) for ms in (-1, 0, 1, 2_000, 2_001)]
    assert at == [0, 0, 1, 2, 3]
    for missing in (QueueName(UNREAD, 0), QueueName(TOPIC, 1)):
        with pytest.raises(PopError):
            await offsets_of(broker).ends(missing)
        with pytest.raises(PopError):
            await offsets_of(broker).at(missing, 0)


async def rides_along(
    broker: RunningBroker, offset: int, *, number: int = 0, resets: int | None = None, group: Resource = GROUP
) -> bool:
    """Whether the server has to write for a pull that carries this offset."""
    topic = await topic_of(broker)
    of_group = await broker.broker.catalog.group(group)
    statements: list[None] = []
    with watched(broker.broker.engine.database, ("SELECT", "WITH", "INSERT"), lambda: statements.append(None)):
        request = QueueOffset(topic, topic.queues[number], offset, resets)
        await offsets_of(broker).commit_with_pull(of_group, request)
    return bool(statements)


async def test_an_offset_that_rode_along_before_costs_nothing(filled: RunningBroker) -> None:
    assert await rides_along(filled, 0)
    assert (await filled.broker.catalog.group(GROUP)).mode is Mode.PULL, "the first one fixes the mode"
    assert not await rides_along(filled, 0)
    assert await rides_along(filled, 0, number=1)
    assert await rides_along(filled, 0, resets=0)
    assert await rides_along(filled, 0, group=Resource("", "another"))
    assert not await rides_along(filled, 0, resets=0)
    assert not await rides_along(filled, 0, number=1)
    assert [row.next_offset for row in await filled.query("SELECT next_offset FROM progress")] == [0] * 3


async def test_what_is_refused_is_asked_each_time(filled: RunningBroker) -> None:
    for offset in (99, 99, -1, -1):
        assert await rides_along(filled, offset)
    assert await progress(filled) == []


async def test_only_so_many_are_kept(filled: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling_offsets, "KEPT_MAX", 2)
    groups = [Resource("", name) for name in "abc"]
    for each in groups:
        assert await rides_along(filled, 0, group=each)
    assert [await rides_along(filled, 0, group=each) for each in reversed(groups)] == [False, True, True]
