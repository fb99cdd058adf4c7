"""A filter judges a message once, wherever it waited: in a message group, until its time, among dead letters."""

from __future__ import annotations

import pytest

from popserver.model.group import NewGroup
from popserver.model.message import Message
from popserver.model.names import dead_letter_topic
from popserver.model.retry import RetryPolicy
from popserver.model.topic import MessageType
from tests.support.builders import GROUP, a_message
from tests.support.open_store import SECOND
from tests.support.running_broker import RunningBroker


def in_group(name: str, tag: str) -> Message:
    return a_message(message_type=MessageType.FIFO, message_group=name, tag=tag)


def tags(deliveries: list[object]) -> list[str | None]:
    return [each.stored.message.tag for each in deliveries]  # type: ignore[attr-defined]


async def test_in_a_message_group_what_it_refuses_is_passed_over_and_blocks_nothing(broker: RunningBroker) -> None:
    await broker.send([in_group("g", tag) for tag in "ABABB"])
    (first, second) = await broker.receive(wanted="A")
    await broker.send([in_group("g", tag) for tag in "BAB"])  # behind the scan: the group is locked
    assert await broker.receive(wanted="A") == []
    assert await broker.ack(first, second) == [None, None]
    (third,) = await broker.receive(wanted="A")
    assert third.stored.message.tag == "A"
    assert await broker.ack(third) == [None]
    assert await broker.receive() == []
    assert set((await broker.states()).values()) == {"COMMIT"}


@pytest.mark.parametrize("late", [False, True], ids=["at once", "after its time"])
async def test_a_delayed_message_is_judged_when_its_time_has_come(broker: RunningBroker, late: bool) -> None:
    due_ms = broker.clock.now_ms() + 10 * SECOND
    await broker.send([a_message(message_type=MessageType.DELAY, deliver_at_ms=due_ms, tag=tag) for tag in "AB"])
    assert await broker.receive(wanted="A") == []
    if late:
        await broker.advance(10 * SECOND)
        assert tags(await broker.receive(wanted="A")) == ["A"]  # type: ignore[arg-type]
    else:
        waiting = await broker.poll(wanted="A")
        await broker.advance(10 * SECOND)
        assert tags(await waiting) == ["A"]  # type: ignore[arg-type]
    assert await broker.receive() == []


async def test_a_dead_letter_is_judged_like_any_message(broker: RunningBroker) -> None:
    await broker.broker.catalog.create_group(NewGroup(GROUP, RetryPolicy(1)))
    await broker.send([a_message(tag=tag) for tag in "AB"])
    assert len(await broker.receive()) == 2
    await broker.advance(31 * SECOND)
    dead = dead_letter_topic(GROUP)
    menders = GROUP._replace(name="menders")
    assert tags(await broker.receive(group=menders, topic=dead, wanted="B")) == ["B"]  # type: ignore[arg-type]
    assert await broker.receive(group=menders, topic=dead) == []
