"""`stop` ends a long poll: from a signal handler, from another thread, from a task."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import popclient
from popclient import ClientClosed, aio
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.scripted_server import until, until_in_thread

SOON_S = 2.0  # half a second on an idle machine
READS = {
    "iteration": "for message in consumer: consumer.ack(message)",
    "receive": """
        while not consumer.stopped:
            for message in consumer.receive(): consumer.ack(message)
    """,
}
PULLS = {
    "iteration": "for message in consumer: pass",
    "poll": "while not consumer.stopped: consumer.poll()",
    "consume": "consumer.consume('TOPIC', lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)",
}


def ends_at_sigterm(script: str, broker: EmbeddedBroker, topic: str, waits: Callable[[], bool]) -> None:
    whole = "import signal, sys\nfrom popclient import *\n" + textwrap.dedent(script).replace("TOPIC", topic)
    process = subprocess.Popen([sys.executable, "-c", whole, broker.endpoint], stdout=subprocess.PIPE, text=True)
    try:
        until_in_thread(waits)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "closed\n")
        assert time.monotonic() - began < SOON_S
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("read", READS)
def test_sigterm_ends_a_simple_consumer(shared: EmbeddedBroker, topic: str, read: str) -> None:
    script = f"""
with SimpleConsumer(sys.argv[1], "TOPIC", "TOPIC") as consumer:
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    {READS[read].strip()}
print("closed")
"""
    ends_at_sigterm(script, shared, topic, lambda: shared.app.broker.engine.wakeups.parked == 1)


def test_sigterm_ends_run(shared: EmbeddedBroker, topic: str) -> None:
    script = """
SimpleConsumer(sys.argv[1], "TOPIC", "TOPIC").run(lambda message: None)
print("closed")
"""
    ends_at_sigterm(script, shared, topic, lambda: shared.app.broker.engine.wakeups.parked == 1)


def test_run_acks_what_its_listener_returned_from(
    shared: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, int]] = []
    consumer = popclient.SimpleConsumer(shared.endpoint, topic, topic)

    def listener(message: popclient.MessageView) -> None:
        seen.append((message.text, message.delivery_attempt))
        if message.text == "bad" and message.delivery_attempt == 1:
            consumer.change_invisible_duration(message, 0)  # its hold ends at once
            raise ValueError("not today")
        if len(seen) == 3:
            consumer.stop()

    with popclient.Producer(shared.endpoint) as producer:
        for body in ("bad", "good"):
            producer.send(topic, body)
    consumer.run(listener)
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("good", 1)]
    assert f"the listener of group {topic} failed" in caplog.text
    assert "not today" in caplog.text
    with popclient.SimpleConsumer(shared.endpoint, topic, topic) as another:
        assert another.receive(await_duration=0.2) == [], "all are acked"


def test_run_does_what_its_listener_says(shared: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, int]] = []
    consumer = popclient.SimpleConsumer(shared.endpoint, topic, topic)

    def listener(message: popclient.MessageView) -> popclient.ConsumeResult:
        seen.append((message.text, message.delivery_attempt))
        if message.text == "wrong":
            raise popclient.GiveUp("there is no table 0")
        if message.delivery_attempt == 1:
            consumer.change_invisible_duration(message, 0)  # its hold ends at once
            return popclient.ConsumeResult.FAILURE
        consumer.stop()
        return popclient.ConsumeResult.SUCCESS

    with popclient.Producer(shared.endpoint) as producer:
        for body in ("wrong", "later"):
            producer.send(topic, body)
    consumer.run(listener)
    assert sorted(seen) == [("later", 1), ("later", 2), ("wrong", 1)]
    assert "returned FAILURE" in caplog.text
    assert "it becomes a dead letter: there is no table 0" in caplog.text
    with Admin(shared.endpoint) as admin:
        (letter,) = admin.dead_letters(topic)
    assert "there is no table 0" in letter.reason


def test_run_takes_no_coroutine_function(shared: EmbeddedBroker, topic: str) -> None:
    async def listener(_message: popclient.MessageView) -> None: ...

    with (
        popclient.SimpleConsumer(shared.endpoint, topic, topic) as consumer,
        pytest.raises(TypeError, match=r"is a coroutine function; use popclient\.aio\.SimpleConsumer"),
    ):
        consumer.run(listener)


async def test_run_in_an_event_loop(shared: EmbeddedBroker, topic: str) -> None:
    seen = []
    consumer = aio.SimpleConsumer(shared.endpoint, topic, topic)

    async def listener(message: popclient.MessageView) -> None:
        seen.append(message.text)
        consumer.stop()

    async with aio.Producer(shared.endpoint) as producer:
        await producer.send(topic, "x")
    await consumer.run(listener)
    assert seen == ["x"]


@pytest.mark.parametrize("read", PULLS)
def test_sigterm_ends_a_pull_consumer(shared: EmbeddedBroker, topic: str, read: str) -> None:
    assign = "" if read == "consume" else "consumer.assign('TOPIC')"
    script = f"""
with Producer(sys.argv[1]) as producer:
    producer.send("TOPIC", "x")
with PullConsumer(sys.argv[1], "TOPIC", consume_from="CONSUME_FROM_LAST_OFFSET") as consumer:
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    {assign}
    {PULLS[read]}
print("closed")
"""
    queues = 9 if read == "consume" else 8  # with the retry topic
    ends_at_sigterm(script, shared, topic, lambda: shared.app.broker.consuming.pulls.parked.count >= queues)


def test_what_was_not_handed_out_goes_back(shared: EmbeddedBroker, topic: str) -> None:
    with popclient.Producer(shared.endpoint) as producer:
        producer.send_many([popclient.Message(topic, str(n)) for n in range(5)]).raise_for_failures()
    consumer = popclient.SimpleConsumer(shared.endpoint, "g", topic)
    seen = []
    for message in consumer:
        seen.append(message)
        consumer.stop()
        consumer.ack(message)  # what it holds can be settled
    assert len(seen) == 1
    with pytest.raises(ClientClosed, match="the consumer was stopped"):
        consumer.receive()
    with popclient.SimpleConsumer(shared.endpoint, "g", topic) as other:
        again: list[popclient.MessageView] = []
        while len(again) < 4:
            again += other.receive(await_duration=10)
        assert {message.delivery_attempt for message in again} == {1}
    consumer.close()


def test_another_thread_stops_it(shared: EmbeddedBroker, topic: str) -> None:
    with popclient.SimpleConsumer(shared.endpoint, "g", topic) as consumer:
        threading.Timer(0.1, consumer.stop).start()
        began = time.monotonic()
        assert consumer.receive(await_duration=30) == []
        assert time.monotonic() - began < SOON_S
        assert consumer.stopped
        consumer.stop()


OPENS: dict[str, Callable[[EmbeddedBroker, str], Any]] = {
    "simple": lambda broker, topic: aio.SimpleConsumer(broker.endpoint, "g", topic),
    "pull": lambda broker, topic: aio.PullConsumer(broker.endpoint, "g-queues"),
}


@pytest.mark.parametrize("kind", OPENS)
async def test_a_task_stops_it(shared: EmbeddedBroker, topic: str, kind: str) -> None:
    async with aio.Producer(shared.endpoint, topic), OPENS[kind](shared, topic) as consumer:
        if kind == "pull":
            await consumer.assign(topic)

        async def iterate() -> list[Any]:
            return [message async for message in consumer]

        iterating = asyncio.create_task(iterate())
        await until(lambda: shared.app.broker.parked > 0)
        consumer.stop()
        assert await asyncio.wait_for(iterating, SOON_S) == []
