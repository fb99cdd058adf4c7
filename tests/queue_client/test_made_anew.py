"""A topic that is deleted and recreated while consumers of whole queues run: nothing of the new one is skipped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import popserver
from popclient import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Message,
    MessageQueue,
    NotFound,
    OrderlyListener,
    QueuePushConsumer,
    aio,
)
from popclient._progress.local import LocalFileOffsetStore
from popclient._progress.store import OffsetMemory, OffsetStore, ReadOffsetType
from popclient._pull import listen as pull_listening
from popclient._queues import calls
from popserver.model.group import NewGroup
from popserver.model.names import Resource
from popserver.model.topic import NewTopic
from tests.support.scripted_server import until, until_in_thread

LAST, FIRST = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"
TOPIC = Resource("", "t")


class Server:
    """A server that makes nothing on the way, with topic t and groups g and other."""

    def __init__(self, broker: popserver.EmbeddedBroker) -> None:
        self.broker = broker
        self.endpoint = broker.endpoint
        self._catalog = broker.app.broker.catalog

    async def make_group(self, name: str) -> None:
        await self._in_broker(self._catalog.create_group(NewGroup(Resource("", name))))

    async def make(self, queues: int = 1) -> None:
        await self._in_broker(self._catalog.create_topic(NewTopic(TOPIC, queues)))

    async def delete(self) -> None:
        await self._in_broker(self._catalog.delete_topic(TOPIC))

    async def make_anew(self, queues: int = 1) -> None:
        await self.delete()
        await self.make(queues)

    async def send(self, *texts: str) -> None:
        async with aio.Producer(self.endpoint) as producer:
            for text in texts:
                await producer.send(Message("t", text))

    async def _in_broker(self, work: Any) -> Any:
        return await asyncio.to_thread(self.broker.run, work)


@contextmanager
def serving(url: str) -> Iterator[Server]:
    with popserver.embedded(url, auto_create=False) as broker:
        yield Server(broker)


@pytest.fixture
async def server(database_url: str) -> Any:
    with serving(database_url) as server:
        await server.make_group("g")
        yield server


def told(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def owns(consumer: Any, queues: int) -> bool:
    return [mq.topic for mq in consumer.message_queues].count("t") == queues


class Memory(OffsetStore):
    """A user's own store, which knows of no generations."""

    def __init__(self) -> None:
        self._memory = OffsetMemory()

    async def load(self) -> None: ...
    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        self._memory.update(mq, offset, increase_only)

    async def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        return self._memory.get(mq)

    async def persist_all(self, mqs: Any) -> None: ...
    async def persist(self, mq: MessageQueue) -> None: ...
    def remove_offset(self, mq: MessageQueue) -> None: ...
    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        return self._memory.copy(topic)

    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
        self._memory.update(mq, offset, increase_only=False)


def pushing(kind: str, endpoint: str, seen: list[str], folder: Path) -> aio.QueuePushConsumer:
    async def concurrent(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(message.text for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def orderly(messages: Any, _: Any) -> ConsumeOrderlyStatus:
        seen.extend(message.text for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    by_kind: dict[str, dict[str, Any]] = {
        "concurrent": {},
        "orderly": {},
        "broadcasting": {"model": "BROADCASTING", "offset_store": LocalFileOffsetStore("c", "g", folder)},
        "a store of the user's": {"offset_store": Memory()},
    }
    listener: Any = OrderlyListener(orderly) if kind == "orderly" else concurrent
    return aio.QueuePushConsumer(endpoint, "g", "t", listener, **by_kind[kind])


@pytest.mark.row("B9")
@pytest.mark.parametrize(("before", "after"), [(5, 3), (3, 5)], ids=["beyond the end", "within"])
@pytest.mark.parametrize("kind", ["concurrent", "orderly", "broadcasting", "a store of the user's"])
async def test_a_push_consumer_gets_all_of_the_new_topic(
    server: Server, tmp_path: Path, kind: str, before: int, after: int
) -> None:
    seen: list[str] = []
    await server.make()
    async with pushing(kind, server.endpoint, seen, tmp_path) as consumer:
        await until(lambda: owns(consumer, 1))
        await server.send(*told("old", before))
        await until(lambda: len(seen) == before)
        await server.make_anew()
        await server.send(*told("new", after))
        await until(lambda: len(seen) == before + after, 15)
    assert seen == told("old", before) + told("new", after)


@pytest.mark.row("B9")
def test_so_does_one_in_threads_that_is_started_again(database_url: str) -> None:
    """What it has begun with is kept: a restart repeats nothing and skips nothing."""
    seen: list[str] = []

    def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(message.text for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with serving(database_url) as server:
        asyncio.run(server.make_group("g"))
        asyncio.run(server.make())
        with QueuePushConsumer(server.endpoint, "g", "t", listener) as consumer:
            until_in_thread(lambda: owns(consumer, 1))
            asyncio.run(server.send(*told("old", 5)))
            until_in_thread(lambda: len(seen) == 5)
            asyncio.run(server.make_anew())
            asyncio.run(server.send(*told("new", 3)))
            until_in_thread(lambda: len(seen) == 8, 15)
        asyncio.run(server.send("after"))
        with QueuePushConsumer(server.endpoint, "g", "t", listener):
            until_in_thread(lambda: len(seen) == 9, 15)
    assert [sorted(seen[:5]), sorted(seen[5:8]), seen[8:]] == [told("old", 5), told("new", 3), ["after"]]


@pytest.mark.row("B9")
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)], ids=["more", "fewer"])
@pytest.mark.parametrize("kind", ["concurrent", "broadcasting"])
async def test_the_new_topic_may_have_more_queues_or_fewer(
    server: Server, tmp_path: Path, kind: str, before: int, after: int
) -> None:
    seen: list[str] = []
    await server.make(before)
    async with pushing(kind, server.endpoint, seen, tmp_path) as consumer:
        await until(lambda: owns(consumer, before))
        await server.send(*told("old", 8))
        await until(lambda: len(seen) == 8)
        await server.make_anew(after)
        await server.send(*told("new", 12))
        await until(lambda: len(seen) == 20 and owns(consumer, after), 15)
    assert sorted(seen) == sorted(told("old", 8) + told("new", 12))


@pytest.mark.row("B9")
async def test_a_member_that_had_no_queue_takes_up_new_ones_at_their_beginning(server: Server, tmp_path: Path) -> None:
    seen: list[str] = []
    await server.make(1)
    members = [pushing("concurrent", server.endpoint, seen, tmp_path) for _ in range(2)]
    for member in members:
        await member.start()
    await until(lambda: [owns(member, 1) for member in members].count(True) == 1)
    await until(lambda: all(member._core.parts.generations.has_topic("t") for member in members))
    await server.make_anew(2)
    await server.send(*told("new", 8))
    for member in members:  # as within 30 s
        await member._core.session.routes.refresh_all()
        member._core._rebalancing.wake_at_once()
    await until(lambda: set(seen) == set(told("new", 8)), 30)
    for member in members:
        await member.close()


@pytest.mark.row("B9")
async def test_a_file_of_offsets_knows_which_topic_it_is_of(server: Server, tmp_path: Path) -> None:
    kind = "broadcasting"
    seen: list[str] = []
    await server.make()
    async with pushing(kind, server.endpoint, seen, tmp_path) as consumer:
        await until(lambda: owns(consumer, 1))
        await server.send(*told("old", 3))
        await until(lambda: len(seen) == 3)
    await server.make_anew()
    await server.send(*told("new", 5))
    async with pushing(kind, server.endpoint, seen, tmp_path):
        await until(lambda: len(seen) == 8, 15)
    async with pushing(kind, server.endpoint, seen, tmp_path) as consumer:
        await until(lambda: owns(consumer, 1))
        await server.send("after")
        await until(lambda: len(seen) == 9, 15)
    assert seen == [*told("old", 3), *told("new", 5), "after"]


@pytest.mark.row("H11")
async def test_what_failed_in_the_topic_before_is_not_handed_back_in_its_name(server: Server, tmp_path: Path) -> None:
    """A message of the new topic has its offset by then."""
    seen: list[str] = []
    may_fail = asyncio.Event()

    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        [message] = messages
        seen.append(message.text)
        if message.text == "old0":
            await may_fail.wait()
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    await server.make()
    async with aio.QueuePushConsumer(server.endpoint, "g", "t", listener) as consumer:
        await until(lambda: owns(consumer, 1))
        await server.send("old0")
        await until(lambda: seen == ["old0"])
        [message] = [each for _, pq in consumer._core.parts.owned() for each in pq._waiting.in_order()]
        await server.make_anew()
        await server.send("new0")
        shared = consumer._core.parts.shared
        assert not await shared.send_back(MessageQueue("t", 0), message, -1), "it was a dead letter"
        may_fail.set()
        await until(lambda: "new0" in seen, 15)
    assert seen == ["old0", "new0"]


# ---- PullConsumer ----


@pytest.mark.row("B9")
@pytest.mark.parametrize("how", ["assign", "subscribe"])
@pytest.mark.parametrize(("before", "after"), [(5, 3), (3, 5)], ids=["beyond the end", "within"])
async def test_a_pull_consumer_gets_all_of_the_new_topic(server: Server, how: str, before: int, after: int) -> None:
    seen: list[str] = []
    mq = MessageQueue("t", 0)

    async def poll(count: int) -> None:
        async with asyncio.timeout(15):
            while len(seen) < count:
                with contextlib.suppress(NotFound):  # by a pull that came while there was no topic
                    seen.extend(message.text for message in await consumer.poll(timeout=1))

    await server.make()
    async with aio.PullConsumer(server.endpoint, "g") as consumer:
        await (consumer.assign("t") if how == "assign" else consumer.subscribe("t"))
        assert await consumer.poll(timeout=0.05) == []
        await server.send(*told("old", before))
        await poll(before)
        generation = consumer.generation(mq)
        await server.make_anew()
        await server.send(*told("new", after))
        await consumer.commit({mq: before})
        await poll(before + after)
        assert seen == told("old", before) + told("new", after)
        assert consumer.position(mq) == after
        assert consumer.generation(mq) not in (0, generation)
        await consumer.commit()
        assert await consumer.committed(mq) == after
        # An offset that was kept with its generation leads nowhere else.
        consumer.seek(mq, 2, generation=generation)
        del seen[:]
        await poll(after)
        assert seen == told("new", after)
        consumer.seek(mq, after - 1, generation=consumer.generation(mq))
        await poll(after + 1)
        assert seen[after:] == told("new", after)[-1:]


@pytest.mark.row("B9")
@pytest.mark.parametrize("how", ["assign", "subscribe"])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)], ids=["more", "fewer"])
async def test_a_pull_consumer_follows_a_topic_with_other_queues(
    server: Server, how: str, before: int, after: int
) -> None:
    seen: list[str] = []
    await server.make(before)
    async with aio.PullConsumer(server.endpoint, "g") as consumer:
        await (consumer.assign("t") if how == "assign" else consumer.subscribe("t"))
        assert await consumer.poll(timeout=0.05) == []
        await server.make_anew(after)
        await server.send(*told("new", 12))
        async with asyncio.timeout(15):
            while len(seen) < 12:
                with contextlib.suppress(NotFound):
                    seen.extend(message.text for message in await consumer.poll(timeout=1))
        assert consumer.assignment == [MessageQueue("t", each) for each in range(after)]
    assert sorted(seen) == sorted(told("new", 12))


async def test_a_commit_that_a_pull_overtakes_with_the_news_is_no_failure(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.make()
    commit = calls.commit_offsets
    async with aio.PullConsumer(server.endpoint, "g", consume_from=FIRST) as consumer:
        await consumer.assign("t")
        await server.send("old")
        assert [message.text for message in await consumer.poll(timeout=15)] == ["old"]
        [fetcher] = consumer._core.fetchers.values()
        before = fetcher.generation
        consumer.pause()
        await server.make_anew()

        async def overtaken(*given: Any, **options: Any) -> Any:
            results = await commit(*given, **options)
            [result] = results.values()
            fetcher.restart(result.stored.generation, 0)
            return results

        monkeypatch.setattr(calls, "commit_offsets", overtaken)
        await consumer.commit()
        assert fetcher.generation != before
        assert await consumer.committed(MessageQueue("t", 0)) is None


async def test_a_queue_that_a_recreated_topic_lacks_is_refused_while_its_queues_are_looked_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = asyncio.Event()
    commit = calls.commit_offsets

    async def commit_and_tell(*given: Any, **options: Any) -> Any:
        results = await commit(*given, **options)
        if any(result.refusal is not None for result in results.values()):
            refused.set()
        return results

    await server.make(3)
    async with aio.PullConsumer(server.endpoint, "g") as consumer:
        await consumer.subscribe("t")
        assert await consumer.poll(timeout=0.05) == []
        routes = consumer._core.session.routes
        refresh = routes.refresh

        async def refresh_after_a_refusal(topic: str) -> Any:
            await refused.wait()
            return await refresh(topic)

        monkeypatch.setattr(calls, "commit_offsets", commit_and_tell)
        monkeypatch.setattr(routes, "refresh", refresh_after_a_refusal)
        await server.make_anew(1)
        await server.send("new")
        seen: list[str] = []
        async with asyncio.timeout(15):
            while not seen:
                with contextlib.suppress(NotFound):
                    seen.extend(message.text for message in await consumer.poll(timeout=1))
        assert refused.is_set()
        assert consumer.assignment == [MessageQueue("t", 0)]


@pytest.mark.row("E18")
async def test_a_pull_consumers_listener_gets_all_of_the_new_topic(server: Server) -> None:
    seen: list[str] = []

    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(message.text for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    await server.make()
    async with aio.PullConsumer(server.endpoint, "g") as consumer:
        consuming = asyncio.create_task(consumer.consume("t", listener))
        await until(lambda: MessageQueue("t", 0) in consumer.assignment)
        await server.send(*told("old", 5))
        await until(lambda: len(seen) == 5)
        await server.make_anew()
        await server.send(*told("new", 3))
        await until(lambda: len(seen) == 8, 15)
    await consuming
    assert seen == told("old", 5) + told("new", 3)


@pytest.mark.row("E18")
async def test_a_listener_whose_topic_is_away_waits_and_says_so_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(message.text for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    monkeypatch.setattr(pull_listening, "TAKE_WITHIN", 0.02)
    await server.make()
    async with aio.PullConsumer(server.endpoint, "g") as consumer:
        take, refusals = consumer._core.take, list[NotFound]()

        async def counted(*given: Any) -> Any:
            try:
                return await take(*given)
            except NotFound as refusal:
                refusals.append(refusal)
                raise

        monkeypatch.setattr(consumer._core, "take", counted)
        consuming = asyncio.create_task(consumer.consume("t", listener))
        await until(lambda: MessageQueue("t", 0) in consumer.assignment)
        await server.delete()
        await until(lambda: len(refusals) >= 3)
        assert caplog.text.count("the listener of group g waits") == 1
        await server.make()
        await server.send("new")
        await until(lambda: seen == ["new"])
    await consuming


# ---- Topics that come later ----


@pytest.mark.row("N2")
@pytest.mark.parametrize("when", ["start", "subscribe"])
async def test_a_topic_that_is_made_after_the_start_is_picked_up(
    server: Server, tmp_path: Path, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it came later than the consumer, wherever a group begins that has no progress."""
    seen: list[str] = []

    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(message.text for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    await server.make()
    topics = ["t", "later"] if when == "start" else ["t"]
    async with aio.QueuePushConsumer(server.endpoint, "g", topics, listener) as consumer:
        if when == "subscribe":
            await consumer.subscribe("later")
        await until(lambda: owns(consumer, 1))
        assert caplog.text.count("group g waits for topic later") == 1
        await server._in_broker(server._catalog.create_topic(NewTopic(Resource("", "later"), 2)))
        async with aio.Producer(server.endpoint) as producer:
            await producer.send(Message("later", "x"))
        consumer._core._rebalancing.wake_at_once()  # as within 20 s
        await until(lambda: seen == ["x"], 15)
    assert seen == ["x"]
