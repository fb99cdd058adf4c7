"""Pulls that are held, and what ends their wait; the clock stands still unless the test moves it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from popserver.engine import wakeups
from popserver.filters import tags
from popserver.model.errors import BadRequest, StoreUnavailable, TooManyRequests, TopicNotFound
from popserver.model.message import SendResult
from popserver.model.names import Resource
from popserver.pulling import parked as pulling_parked
from popserver.pulling import read as pulling_read
from popserver.pulling.flow import PullRequest
from popserver.pulling.rules import Pulled, PullStatus
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.pulls import offsets
from tests.support.running_broker import RunningBroker, until, watched
from tests.support.several_brokers import SeveralBrokers

pytestmark = pytest.mark.timeout(14)  # a pull that is broken may wait for ever

SECOND = 1_000
FOUND, NO_NEW, NO_MATCHED = PullStatus.FOUND, PullStatus.NO_NEW_MSG, PullStatus.NO_MATCHED_MSG


async def pull(broker: RunningBroker, offset: int = 0, *, wanted: str = "*", poll_ms: int = 0, **more: Any) -> Pulled:
    wish: dict[str, Any] = {"group": GROUP, "topic": TOPIC, "queue_number": 0, "batch_size": 32} | more
    until_ms = broker.clock.now_ms() + poll_ms
    return await broker.broker.consuming.pulls.pull(
        PullRequest(offset=offset, wanted=tags.parse(wanted), until_ms=until_ms, **wish)
    )


async def held(
    broker: RunningBroker, offset: int = 0, *, poll_ms: int = 15 * SECOND, **more: Any
) -> asyncio.Task[Pulled]:
    """A pull that has parked."""
    parked = broker.broker.consuming.pulls.parked
    before = parked.count
    task = asyncio.create_task(pull(broker, offset, poll_ms=poll_ms, **more))
    await until(lambda: parked.count > before or task.done())
    assert not task.done(), await task
    return task


@pytest.mark.row("A4")
@pytest.mark.row("A5")
async def test_one_that_finds_nothing_is_answered_at_its_limit_and_not_before(broker: RunningBroker) -> None:
    await broker.topic()
    waiting = await held(broker)
    for _ in range(2):
        await broker.advance(5 * SECOND)
        assert not waiting.done()
    await broker.advance(5 * SECOND - 1)
    assert not waiting.done()
    await broker.advance(1)
    pulled = await waiting
    assert (pulled.status, pulled.next_offset, pulled.messages) == (NO_NEW, 0, [])
    assert broker.broker.parked == 0


@pytest.mark.row("A4")
async def test_with_a_backlog_it_is_answered_at_once(broker: RunningBroker) -> None:
    await broker.topic()
    await broker.send(3)
    assert offsets(await pull(broker, 1, poll_ms=15 * SECOND)) == [1, 2]


@pytest.mark.row("A6")
async def test_a_new_message_wakes_it(either_broker: RunningBroker) -> None:
    await either_broker.topic()
    waiting = await held(either_broker)
    await either_broker.advance(3 * SECOND)
    (sent,) = await either_broker.send()
    pulled = await waiting
    assert [each.message.message_id for each in pulled.messages] == [sent.message_id]
    assert (pulled.status, pulled.next_offset) == (FOUND, 1)
    assert either_broker.clock.now_ms() % (60 * SECOND) == 3 * SECOND, "at once, not at some beat"


@pytest.mark.row("A7")
async def test_what_its_filter_refuses_leaves_it_held_and_moves_it_on(either_broker: RunningBroker) -> None:
    await either_broker.topic()
    waiting = await held(either_broker, wanted="B")
    await either_broker.send([a_message(tag="A") for _ in range(3)])
    await either_broker.broker.settle()
    await until(lambda: either_broker.broker.consuming.pulls.parked.count == 1)
    assert not waiting.done()
    await either_broker.send([a_message(tag="B")])
    pulled = await waiting
    assert (offsets(pulled), pulled.next_offset) == ([3], 4)


@pytest.mark.row("B8")
async def test_at_its_limit_it_tells_how_far_it_has_come(broker: RunningBroker) -> None:
    await broker.topic()
    waiting = await held(broker, wanted="B")
    await broker.send([a_message(tag="A") for _ in range(3)])
    await broker.broker.settle()
    await until(lambda: broker.broker.consuming.pulls.parked.count == 1)
    await broker.advance(15 * SECOND)
    pulled = await waiting
    assert (pulled.status, pulled.next_offset) == (NO_MATCHED, 3)


@pytest.mark.row("B8")
async def test_one_that_passes_something_over_at_once_says_so_at_once(broker: RunningBroker) -> None:
    await broker.topic()
    await broker.send([a_message(tag="A") for _ in range(3)])
    pulled = await pull(broker, wanted="B", poll_ms=15 * SECOND)
    assert (pulled.status, pulled.next_offset) == (NO_MATCHED, 3)


@pytest.mark.row("A7")
async def test_woken_by_more_than_a_window_it_looks_to_the_end(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling_read, "WINDOW_OFFSETS", 2)
    await broker.topic()
    waiting = await held(broker, wanted="B")
    await broker.send([a_message(tag=each) for each in "AAAAAAAB"])
    assert offsets(await waiting) == [7]


@pytest.mark.row("B14")
async def test_an_illegal_offset_is_not_held(broker: RunningBroker) -> None:
    await broker.topic()
    await broker.send(3)
    topic = await broker.broker.catalog.topic(TOPIC)
    pulled = await pull(broker, 9, poll_ms=15 * SECOND, generation=topic.generation)
    assert (pulled.status, pulled.next_offset) == (PullStatus.OFFSET_ILLEGAL, 3)


@pytest.mark.row("N6")
async def test_what_was_sent_is_there_to_be_pulled(either_broker: RunningBroker) -> None:
    """The answer to a send comes after its commit, and a pull sees what is committed."""
    await either_broker.topic()
    for number in range(50):
        (sent,) = await either_broker.send()
        pulled = await pull(either_broker, number, batch_size=1)
        assert [each.message.message_id for each in pulled.messages] == [sent.message_id]


@pytest.mark.row("H12")
async def test_the_offset_that_a_send_reports_is_where_the_message_is(broker: RunningBroker) -> None:
    await broker.topic(queues=4)
    for sent in [each for _ in range(8) for each in await broker.send()]:
        (found, *_) = (await pull(broker, sent.offset, queue_number=sent.queue_number)).messages
        assert (found.message.message_id, found.offset, found.queue_number) == (
            sent.message_id,
            sent.offset,
            sent.queue_number,
        )


async def test_a_ring_costs_one_look_however_many_wait(broker: RunningBroker) -> None:
    """Those whose queue has not grown do not look."""
    await broker.topic(queues=4)
    waiting = [await held(broker, queue_number=number % 4, group=Resource("", f"g{number}")) for number in range(12)]
    looks: list[str] = []
    with watched(broker.broker.engine.database, "SELECT", lambda: looks.append("look")):
        await broker.send()
        await until(lambda: sum(each.done() for each in waiting) == 3)
        await broker.broker.settle()
    assert broker.broker.consuming.pulls.parked.count == 9
    # Once the ends of all; then each of the three its queue's end, its messages' sizes, the messages.
    assert len(looks) <= 1 + 3 * 3 + 2
    await broker.broker.drain()
    assert {(await each).status for each in waiting} == {FOUND, NO_NEW}


async def test_the_longest_wait_ends_first(broker: RunningBroker) -> None:
    await broker.topic()
    names = [f"g{number}" for number in range(24)]
    answered: list[str] = []
    waiting = [await held(broker, group=Resource("", name)) for name in names]
    for name, each in zip(names, waiting, strict=True):
        each.add_done_callback(lambda _, name=name: answered.append(name))
    await broker.send()
    await asyncio.gather(*waiting)
    assert answered == names


async def test_nothing_is_missed_between_a_look_and_the_parking(
    either_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message comes there and then, and no other to wake it."""
    await either_broker.topic()
    looks, sent = either_broker.broker.consuming.pulls._batcher, list[SendResult]()
    look = looks.read

    async def look_and_send(request: pulling_read.QueueRead) -> Pulled:
        found = await look(request)
        if not sent:
            sent.extend(await either_broker.send())
        return found

    monkeypatch.setattr(looks, "read", look_and_send)
    pulled = await pull(either_broker, poll_ms=3_600 * SECOND)
    assert [each.message.message_id for each in pulled.messages] == [each.message_id for each in sent]


async def test_nothing_is_missed_while_the_ends_are_looked_at(
    either_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one message comes when the look has passed its place."""
    await either_broker.topic()
    waiting = await held(either_broker)
    parked, sent = either_broker.broker.consuming.pulls.parked, list[SendResult]()
    ends_of = parked._ends_of

    async def look_and_send(topic_id: int) -> pulling_parked.Ends:
        ends = await ends_of(topic_id)
        if not sent:
            sent.extend(await either_broker.send())
        return ends

    monkeypatch.setattr(parked, "_ends_of", look_and_send)
    parked.wake((await either_broker.broker.catalog.topic(TOPIC)).topic_id)
    pulled = await waiting
    assert [each.message.message_id for each in pulled.messages] == [each.message_id for each in sent]


@pytest.mark.row("A8")
@pytest.mark.parametrize(("cost_ms", "warnings"), [(5 * SECOND, 0), (5 * SECOND + 1, 1)])
async def test_a_look_that_takes_too_long_is_logged(broker: RunningBroker, cost_ms: int, warnings: int) -> None:
    await broker.topic()
    await pull(broker)

    def time_passes() -> None:
        broker.clock._now_ms += cost_ms

    with (
        structlog.testing.capture_logs() as logs,
        watched(broker.broker.engine.database, "SELECT queue.queue_id, queue.number", time_passes),
    ):
        await pull(broker)
    assert [(each["log_level"], each["cost_ms"], each["group"]) for each in logs] == [
        ("warning", cost_ms, "billing")
    ] * warnings


@pytest.mark.row("A9")
async def test_the_1025th_pull_of_a_group_on_a_topic_is_answered(broker: RunningBroker) -> None:
    await broker.topic(queues=2)
    first = await held(broker)
    more = [asyncio.create_task(pull(broker, poll_ms=15 * SECOND, queue_number=n % 2)) for n in range(1_023)]
    parked = broker.broker.consuming.pulls.parked
    await until(lambda: parked.count == wakeups.PARKED_PER_TOPIC_AND_GROUP_MAX)
    with pytest.raises(
        TooManyRequests, match=r"1024 pulls are waiting, too many for group 'billing' on topic 'orders'"
    ):
        await pull(broker, poll_ms=15 * SECOND)
    other = await held(broker, group=Resource("", "other"))
    assert (await pull(broker)).status is NO_NEW, "one that need not be held is answered"
    await broker.broker.drain()
    assert {(await each).status for each in (first, *more, other)} == {NO_NEW}
    assert parked.count == 0


@pytest.mark.row("A9")
async def test_all_groups_together_have_a_limit_too(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling_parked, "PARKED_MAX", 2)
    await broker.topic()
    waiting = [await held(broker, group=Resource("", name)) for name in ("a", "b")]
    with pytest.raises(TooManyRequests, match="2 pulls are waiting"):
        await pull(broker, group=Resource("", "c"), poll_ms=SECOND)
    await broker.advance(15 * SECOND)
    assert [(await each).status for each in waiting] == [NO_NEW] * 2


async def test_a_server_that_leaves_answers_all_and_holds_none(broker: RunningBroker) -> None:
    await broker.topic()
    waiting = await held(broker)
    await broker.broker.drain()
    assert (await waiting).status is NO_NEW
    assert (await pull(broker, poll_ms=15 * SECOND)).status is NO_NEW


async def test_a_client_that_leaves_takes_its_pull_along(broker: RunningBroker) -> None:
    await broker.topic()
    gone, here = await held(broker), await held(broker)
    gone.cancel()
    await until(lambda: broker.broker.consuming.pulls.parked.count == 1)
    await broker.send()
    assert offsets(await here) == [0]


async def test_a_topic_that_is_deleted_ends_the_wait_at_the_next_ring(broker: RunningBroker) -> None:
    await broker.topic()
    waiting = await held(broker)
    topic = await broker.broker.catalog.topic(TOPIC)
    await broker.broker.catalog.delete_topic(TOPIC)
    broker.broker.consuming.pulls.parked.wake(topic.topic_id)
    with pytest.raises(TopicNotFound, match="'orders'"):
        await waiting


async def test_a_store_that_does_not_answer_is_told_to_who_waits(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topic()
    waiting = await held(broker)

    async def gone(_look: object) -> object:
        raise StoreUnavailable

    topic = await broker.broker.catalog.topic(TOPIC)
    monkeypatch.setattr(broker.broker.engine.reader, "look_up", gone)
    broker.broker.consuming.pulls.parked.wake(topic.topic_id)
    with pytest.raises(StoreUnavailable):
        await waiting
    monkeypatch.undo()


async def test_a_queue_that_is_not_there_is_named(broker: RunningBroker) -> None:
    await broker.topic(queues=8)
    for number in (8, -1, 1 << 30):
        with pytest.raises(BadRequest, match=f"'orders' has no queue {number}; it has 8, numbered 0 to 7"):
            await pull(broker, queue_number=number)


@pytest.mark.row("A6")
async def test_a_send_wakes_a_pull_at_another_server(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    waiting = await held(servers.b, poll_ms=3_600 * SECOND)
    (sent,) = await servers.a.send()
    assert [each.message.message_id for each in (await waiting).messages] == [sent.message_id]


@pytest.mark.row("K8")
async def test_receives_and_pulls_of_one_topic_do_not_heed_each_other(either_broker: RunningBroker) -> None:
    await either_broker.topic()
    receiving = await either_broker.poll()
    pulling_ = await held(either_broker, group=Resource("", "readers"))
    (sent,) = await either_broker.send()
    (delivered,) = await receiving
    assert delivered.stored.message.message_id == sent.message_id
    assert offsets(await pulling_) == [0]
    assert offsets(await pull(either_broker, group=GROUP)) == [0], "whoever names an offset may read it"
