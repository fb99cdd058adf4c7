"""A SQL filter is asked beside the writer, and a look has a budget of work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from popserver.filters import Filter, SqlFilter, tags
from popserver.filters import sql as filters_sql
from popserver.messages.ranges import Work
from popserver.model.errors import StoreUnavailable
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.topic import MessageType
from popserver.receiving import filter_fetch
from popserver.receiving.batch import Receive
from tests.support.builders import GROUP, TOPIC, a_message, in_order, messages_of
from tests.support.open_store import OpenStore, a_receive
from tests.support.running_broker import PATIENCE_S, RunningBroker, ids, running_broker

MANY = 40  # queues


class Slow:
    """A filter that is asked and does not answer until it is let."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.filter = SqlFilter("slow", {}, 1, self._judge)

    def _judge(self, _properties: Mapping[str, str | None]) -> bool:
        self.asked.set()
        assert self.may_answer.wait(PATIENCE_S)
        return True


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.may_answer.set()


@pytest.fixture(params=["in memory", "sqlite", "postgres"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[RunningBroker]:
    urls = {"in memory": lambda: "sqlite://", "sqlite": lambda: request.getfixturevalue("sqlite_url")}
    url = urls[request.param]() if request.param in urls else request.getfixturevalue("postgres_url")
    async with running_broker(url) as running:
        yield running


async def receive(
    broker: RunningBroker, wanted: Filter, batch_size: int = 32, *, topic: Resource = TOPIC, poll_ms: int = 60_000
) -> list[bytes]:
    found = await broker.broker.receive(
        GROUP,
        topic,
        wanted=wanted,
        batch_size=batch_size,
        invisible_ms=30_000,
        holder=Holder.SIMPLE,
        client_id="c1",
        poll_until_ms=broker.clock.now_ms() + poll_ms,
    )
    return [each.stored.message.body for each in found]


async def test_others_are_served_while_a_filter_thinks(broker: RunningBroker, slow: Slow) -> None:
    await broker.send([a_message(body=b"first")])
    thinking = asyncio.create_task(receive(broker, slow.filter))
    await asyncio.to_thread(slow.asked.wait, PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        await broker.send([a_message(body=b"second")])
        assert not thinking.done()
    slow.may_answer.set()
    assert await thinking == [b"first"]
    assert await receive(broker, slow.filter) == [b"second"]


async def test_a_filter_that_asks_for_little_does_not_wait_for_one_that_asks_for_much(
    broker: RunningBroker, slow: Slow
) -> None:
    await broker.send([a_message(body=b"first", properties={"a": "1"})])
    large = SqlFilter("large", {}, 1_000, slow.filter.judge)
    thinking = asyncio.create_task(receive(broker, large))
    await asyncio.to_thread(slow.asked.wait, PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        assert await receive(broker, filters_sql.parse("a = 1")) == [b"first"]
    slow.may_answer.set()
    thinking.cancel()


async def test_what_others_took_while_a_filter_thought_is_not_granted_again(broker: RunningBroker, slow: Slow) -> None:
    await broker.send([a_message(body=str(number).encode()) for number in range(4)])
    thinking = asyncio.create_task(receive(broker, slow.filter))
    await asyncio.to_thread(slow.asked.wait, PATIENCE_S)
    assert await receive(broker, tags.parse("*"), 3) == [b"0", b"1", b"2"]
    slow.may_answer.set()
    assert await thinking == [b"3"]


async def test_receives_by_one_filter_share_what_it_said(broker: RunningBroker) -> None:
    asked = 0

    def judge(properties: Mapping[str, str | None]) -> bool:
        nonlocal asked
        asked += 1
        return properties["a"] == "1"

    counted = SqlFilter("counted", {"a": 1}, 1, judge)
    numbers = range(200)
    await broker.send([a_message(body=str(n).encode(), properties={"a": str(n % 2)}) for n in numbers[:100]])
    await broker.send([a_message(body=str(n).encode(), properties={"a": str(n % 2)}) for n in numbers[100:]])
    found = await asyncio.gather(*(receive(broker, counted, 10) for _ in range(10)))
    assert sorted(int(body) for batch in found for body in batch) == list(numbers[1::2])
    assert asked == 200, "each message once"


async def test_a_filter_that_refuses_everything_gets_through_every_queue(broker: RunningBroker) -> None:
    await broker.topic(TOPIC._replace(name="wide"), queues=MANY)
    wide = TOPIC._replace(name="wide")
    for _ in range(3 * MANY):
        await broker.send([a_message(topic=wide, properties={"a": "0"})])
    await broker.send([a_message(topic=wide, body=b"this", properties={"a": "1"})])
    heavy = filters_sql.parse("a = 1 AND (" + " OR ".join(f"a CONTAINS '{number}'" for number in range(1, 300)) + ")")
    async with asyncio.timeout(PATIENCE_S):
        assert await receive(broker, heavy, topic=wide) == [b"this"]
    assert await receive(broker, heavy, topic=wide, poll_ms=0) == []


async def test_messages_of_open_groups_are_asked_about_too(broker: RunningBroker) -> None:
    """Whatever is behind a held message of its group waits there unasked, and is asked about when the group opens."""
    await broker.topic()
    await broker.broker.catalog.update_topic(TOPIC, accepts=(MessageType.FIFO,))
    batch = in_order("g", 29)
    sent = [each._replace(properties={"a": str(number % 3)}) for number, each in enumerate(batch, start=1)]
    await broker.send([each._replace(body=each.properties["a"].encode()) for each in sent])
    seen: list[str] = []
    while len(seen) < 10:
        held = await broker.broker.receive(
            GROUP,
            TOPIC,
            wanted=filters_sql.parse("a = 1"),
            batch_size=1,
            invisible_ms=30_000,
            holder=Holder.SIMPLE,
            client_id="c1",
            poll_until_ms=broker.clock.now_ms() + 60_000,
        )
        seen += ids(held)
        assert await broker.ack(*held) == [None]
    assert seen == [each.message_id for each in sent[::3]]


async def test_what_is_urgent_goes_before_what_the_filter_was_asked_about_earlier(broker: RunningBroker) -> None:
    await broker.topic(queues=4)
    await broker.broker.catalog.update_topic(TOPIC, accepts=(MessageType.PRIORITY,))

    async def send(body: bytes, priority: int, count: int = 1) -> None:
        kind, properties = MessageType.PRIORITY, {"a": "1"}
        several = messages_of(count, body=body, priority=priority, message_type=kind, properties=properties)
        await broker.send(several)

    await send(b"low", 0, 40)
    found = []
    for _ in range(8):
        assert await receive(broker, filters_sql.parse("a = '1'"), 1)
        await send(b"urgent", 3)
        found += await receive(broker, filters_sql.parse("a = '1'"), 1)
    # Every eighth look begins anywhere, and may leave one urgent message to the next receive.
    assert found.count(b"urgent") >= 6


async def test_a_receive_that_fails_after_its_filter_was_asked_says_why(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.send([a_message(properties={"a": "1"})])
    submit = broker.broker.engine.writer.submit

    def refuse(request: Any, **more: Any) -> Any:
        if isinstance(request, Receive):
            raise StoreUnavailable("gone")
        return submit(request, **more)

    wanted = filters_sql.parse("a = 1")
    answered = broker.broker.consuming.polls._filter_prefetch.answered
    granted: list[int] = []
    monkeypatch.setattr(
        broker.broker.consuming.polls._filter_prefetch,
        "answered",
        lambda request, count: (granted.append(count), answered(request, count)),
    )
    with monkeypatch.context() as without_store:
        without_store.setattr(broker.broker.engine.writer, "submit", refuse)
        with pytest.raises(StoreUnavailable, match="gone"):
            await receive(broker, wanted)
    assert await receive(broker, wanted) == [b"body"]
    assert granted == [0, 1]


def test_a_filter_is_not_asked_about_more_than_is_needed(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    group = store.group(meets=[topic])
    for queue in range(2):
        store.send(topic, [a_message(properties={"a": "1"}) for _ in range(10)], queue=queue)
    request = a_receive(group, topic, 4, wanted=filters_sql.parse("a = 1"))
    nothing = store.survey(request, enough=6, units=1).judged
    assert sum(len(each.accepted) for each in nothing.ranges.values()) == 1
    known = store.survey(request, enough=6).judged
    assert sum(len(each.accepted) for each in known.ranges.values()) == 20
    for enough, is_asked in ((20, False), (21, False)):
        with store.database.read() as conn:
            found = filter_fetch.fetch(conn, request, known, enough, Work())
        assert (bool(found.to_judge), found.is_all) == (is_asked, True)
    half = known._replace(ranges={key: each for key, each in known.ranges.items() if key == topic.queues[0].queue_id})
    for enough, is_asked in ((10, False), (11, True)):
        with store.database.read() as conn:
            found = filter_fetch.fetch(conn, request, half, enough, Work())
        assert (bool(found.to_judge), found.is_all) == (is_asked, is_asked)
