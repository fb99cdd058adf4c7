"""Waiting for a server, and for a topic; losing a server and having it back, as the log says it."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import popclient
from popclient import ClientConfig, ConsumeConcurrentlyStatus, ConsumeResult, NotFound, Unreachable, aio
from popserver import EmbeddedBroker, embedded
from tests.support.scripted_server import ScriptedServer, until


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


async def taken(*_: Any) -> ConsumeResult:
    return ConsumeResult.SUCCESS


async def consumed(*_: Any) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


CLIENTS: dict[str, Callable[[ClientConfig], Any]] = {
    "Producer": lambda config: aio.Producer(config),
    "Producer of a topic": lambda config: aio.Producer(config, "t"),
    "SimpleConsumer": lambda config: aio.SimpleConsumer(config, "g", "t"),
    "PushConsumer": lambda config: aio.PushConsumer(config, "g", "t", taken),
    "PullConsumer": lambda config: aio.PullConsumer(config, "g-queues"),
    "QueuePushConsumer": lambda config: aio.QueuePushConsumer(config, "g-queues", "t", consumed),
}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_client_waits_for_a_server_that_is_not_up_yet(free_port: int, kind: str) -> None:
    config = ClientConfig(f"127.0.0.1:{free_port}", request_timeout=0.2, wait_for_server=60)
    client = CLIENTS[kind](config)
    starting = asyncio.create_task(client.start())
    done, _ = await asyncio.wait([starting], timeout=0.15)
    assert not done
    with embedded(port=free_port):
        await starting
        await until(lambda: client.healthy)
        await client.close()


@pytest.mark.parametrize("kind", CLIENTS)
async def test_without_that_it_says_soon_that_there_is_none(
    free_port: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popclient._session.session.HANDSHAKE_PATIENCE", 0.3)
    client = CLIENTS[kind](ClientConfig(f"127.0.0.1:{free_port}", request_timeout=0.3))
    async with asyncio.timeout(2):
        with pytest.raises(Unreachable, match=f"no answer from 127.0.0.1:{free_port}: ") as raised:
            await client.start()
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    await client.close()


@pytest.fixture
def web_port() -> Iterator[int]:
    """The port of a server that speaks HTTP/1 alone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("port", "advice"),
    [
        ("free_port", "start a server with: popmq serve, or name another endpoint"),
        ("web_port", "name the port of the server for clients (8081)"),
    ],
)
async def test_it_says_what_to_do(port: str, advice: str, request: pytest.FixtureRequest) -> None:
    client = aio.Producer(f"127.0.0.1:{request.getfixturevalue(port)}")
    with pytest.raises(Unreachable, match=re.escape(advice)):
        await client.start()
    await client.close()


def test_a_failed_connect_is_one_short_traceback(free_port: int) -> None:
    """The user's line, and the way to the sentence."""
    script = f"""
from popclient import ClientConfig, SimpleConsumer
with SimpleConsumer(ClientConfig("127.0.0.1:{free_port}", request_timeout=0.2), "g", "t"):
    pass
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    lines = ended.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith(f"popclient.errors.Unreachable: no answer from 127.0.0.1:{free_port}: ")
    assert len(lines) <= 14
    assert ended.stderr.count("Traceback") == 1


@pytest.mark.parametrize("wrong", [-1, "30", float("inf")])
def test_seconds_that_are_none(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="wait_for_server is "):
        ClientConfig(wait_for_server=wrong)


# ---- A topic that is made later ----


@pytest.fixture(scope="module")
def bare() -> Iterator[EmbeddedBroker]:
    """Where no topic makes itself."""
    with embedded(auto_create=False) as broker:
        yield broker


Receives = Callable[[ClientConfig, str, asyncio.Event], Any]


async def simple(config: ClientConfig, topic: str, found: asyncio.Event) -> None:
    async with aio.SimpleConsumer(config, topic, [topic, "there"]) as consumer:
        async for message in consumer:
            assert message.text == "first"
            await consumer.ack(message)
            found.set()


async def receive(config: ClientConfig, topic: str, found: asyncio.Event) -> None:
    async with aio.SimpleConsumer(config, topic, topic) as consumer:
        while not found.is_set():
            for message in await consumer.receive(await_duration=0.1):
                assert message.text == "first"
                found.set()


async def push(config: ClientConfig, topic: str, found: asyncio.Event) -> None:
    async def listener(_: object) -> ConsumeResult:
        found.set()
        return ConsumeResult.SUCCESS

    await aio.PushConsumer(config, topic, [topic, "there"], listener).run()


async def queue_push(config: ClientConfig, topic: str, found: asyncio.Event) -> None:
    async def listener(*_: object) -> ConsumeConcurrentlyStatus:
        found.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    await aio.QueuePushConsumer(config, topic, topic, listener).run()


async def pull(config: ClientConfig, topic: str, found: asyncio.Event) -> None:
    async with aio.PullConsumer(config, topic) as consumer:
        assert await consumer.assign(topic) == []
        while not found.is_set():
            found.set() if await consumer.poll(15) else None


async def share(config: ClientConfig, topic: str, found: asyncio.Event) -> None:
    async with aio.PullConsumer(config, topic) as consumer:
        assert await consumer.subscribe([topic, "there"]) != []
        while not found.is_set():
            found.set() if await consumer.poll(15) else None


WAITING: dict[str, Receives] = {
    "iteration": simple, "receive": receive, "push": push, "queue push": queue_push, "pull": pull, "share": share,
}  # fmt: skip


@pytest.mark.row("N2")
@pytest.mark.parametrize("kind", WAITING)
async def test_a_topic_that_is_made_later_is_consumed_from_its_first_message(
    bare: EmbeddedBroker, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    topic = f"later-{kind.replace(' ', '-')}"
    found = asyncio.Event()
    async with aio.Admin(bare.endpoint) as admin:
        if "there" not in [each.name for each in await admin.list_topics()]:
            await admin.create_topic("there")
        await admin.create_group(topic)
        config = ClientConfig(bare.endpoint, wait_for_topic=True)
        work = asyncio.create_task(WAITING[kind](config, topic, found))
        await until(
            lambda: f"waits for topic {topic}: TOPIC_NOT_FOUND (40402): topic '{topic}' does not" in caplog.text
        )
        await admin.create_topic(topic)
        async with aio.Producer(bare.endpoint) as producer:
            await producer.send(topic, "first")
        await until(lambda: found.is_set() or work.done(), 30)
        assert found.is_set(), work.exception()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert caplog.text.count(f"waits for topic {topic}: ") == 1
    assert caplog.text.count(f"topic {topic} exists now") == 1


@pytest.mark.parametrize("kind", WAITING)
async def test_without_that_a_missing_topic_is_refused(bare: EmbeddedBroker, kind: str) -> None:
    config = ClientConfig(bare.endpoint, wait_for_topic=False)
    async with aio.Admin(bare.endpoint) as admin:
        group = f"missing-{kind.replace(' ', '-')}"
        await admin.create_group(group)
    with pytest.raises(NotFound, match=f"topic '{group}' does not exist; create it with: popmq topic create"):
        await asyncio.wait_for(WAITING[kind](config, group, asyncio.Event()), 2)


# ---- The log ----


async def test_a_lost_server_is_told_once_and_once_when_it_is_back(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "popclient")
    port = server.port
    async with aio.PushConsumer(server.endpoints, "billing", ["orders", "invoices"], taken) as consumer:
        for times in (1, 2):
            await server.stop()
            await until(lambda: not consumer.healthy)
            polled = len(server.calls)
            await asyncio.sleep(0.2)
            await server.start(port)
            await until(lambda: consumer.healthy and len(server.calls) > polled)  # noqa: B023  it is awaited here
            said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
            who = "the push consumer of group billing"
            assert [each.partition(": ")[0] for each in said] == [
                f"{who} has lost its server",
                f"{who} is connected to {server.endpoints} again",
            ] * times


def test_what_a_listener_raises_is_logged_with_group_and_topic(caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    def listener(_: object) -> ConsumeResult:
        failed.set()
        raise ValueError("bad order")

    with embedded() as broker:
        with popclient.Producer(broker.endpoint) as producer:
            producer.send("orders", "x")
        with popclient.PushConsumer(broker.endpoint, "billing", "orders", listener):
            assert failed.wait(30)
    (said,) = {each.getMessage() for each in caplog.records if "the listener raised ValueError" in each.getMessage()}
    assert "group billing" in said
    assert "orders" in said
