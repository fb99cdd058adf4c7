"""A server that answers nothing and closes no connection: by then it has given the client's messages away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from popclient import ClientConfig, ConsumeResult, MessageView, aio
from popclient._session import heartbeats, transport
from proof.torture.proxy import Fault, FaultyProxy
from tests.client.push_consumers import given_back
from tests.client.test_push_in_order import put
from tests.support.scripted_server import ScriptedServer, until


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(fifo=True, retry_intervals=[3]) as server:
        yield server


class Listener:
    """Works on the first message until it is told to end."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.may_end = asyncio.Event()

    async def __call__(self, message: MessageView) -> ConsumeResult:
        self.seen.append(message.text)
        await self.may_end.wait()
        return ConsumeResult.SUCCESS


async def test_it_is_noticed_and_nothing_more_is_begun(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_INTERVAL", 0.05)
    monkeypatch.setattr(heartbeats, "UNANSWERED_PAUSE", 0.02)
    listener, lost, back = Listener(), list[Exception](), list[bool]()
    async with FaultyProxy(server.endpoints) as proxy:
        config = ClientConfig(
            proxy.endpoint, request_timeout=0.3, on_disconnect=lost.append, on_reconnect=lambda: back.append(True)
        )
        put(server, "a1 a2 b x")
        async with aio.PushConsumer(config, "push", "t", listener, concurrency=1) as consumer:
            await until(lambda: listener.seen and consumer.healthy)
            monkeypatch.setattr(transport, "FORGOTTEN_AFTER", 0.5)
            proxy.break_by(Fault.CUT)
            await until(lambda: lost)
            assert not consumer.healthy
            assert "has not answered for" in str(lost[0])
            listener.may_end.set()
            await until(lambda: consumer._core._runner.unfinished == 0)
            assert listener.seen == ["a1"]
            monkeypatch.setattr(transport, "FORGOTTEN_AFTER", 30.0)
            proxy.mend()
            await until(lambda: back and len(given_back(server)) == 3)
            assert sorted(given_back(server)) == ["a2", "b", "x"]
            assert listener.seen == ["a1"]
    (warning,) = [each for each in caplog.records if "are not begun" in each.message]
    assert warning.levelno == logging.WARNING


async def test_the_next_endpoint_is_tried(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_INTERVAL", 0.05)
    monkeypatch.setattr(heartbeats, "UNANSWERED_PAUSE", 0.02)
    back = list[bool]()
    async with FaultyProxy(server.endpoints) as proxy:
        endpoints = f"{proxy.endpoint};{server.endpoints}"
        config = ClientConfig(endpoints, request_timeout=0.3, on_reconnect=lambda: back.append(True))
        async with aio.Producer(config, "t") as producer:
            await until(lambda: producer.healthy)
            monkeypatch.setattr(transport, "FORGOTTEN_AFTER", 0.5)
            proxy.break_by(Fault.CUT)
            await until(lambda: back and producer.healthy)


async def test_a_client_that_did_not_run_begins_nothing_of_what_it_had(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has noticed it yet, as after a process is stopped for a while."""
    listener = Listener()
    put(server, "a1 a2 b x")
    async with aio.PushConsumer(server.endpoints, "push", "t", listener, concurrency=1) as consumer:
        await until(lambda: listener.seen and consumer.healthy)
        monkeypatch.setattr(transport, "FORGOTTEN_AFTER", 0.05)
        await until(lambda: consumer._core.session.transport.is_silent)
        listener.may_end.set()
        await until(lambda: len(given_back(server)) == 3)
        assert listener.seen == ["a1"]


async def test_when_it_answers_again_nothing_is_begun_that_came_before(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer may be the first that a client hears, before anything else runs."""
    listener = Listener()
    put(server, "a1 a2 b x")
    async with aio.PushConsumer(server.endpoints, "push", "t", listener, concurrency=1) as consumer:
        await until(lambda: listener.seen and consumer.healthy)
        session = consumer._core.session
        monkeypatch.setattr(transport, "FORGOTTEN_AFTER", 0.05)
        await until(lambda: session.transport.is_silent)
        monkeypatch.setattr(heartbeats, "HEARTBEAT_INTERVAL", 60.0)
        await session.heartbeats.send()
        await until(lambda: len(given_back(server)) == 3)
        assert listener.seen == ["a1"]
        listener.may_end.set()
