"""The push consumer against the real server: attempts, order, restarts, memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import popserver
from popclient import ClientConfig, ConsumeResult, FilterExpression, Message, MessageView, Producer, PushConsumer, aio
from popclient.admin import Admin, ExponentialBackoff
from tests.support.scripted_server import until, until_in_thread
from tests.support.server_process import served
from tests.support.waiting import eventually

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE


def states(broker: popserver.EmbeddedBroker, group: str, topic: str) -> tuple[int, int, int, int]:
    """How many are ready, in flight, waiting for a retry, dead."""
    with Admin(broker.endpoint) as admin:
        lag = {each.topic: each for each in admin.get_group(group).lag}[topic]
    return lag.ready, lag.inflight, lag.waiting_retry, lag.dead_letters


def test_threads_consume_everything_once(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Producer(shared.endpoint) as producer:
        producer.send_many([Message(topic, str(number)) for number in range(500)]).raise_for_failures()
    seen: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        return SUCCESS

    with PushConsumer(shared.endpoint, "g", topic, listener) as consumer:
        until_in_thread(lambda: len(seen) == 500 and consumer.cached == (0, 0))
    assert sorted(seen, key=int) == [str(number) for number in range(500)]
    assert states(shared, "g", topic) == (0, 0, 0, 0)


async def test_filters_of_both_kinds(shared: popserver.EmbeddedBroker, topic: str) -> None:
    other = f"{topic}-sql"
    async with aio.Producer(shared.endpoint) as producer:
        await producer.send_many([Message(topic, "1", tag="a"), Message(topic, "2", tag="b")])
        await producer.send_many(
            [Message(other, str(distance), properties={"distance": str(distance)}) for distance in (900, 1100)]
        )
    seen: set[str] = set()

    async def listener(message: MessageView) -> ConsumeResult:
        seen.add(message.text)
        return SUCCESS

    topics = {topic: "b || c", other: FilterExpression.sql("distance > 1000")}
    async with aio.PushConsumer(shared.endpoint, "g", topics, listener) as consumer:
        await until(lambda: len(seen) == 2 and consumer.cached == (0, 0))
    assert seen == {"2", "1100"}


@pytest.mark.row("L4")
@pytest.mark.row("L18")
async def test_a_failed_message_comes_again_after_its_interval_from_the_moment_of_failure() -> None:
    with popserver.embedded(manual_clock=True) as broker:
        began = broker.clock.now_ms()
        at: list[tuple[int, int]] = []
        fail = asyncio.Event()

        async def listener(message: MessageView) -> ConsumeResult:
            at.append((message.delivery_attempt, broker.clock.now_ms() - began))
            if message.delivery_attempt == 3:
                return SUCCESS
            await fail.wait()
            fail.clear()
            return FAILURE

        async with aio.Producer(broker.endpoint) as producer, aio.PushConsumer(broker.endpoint, "g", "t", listener):
            await producer.send("t", "x")
            await until(lambda: len(at) == 1)
            await asyncio.to_thread(broker.clock.advance, "4s")
            fail.set()
            await _is_in(broker, "WAITING_RETRY")
            await asyncio.to_thread(broker.clock.advance, 9_999)
            assert len(at) == 1
            await asyncio.to_thread(broker.clock.advance, 1)
            await until(lambda: len(at) == 2)
            fail.set()
            await _is_in(broker, "WAITING_RETRY")
            await asyncio.to_thread(broker.clock.advance, "30s")
            await until(lambda: len(at) == 3)
            await _is_in(broker, "COMMIT")
    assert at == [(1, 0), (2, 14_000), (3, 44_000)]


@pytest.mark.row("L7")
async def test_exponential_intervals_are_kept_to() -> None:
    with popserver.embedded(manual_clock=True) as broker:
        with Admin(broker.endpoint) as admin:
            backoff = ExponentialBackoff(timedelta(seconds=3), timedelta(seconds=10), 2)
            assert admin.create_group("g", max_attempts=5, retry_intervals=backoff).retry_backoff == backoff
        attempts: list[int] = []

        async def listener(message: MessageView) -> ConsumeResult:
            attempts.append(message.delivery_attempt)
            return FAILURE if message.delivery_attempt < 5 else SUCCESS

        async with aio.Producer(broker.endpoint) as producer, aio.PushConsumer(broker.endpoint, "g", "t", listener):
            await producer.send("t", "x")
            for attempt, waits_ms in enumerate((3_000, 6_000, 10_000, 10_000), start=1):
                await until(lambda attempt=attempt: len(attempts) == attempt)
                await _is_in(broker, "WAITING_RETRY")
                await asyncio.to_thread(broker.clock.advance, waits_ms - 1)
                await _is_in(broker, "WAITING_RETRY")
                await asyncio.to_thread(broker.clock.advance, 1)
            await until(lambda: len(attempts) == 5)
            await _is_in(broker, "COMMIT")
    assert attempts == [1, 2, 3, 4, 5]


async def _is_in(broker: popserver.EmbeddedBroker, state: str) -> None:
    def look() -> bool:
        with Admin(broker.endpoint) as admin:
            [message] = admin.peek_messages("t")
            return [each.state for each in admin.get_message(message.message_id).states] == [state]

    await eventually(lambda: asyncio.to_thread(look), f"the message is {state}", within_s=5)


@pytest.mark.row("L4")
async def test_what_never_gets_its_turn_uses_up_no_attempt(
    shared: popserver.EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No listener has seen it, so it has not failed (docs/retries.md); with one attempt it would be a dead letter."""
    caplog.set_level("INFO", "popclient")
    group = f"group-of-{topic}"
    with Admin(shared.endpoint) as admin:
        admin.create_group(group, max_attempts=1)
    async with aio.Producer(shared.endpoint) as producer:
        for text in ("hangs", "waits", "waits"):
            await producer.send(topic, text)
    seen: list[tuple[str, int]] = []
    hanging = False

    async def listener(message: MessageView) -> ConsumeResult:
        nonlocal hanging
        if not hanging:
            hanging = True
            await asyncio.Event().wait()
        seen.append((message.text, message.delivery_attempt))
        return SUCCESS

    async with aio.PushConsumer(shared.endpoint, group, topic, listener, concurrency=1, consumption_timeout=0.6):
        await until(lambda: "are given back: the listener is too slow to begin them in time" in caplog.text, 15)
        await until(lambda: len(seen) == 2, 15)
        await until(lambda: states(shared, group, topic) == (0, 0, 0, 1), 15)
    assert [attempt for _, attempt in seen] == [1, 1]


async def test_after_the_last_attempt_it_is_a_dead_letter_which_a_push_consumer_reads(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    group = f"group-of-{topic}"
    with Admin(shared.endpoint) as admin:
        admin.create_group(group, max_attempts=2, retry_intervals=[0.01])
    seen: list[tuple[str, int, str]] = []

    async def fail(message: MessageView) -> ConsumeResult:
        seen.append((message.topic, message.delivery_attempt, message.text))
        return FAILURE

    async def bury(message: MessageView) -> ConsumeResult:
        assert message.dead_letter_queue is not None
        seen.append((message.topic, message.delivery_attempt, message.dead_letter_queue.topic))
        return SUCCESS

    async with aio.Producer(shared.endpoint) as producer:
        await producer.send(topic, "x")
    async with aio.PushConsumer(shared.endpoint, group, topic, fail):
        await until(lambda: len(seen) == 2)
        await until(lambda: states(shared, group, topic)[3] == 1)
    async with aio.PushConsumer(shared.endpoint, "undertaker", f"%DLQ%{group}", bury):
        await until(lambda: len(seen) == 3)
    assert seen == [(topic, 1, "x"), (topic, 2, "x"), (f"%DLQ%{group}", 1, topic)]


@pytest.mark.user("U17")
@pytest.mark.user("U23")
def test_closing_burns_no_attempt_of_what_was_not_begun(shared: popserver.EmbeddedBroker, topic: str) -> None:
    """U23: stop polling, give back, let the listener finish, flush."""
    with Producer(shared.endpoint) as producer:
        producer.send_many([Message(topic, str(number)) for number in range(100)]).raise_for_failures()
    release, begun, finished = threading.Event(), [0], [0]

    def slow(_: MessageView) -> ConsumeResult:
        begun[0] += 1
        release.wait(60)
        finished[0] += 1
        return SUCCESS

    with PushConsumer(shared.endpoint, "g", topic, slow, concurrency=2) as consumer:
        until_in_thread(lambda: begun[0] == 2 and consumer.cached.messages == 100)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        until_in_thread(lambda: states(shared, "g", topic)[:2] == (98, 2))
        release.set()
        closing.join(60)
    assert finished == [2]
    attempts: list[int] = []

    def count(message: MessageView) -> ConsumeResult:
        attempts.append(message.delivery_attempt)
        return SUCCESS

    with PushConsumer(shared.endpoint, "g", topic, count):
        until_in_thread(lambda: len(attempts) == 98)
    assert set(attempts) == {1}


# ---- Message groups ----


def send_groups(endpoint: str, topic: str, groups: int, each: int) -> None:
    with Producer(endpoint) as producer:
        for number in range(each):
            producer.send_many(
                [Message(topic, str(number), message_group=f"group-{group}") for group in range(groups)]
            ).raise_for_failures()


class InOrder:
    """Consumes message groups; fails at what `fails` says. What succeeds must do so in order, once."""

    def __init__(self, fails: Callable[[MessageView], bool] = lambda _: False) -> None:
        self.fails = fails
        self.done: defaultdict[str, list[int]] = defaultdict(list)
        self.seen: list[tuple[str, int, int]] = []
        self.running: set[str] = set()
        self.guard = threading.Lock()

    def __call__(self, message: MessageView) -> ConsumeResult:
        group = message.message_group or ""
        with self.guard:
            assert group not in self.running
            self.running.add(group)
            self.seen.append((group, int(message.text), message.delivery_attempt))
        failed = self.fails(message)
        with self.guard:
            self.running.discard(group)
            if not failed:
                self.done[group].append(int(message.text))
        return FAILURE if failed else SUCCESS

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))


@pytest.mark.row("K5")
def test_message_groups_come_in_order_side_by_side(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Admin(shared.endpoint) as admin:
        admin.create_topic(topic, accept_message_types=["NORMAL", "FIFO"])
    send_groups(shared.endpoint, topic, 20, 15)
    with Producer(shared.endpoint) as producer:
        producer.send_many([Message(topic, "-1") for _ in range(10)]).raise_for_failures()
    first, second = InOrder(), InOrder()
    with (
        PushConsumer(shared.endpoint, "g", topic, lambda m: first(m) if m.message_group else SUCCESS) as one,
        PushConsumer(shared.endpoint, "g", topic, lambda m: second(m) if m.message_group else SUCCESS) as other,
    ):
        until_in_thread(lambda: first.count + second.count == 300)
        until_in_thread(lambda: one.cached == other.cached == (0, 0))
    for group in {*first.done, *second.done}:
        assert sorted(first.done[group] + second.done[group]) == list(range(15))
        assert first.done[group] == sorted(first.done[group])
        assert second.done[group] == sorted(second.done[group])
    assert states(shared, "g", topic) == (0, 0, 0, 0)


@pytest.mark.row("L6")
def test_a_failure_in_a_message_group_holds_up_its_own_group_for_three_seconds_and_no_other() -> None:
    with popserver.embedded(manual_clock=True) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("t", queue_count=1, accept_message_types=["FIFO"])
        send_groups(broker.endpoint, "t", 3, 6)
        consume = InOrder(lambda m: (m.message_group, m.text) == ("group-1", "2") and m.delivery_attempt < 3)
        with PushConsumer(broker.endpoint, "g", "t", consume) as consumer:
            for attempt in (1, 2):
                until_in_thread(lambda: consume.count == 14 and states(broker, "g", "t")[1:] == (0, 1, 0))
                until_in_thread(lambda: consumer.cached == (0, 0))
                assert ("group-1", 2, attempt) in consume.seen
                broker.clock.advance(2_999)
                assert ("group-1", 2, attempt + 1) not in consume.seen
                broker.clock.advance(1)
            until_in_thread(lambda: consume.count == 18)
            until_in_thread(lambda: states(broker, "g", "t") == (0, 0, 0, 0))
    assert list(consume.done.values()) == [list(range(6))] * 3
    assert [each for each in consume.seen if each[0] == "group-1"] == [
        *(("group-1", number, 1) for number in (0, 1)),
        *(("group-1", 2, attempt) for attempt in (1, 2, 3)),
        *(("group-1", number, 1) for number in (3, 4, 5)),
    ]


@pytest.mark.row("L13")
def test_a_dead_letter_frees_its_message_group() -> None:
    with popserver.embedded() as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("t", accept_message_types=["FIFO"])
            admin.create_group("g", max_attempts=1)
        send_groups(broker.endpoint, "t", 1, 5)
        consume = InOrder(lambda message: message.text == "1")
        with PushConsumer(broker.endpoint, "g", "t", consume):
            until_in_thread(lambda: consume.count == 4)
            until_in_thread(lambda: states(broker, "g", "t") == (0, 0, 0, 1))
    assert consume.done["group-0"] == [0, 2, 3, 4]
    assert [number for _, number, _ in consume.seen] == [0, 1, 2, 3, 4]


# ---- Restarts ----


@pytest.mark.parametrize(
    "restarts, groups",
    [(3, 0), (3, 7), pytest.param(20, 0, marks=pytest.mark.slow), pytest.param(20, 7, marks=pytest.mark.slow)],
)
@pytest.mark.user("U32")
def test_after_a_restart_of_the_server_it_goes_on(tmp_path: Path, restarts: int, groups: int) -> None:
    """U32: telemetry, settings and polls are restored, every OK is consumed, and message groups stay in order."""
    sent: set[str] = set()
    seen: dict[str, list[int]] = defaultdict(list)
    came_back: list[bool] = []
    database, ending = tmp_path / "broker.db", threading.Event()
    with popserver.embedded(database) as broker, Admin(broker.endpoint) as admin:
        admin.create_topic("t", accept_message_types=["NORMAL", "FIFO"])
        port = int(broker.endpoint.rpartition(":")[2])
    config = ClientConfig(
        endpoints=f"127.0.0.1:{port}", request_timeout=30, on_reconnect=lambda: came_back.append(True)
    )

    def produce() -> None:
        for number in itertools.count():
            if ending.is_set():
                return
            group = f"group-{number % groups}" if groups else None
            producer.send(Message("t", str(number), message_group=group))
            sent.add(str(number))

    def listener(message: MessageView) -> ConsumeResult:
        seen[message.message_group or ""].append(int(message.text))
        return SUCCESS

    def consumed() -> set[str]:
        return {str(number) for numbers in list(seen.values()) for number in list(numbers)}

    producer = Producer(config)
    consumer = PushConsumer(config, "g", "t", listener)
    sending = threading.Thread(target=produce, daemon=True)
    for restart in range(restarts):
        with popserver.embedded(database, port=port):
            if not restart:
                sending.start()
                consumer.start()
            sent_before, seen_before = len(sent), len(consumed())
            until_in_thread(lambda at=sent_before: len(sent) > at + 2)
            until_in_thread(lambda at=seen_before: len(consumed()) > at + 2)
            until_in_thread(lambda at=restart: len(came_back) >= at)
    with popserver.embedded(database, port=port) as broker:
        ending.set()
        sending.join(60)
        until_in_thread(lambda: consumed() >= sent and consumer.cached == (0, 0))
        until_in_thread(lambda: len(came_back) >= restarts)
        consumer.close()
        producer.close()
        until_in_thread(lambda: states(broker, "g", "t") == (0, 0, 0, 0))
    assert not sending.is_alive()
    if groups:
        for numbers in seen.values():
            first_seen = list(dict.fromkeys(numbers))
            assert first_seen == sorted(first_seen)


# ---- Memory ----


@pytest.mark.row("C7")
async def test_a_backlog_does_not_move_the_consumers_memory(tmp_path: Path) -> None:
    """24 MiB wait, the consumer may hold 512 KiB: it never holds more than that and what one poll brings."""
    size, count, bound = 16 * 1024, 1_500, 512 * 1024
    async with served(f"sqlite:///{tmp_path}/broker.db") as server:
        async with aio.Producer(server.endpoint) as producer:
            for _ in range(count // 50):
                (await producer.send_many([Message("t", bytes(size)) for _ in range(50)])).raise_for_failures()
        command = [sys.executable, "-m", "tests.client.bounded_consumer", server.endpoint, str(count), str(bound)]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    seen = json.loads(said)
    assert 0 < seen["most"] <= bound + 32 * size
    assert seen["grown"] < 12 * 1024 * 1024, f"{seen['grown'] / 2**20:.1f} MiB"
