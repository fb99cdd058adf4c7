"""Delayed messages of both faces, and taking them back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

import popserver
from popclient import (
    BadRequest,
    Message,
    NotFound,
    PreconditionFailed,
    Producer,
    SendReceipt,
    SimpleConsumer,
    UnsupportedByServer,
    aio,
)
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import ScriptedServer, status


@pytest.fixture
def broker() -> Iterator[popserver.EmbeddedBroker]:
    # A real clock: clients count a delay by their own.
    with popserver.embedded() as embedded:
        yield embedded


def in_(after: timedelta) -> datetime:
    return datetime.now(UTC) + after


def test_it_comes_when_it_is_due(broker: popserver.EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "g", "orders") as consumer:
        producer.send("orders", "now", delivery_timestamp=in_(-timedelta(hours=1)))
        due = in_(timedelta(milliseconds=300))
        producer.send("orders", "at", delivery_timestamp=due)
        producer.send("orders", "after", delay=0.6)
        seen = [message for _ in range(3) for message in consumer.receive(1, await_duration=20)]
        arrived = datetime.now(UTC)
    assert [message.text for message in seen] == ["now", "at", "after"]
    assert {message.message_type for message in seen} == {"DELAY"}
    assert seen[1].delivery_timestamp is not None
    assert due <= seen[1].delivery_timestamp < due + timedelta(milliseconds=1)
    assert seen[2].store_timestamp is not None
    assert seen[2].store_timestamp - seen[2].born_timestamp >= timedelta(seconds=0.6)
    assert due <= arrived


def test_recall(broker: popserver.EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer:
        first = producer.send("orders", "x", delay=timedelta(hours=1))
        second = producer.send(Message("orders", "x", delay=3_600))
        assert producer.recall("orders", first) == first.message_id
        assert producer.recall("orders", second.recall_handle) == second.message_id
        with pytest.raises(NotFound, match="recalled already"):
            producer.recall("orders", first)
        with pytest.raises(BadRequest, match="malformed"):
            producer.recall("orders", "nonsense")
        with pytest.raises(PreconditionFailed, match="not due yet"):
            producer.recall("orders", producer.send("orders", "x", delivery_timestamp=in_(-timedelta(seconds=1))))
        plain = producer.send("orders", "x")
        with pytest.raises(ValueError, match="no recall handle"):
            producer.recall("orders", plain)


async def test_recall_with_asyncio(broker: popserver.EmbeddedBroker) -> None:
    async with aio.Producer(broker.endpoint) as producer:
        receipt = await producer.send("orders", "x", delay=timedelta(hours=1))
        assert await producer.recall("orders", receipt) == receipt.message_id


def test_too_far_ahead(broker: popserver.EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer, pytest.raises(BadRequest, match="in 41 days; allowed: 40 days;"):
        producer.send("orders", "x", delay=timedelta(days=41))


def test_any_time_if_the_server_allows_it() -> None:
    with popserver.embedded(max_delay="0s") as broker, Producer(broker.endpoint) as producer:
        assert producer.send("orders", "x", delay=timedelta(days=4_000)).recall_handle


@pytest.mark.parametrize(
    "two", [{"message_group": "g"}, {"priority": 0}, {"delivery_timestamp": datetime.now(UTC)}], ids=", ".join
)
def test_a_delay_excludes_what_else_makes_a_type(two: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="and delay exclude each other"):
        Message("orders", b"x", delay=1, **two)  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, 1e18, timedelta(days=36_501)], ids=str)
def test_a_delay_that_no_clock_can_count_is_refused_where_it_is_written(delay: float | timedelta) -> None:
    with pytest.raises(ValueError, match=rf"delay is {re.escape(str(delay))}; .* from 0 s to 36500 days"):
        Message("orders", "x", delay=delay)
    with pytest.raises(TypeError, match="delay is '5'; it must be seconds or a timedelta"):
        Message("orders", "x", delay="5")  # type: ignore[arg-type]


async def test_a_server_that_cannot_recall(server: ScriptedServer) -> None:
    server.answers["RecallMessage"] = lambda _: rpc.RecallMessageResponse(status=status(pb.NOT_IMPLEMENTED))
    async with aio.Producer(server.endpoints) as producer:
        with pytest.raises(UnsupportedByServer):
            await producer.recall("orders", SendReceipt("m1", 0, recall_handle="h"))


@pytest.fixture
def timed() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded(manual_clock=True) as embedded:
        yield embedded


def test_a_delay_counts_by_the_clock_of_the_server(timed: popserver.EmbeddedBroker) -> None:
    timed.clock.advance("2400h")
    due = datetime.fromtimestamp(timed.clock.now_ms() / 1_000, UTC) + timedelta(hours=1)
    with Producer(timed.endpoint) as producer, SimpleConsumer(timed.endpoint, "g", "orders") as consumer:
        receipt = producer.send("orders", "call back", delay=timedelta(hours=1))
        assert (receipt.queue_id, receipt.delivery_timestamp) == (None, due)
        timed.clock.advance("59m")
        assert timed.app.broker.engine.clock.now_ms() < due.timestamp() * 1_000
        assert consumer.receive(await_duration=0.1) == []
        timed.clock.advance("1m")
        (message,) = consumer.receive()
        assert (message.text, message.delivery_timestamp) == ("call back", due)


def test_the_clock_of_a_test_starts_at_the_time_of_the_machine(timed: popserver.EmbeddedBroker) -> None:
    with Producer(timed.endpoint) as producer, SimpleConsumer(timed.endpoint, "g", "orders") as consumer:
        producer.send("orders", "at a time of day", delivery_timestamp=in_(timedelta(hours=1)))
        assert consumer.receive(await_duration=0.1) == []
        timed.clock.advance("2h")  # it stood still since its start
        assert [message.text for message in consumer.receive()] == ["at a time of day"]
