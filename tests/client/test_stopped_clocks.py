"""Tests of users that stop or move the clock of the process: freezegun and time-machine patch Python's functions."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import freezegun
import pytest

import popserver
from popclient import ConsumeResult, MessageView, Producer, PushConsumer, SimpleConsumer, aio
from tests.support.waiting import soon

time_machine = pytest.importorskip("time_machine")

THEN = datetime(2020, 2, 3, 10, tzinfo=UTC)
STOPPED: dict[str, Any] = {
    "freezegun": lambda: freezegun.freeze_time(THEN),
    "freezegun that ticks": lambda: freezegun.freeze_time(THEN, tick=True),
    "freezegun beside asyncio": lambda: freezegun.freeze_time(THEN, real_asyncio=True),
    "time-machine": lambda: time_machine.travel(THEN, tick=False),
    "time-machine that ticks": lambda: time_machine.travel(THEN),
    "time-machine in the future": lambda: time_machine.travel(datetime(2090, 1, 1, tzinfo=UTC), tick=False),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", STOPPED)
@pytest.mark.parametrize("starts_within", [False, True])
def test_clients_and_broker(kind: str, starts_within: bool) -> None:
    """Messages come, and waits end: of a receive that finds nothing, of a hold that is kept alive."""
    stopped: AbstractContextManager[object] = STOPPED[kind]()
    if starts_within:
        with stopped, popserver.embedded(manual_clock=True) as broker:
            send_and_receive(broker)
    else:
        with popserver.embedded(manual_clock=True) as broker, stopped:
            send_and_receive(broker)


def send_and_receive(broker: popserver.EmbeddedBroker) -> None:
    pushed: list[MessageView] = []

    def listener(message: MessageView) -> ConsumeResult:
        pushed.append(message)
        return ConsumeResult.SUCCESS

    with (
        Producer(broker.endpoint) as producer,
        SimpleConsumer(broker.endpoint, "g", "t") as consumer,
        PushConsumer(broker.endpoint, "push", "t", listener),
    ):
        producer.send("t", "x")
        [message] = consumer.receive()
        with message.keep_alive():
            consumer.ack(message)
        assert consumer.receive(await_duration=0.2) == []
        broker.clock.advance("1s")
        soon(lambda: len(pushed) == 1)


@pytest.mark.timeout(60)
def test_asyncio_clients() -> None:
    async def run(endpoint: str) -> None:
        async with aio.Producer(endpoint) as producer, aio.SimpleConsumer(endpoint, "g", "t") as consumer:
            await producer.send("t", "x")
            [message] = await consumer.receive()
            await consumer.ack(message)

    with popserver.embedded() as broker, freezegun.freeze_time(THEN, real_asyncio=True):
        asyncio.run(run(broker.endpoint))
