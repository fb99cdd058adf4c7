"""Delayed and half messages outlive `kill -9`: nothing acknowledged is lost, nothing comes twice or too early."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from popclient import Message, TransactionResolution
from popclient.admin import Admin
from popclient.aio import Producer, SimpleConsumer
from popclient.message import MessageView
from tests.support.server_process import served

COUNT = 30
PATIENCE_S = 30


@pytest.mark.timeout(360)
async def test_a_kill_takes_nothing_back(database_url: str) -> None:
    async with served(database_url) as server:
        async with Producer(server.endpoint) as producer:
            due = datetime.now(UTC) + timedelta(seconds=3)
            later = [await producer.send("orders", f"later {n}", delivery_timestamp=due) for n in range(COUNT)]
            taken_back = await producer.send("orders", "taken back", delivery_timestamp=due)
            await producer.recall("orders", taken_back)
            halves = [producer.transaction(Message("orders", f"half {n}")) for n in range(4)]
            for half in halves:
                await half._half.begin()
            await halves[0].commit()
            await halves[1].rollback()
            await server.kill()
            await server.start()
            await halves[2].commit()
            await halves[3].rollback()
        received = await _all(server.endpoint, COUNT + 2)
        assert sorted(each.text for each in received) == sorted(
            ["half 0", "half 2", *(f"later {number}" for number in range(COUNT))]
        )
        assert {each.message_id for each in received if each.text.startswith("later")} == {
            each.message_id for each in later
        }
        assert all(
            each.store_timestamp and each.store_timestamp >= due for each in received if each.text.startswith("later")
        )
        with Admin(server.endpoint) as admin:
            assert admin.list_scheduled("orders") == []


@pytest.mark.timeout(360)
async def test_what_fell_due_while_nobody_was_there(database_url: str) -> None:
    async with served(database_url, "--transaction-timeout", "100ms") as server:
        async with Producer(server.endpoint) as producer:
            await producer.send("orders", "later", delay=0.3)
            half = producer.transaction(Message("orders", "half"))
            await half._half.begin()
            await server.kill()
        # Its start takes longer than the message waits.
        await server.start()

        async def checker(_message: MessageView) -> TransactionResolution:
            return TransactionResolution.COMMIT

        async with Producer(server.endpoint, "orders", checker=checker):
            assert sorted(each.text for each in await _all(server.endpoint, 2)) == ["half", "later"]


async def _all(endpoint: str, count: int) -> list[MessageView]:
    """Everything there is, and that there is no more."""
    found: list[MessageView] = []
    deadline = time.monotonic() + PATIENCE_S
    async with SimpleConsumer(endpoint, "billing", "orders") as consumer:
        while len(found) < count and time.monotonic() < deadline:
            received = await consumer.receive(await_duration=5)
            await consumer.ack(received)
            found += received
        assert await consumer.receive(await_duration=0) == []
    return found
