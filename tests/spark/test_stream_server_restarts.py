"""A server that is killed and comes back under a running query: nothing is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient import Message, Producer
from popclient.spark.modes import MODES
from tests.spark.stepping import ALL_COLUMNS, Stepping
from tests.support.scripted_server import until_in_thread
from tests.support.server_process import served


def send(endpoints: str, bodies: range) -> None:
    with Producer(endpoints) as producer:
        producer.send_many([Message("t", str(body)) for body in bodies]).raise_for_failures()


async def test_a_lease_outlives_its_server(database_url: str) -> None:
    """The names are enough: a batch that was received from the one is acked at the other, and is not there again."""
    options = {"consumerGroup": "g", "topic": "t", "leaseOwner": "o", "maxMessagesPerTrigger": "20"}
    query = Stepping()
    async with served(database_url) as server:
        send(server.endpoint, range(50))
        query.start(
            MODES["lease"].stream_reader({**options, "endpoints": server.endpoint}, ALL_COLUMNS), available_now=True
        )
        first = await asyncio.to_thread(query.batch)
        await server.kill()
        going_on = asyncio.create_task(asyncio.to_thread(query.run))
        await server.start()
        await going_on
    assert len(first) == 20
    assert sorted(map(int, query.bodies)) == list(range(50))


async def test_a_journal_goes_on_when_its_server_is_back(sqlite_url: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"consumerGroup": "g", "topic": "t", "journalPath": str(tmp_path / "journal")}
    query = Stepping()
    async with served(sqlite_url) as server:
        send(server.endpoint, range(50))
        reader = MODES["journal"].stream_reader({**options, "endpoints": server.endpoint}, ALL_COLUMNS)
        query.start(reader)
        await asyncio.to_thread(until_in_thread, lambda: query.batch() and len(query.rows) >= 50, 30)
        await server.kill()
        assert await asyncio.to_thread(query.batch) == []
        await server.start()
        await asyncio.to_thread(send, server.endpoint, range(50, 60))
        await asyncio.to_thread(until_in_thread, lambda: query.batch() and len(query.rows) >= 60, 60)
        await asyncio.to_thread(reader.stop)
    assert sorted(map(int, query.bodies)) == list(range(60))
