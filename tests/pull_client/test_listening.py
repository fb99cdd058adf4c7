"""A pull consumer that hands its messages to a listener, against a PopMQ server in this process."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import popserver
from popclient import (
    BadRequest,
    ClientConfig,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    MessageQueue,
    MessageView,
    OrderlyListener,
    Producer,
    PullConsumer,
    aio,
)
from popclient._consume.concurrently import ConsumeConcurrentlyService
from popclient._pull import listen as pull_listening
from popclient._pull.listen import PullListening
from popclient.admin import Admin
from tests.support.pull_consumers import FIRST, send
from tests.support.scripted_server import until, until_in_thread

SUCCESS, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
Listener = Callable[[Sequence[MessageView], ConsumeConcurrentlyContext], Any]

pytestmark = pytest.mark.row("E18")


@pytest.fixture(autouse=True)
def quick_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_listening, "COMMIT_EVERY", 0.02)


@contextmanager
def consuming(endpoint: str, topic: str, listener: Listener, **options: Any) -> Iterator[PullConsumer]:
    """A consumer whose `consume` runs in a thread; closed at the end."""
    raised: list[BaseException] = []
    consumer = PullConsumer(endpoint, f"{topic}-g", consume_from=FIRST)

    def consume() -> None:
        try:
            consumer.consume(topic, listener, **options)
        except BaseException as error:  # noqa: BLE001  told in the test's own thread
            raised.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.close()
        thread.join(60)
        assert not thread.is_alive()
        if raised:
            raise raised[0]


def progress(endpoint: str, topic: str) -> int:
    """Of all queues together."""
    with PullConsumer(endpoint, f"{topic}-g") as consumer:
        return sum(consumer.committed(mq) or 0 for mq in consumer.queues(topic))


def test_everything_is_consumed_once_and_committed(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, map(str, range(300)))
    heard: Counter[str] = Counter()
    mutex, sizes, threads = threading.Lock(), set(), set()

    def listener(messages: Sequence[MessageView], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        with mutex:
            heard.update(message.text for message in messages)
            sizes.add(len(messages))
            threads.add(threading.current_thread().name)
        assert {message.queue_id for message in messages} == {context.message_queue.queue_id}
        return SUCCESS

    with consuming(shared.endpoint, topic, listener, consume_message_batch_max_size=4) as consumer:
        until_in_thread(lambda: len(heard) == 300)
        with pytest.raises(ValueError, match="go to the listener that was given to consume"):
            consumer.poll(0)
        with pytest.raises(ValueError, match="one consumer has one listener"):
            consumer.consume(topic, listener)
    assert set(heard.values()) == {1}
    assert max(sizes) == 4
    assert all(name.startswith(f"ConsumeMessageThread_{topic}-g_") for name in threads)
    assert progress(shared.endpoint, topic) == 300


def test_a_failed_message_comes_again_from_the_server(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Admin(shared.endpoint) as admin:
        admin.create_topic(topic, queue_count=1)
    send(shared.endpoint, topic, ["good", "bad"])
    heard: list[tuple[str, str, int]] = []

    def listener(messages: Sequence[MessageView], context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        [message] = messages
        heard.append((message.topic, message.text, message.delivery_attempt))
        context.delay_level_when_next_consume = 1
        return LATER if (message.text, message.delivery_attempt) == ("bad", 1) else SUCCESS

    with consuming(shared.endpoint, topic, listener):
        until_in_thread(lambda: (topic, "bad", 2) in heard)
    assert sorted(heard) == [(topic, "bad", 1), (topic, "bad", 2), (topic, "good", 1)]
    assert progress(shared.endpoint, topic) == 2


def test_progress_does_not_pass_what_is_not_finished(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Admin(shared.endpoint) as admin:
        admin.create_topic(topic, queue_count=1)
    send(shared.endpoint, topic, map(str, range(10)))
    release, heard = threading.Event(), set[str]()

    def listener(messages: Sequence[MessageView], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        heard.add(messages[0].text)
        if messages[0].text == "3":
            release.wait(60)
        return SUCCESS

    mq = MessageQueue(topic, 0)
    with consuming(shared.endpoint, topic, listener) as consumer:
        until_in_thread(lambda: len(heard) == 10)
        until_in_thread(lambda: consumer.committed(mq) == 3)
        release.set()
        until_in_thread(lambda: consumer.committed(mq) == 10)


def test_what_has_begun_when_it_is_closed_is_finished_and_committed(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    send(shared.endpoint, topic, ["one"])
    begun, release = threading.Event(), threading.Event()

    def listener(*_: object) -> ConsumeConcurrentlyStatus:
        begun.set()
        assert release.wait(60)
        return SUCCESS

    with consuming(shared.endpoint, topic, listener) as consumer:
        assert begun.wait(60)
        closing = threading.Thread(target=consumer.close)
        closing.start()
        release.set()
        closing.join(60)
    assert progress(shared.endpoint, topic) == 1


def test_a_listener_that_closes_its_consumer_waits_no_longer_than_closing_may_take(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    """It waits for itself; what it answers then comes too late, and the message comes again."""
    send(shared.endpoint, topic, ["one"])
    with PullConsumer(ClientConfig(shared.endpoint, close_timeout=0.1), f"{topic}-g", consume_from=FIRST) as consumer:
        consumer.consume(topic, lambda *_: consumer.close() or SUCCESS)
    assert progress(shared.endpoint, topic) == 0


def test_an_operators_reset_is_heeded(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with Admin(shared.endpoint) as admin:
        admin.create_topic(topic, queue_count=1)
    send(shared.endpoint, topic, map(str, range(5)))
    heard: Counter[str] = Counter()
    mutex = threading.Lock()

    def listener(messages: Sequence[MessageView], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        with mutex:
            heard.update(message.text for message in messages)
        return SUCCESS

    mq = MessageQueue(topic, 0)
    with consuming(shared.endpoint, topic, listener) as consumer:
        until_in_thread(lambda: consumer.committed(mq) == 5)
        with Admin(shared.endpoint) as admin:
            admin.reset_offsets(f"{topic}-g", topic, "BEGINNING")
        until_in_thread(lambda: set(heard.values()) == {2})
        until_in_thread(lambda: consumer.committed(mq) == 5)


async def test_for_asyncio(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, map(str, range(100)))
    heard: list[str] = []

    async def listener(messages: Sequence[MessageView], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        await asyncio.sleep(0)
        heard.extend(message.text for message in messages)
        return SUCCESS

    async with aio.PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as consumer:
        task = asyncio.create_task(consumer.consume(topic, listener))
        await until(lambda: len(heard) == 100)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sum([await consumer.committed(mq) or 0 for mq in await consumer.queues(topic)]) == 100
        assert await consumer.poll(0) == [], "the polls are the caller's again"


async def test_members_share_and_none_is_left_out(shared: popserver.EmbeddedBroker, topic: str) -> None:
    heard: Counter[str] = Counter()

    async def listener(messages: Sequence[MessageView], _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        heard.update(message.text for message in messages)
        return SUCCESS

    send(shared.endpoint, topic, map(str, range(50)))
    async with (
        aio.PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as one,
        aio.PullConsumer(shared.endpoint, f"{topic}-g", consume_from=FIRST) as other,
    ):
        tasks = [asyncio.create_task(each.consume(topic, listener)) for each in (one, other)]
        await until(lambda: len(one.assignment) > 0 and len(other.assignment) > 0)
        await asyncio.to_thread(send, shared.endpoint, topic, map(str, range(50, 100)))
        await until(lambda: len(heard) == 100)
        await asyncio.gather(one.close(), other.close())
        await asyncio.gather(*tasks)
    assert await asyncio.to_thread(progress, shared.endpoint, topic) == 100


def test_it_is_the_class_that_serves_queue_push_consumers(shared: popserver.EmbeddedBroker, topic: str) -> None:
    send(shared.endpoint, topic, ["one"])
    begun = threading.Event()
    with consuming(shared.endpoint, topic, lambda *_: begun.set() or SUCCESS) as consumer:
        assert begun.wait(60)
        listening = consumer._core._consuming
        assert isinstance(listening, PullListening)
        assert isinstance(listening._service, ConsumeConcurrentlyService)


async def _coroutine(*_: object) -> ConsumeConcurrentlyStatus:
    return SUCCESS


@pytest.mark.parametrize(
    ("listener", "options", "error", "sentence"),
    [
        (OrderlyListener(lambda *_: None), {}, TypeError, "use QueuePushConsumer"),
        (7, {}, TypeError, "listener 7 cannot be called"),
        (_coroutine, {}, TypeError, "use popclient.aio.PullConsumer"),
        (print, {"consume_threads": 0}, ValueError, "consume_threads is 0"),
        (print, {"consume_message_batch_max_size": -1}, ValueError, "consume_message_batch_max_size is -1"),
        (print, {"consume_timeout": 0}, ValueError, "consume_timeout"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    listener: Any, options: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    consumer = PullConsumer("127.0.0.1:1", "g")
    with pytest.raises(error, match=sentence):
        consumer.consume("flights", listener, **options)
    consumer.close()


async def test_a_plain_function_is_not_for_asyncio() -> None:
    consumer = aio.PullConsumer("127.0.0.1:1", "g")
    with pytest.raises(TypeError, match="no coroutine function"):
        await consumer.consume("flights", print)  # type: ignore[arg-type]
    await consumer.close()


def test_who_commits_what_was_polled_cannot_consume(shared: popserver.EmbeddedBroker, topic: str) -> None:
    with (
        PullConsumer(shared.endpoint, f"{topic}-g", auto_commit=True) as consumer,
        pytest.raises(ValueError, match="auto_commit commits what was polled"),
    ):
        consumer.consume(topic, lambda *_: SUCCESS)


def test_what_cannot_be_subscribed_to_is_told_and_leaves_the_consumer_as_it_was(
    shared: popserver.EmbeddedBroker,
) -> None:
    with PullConsumer(shared.endpoint, "g-nowhere") as consumer:
        with pytest.raises(BadRequest, match="no such"):
            consumer.consume("no such topic", lambda *_: SUCCESS)
        with pytest.raises(ValueError, match="nothing is assigned"):
            consumer.poll(0)


def test_a_producer_may_come_later(shared: popserver.EmbeddedBroker, topic: str) -> None:
    heard = threading.Event()
    with Admin(shared.endpoint) as admin:
        admin.create_topic(topic, queue_count=2)
    with consuming(shared.endpoint, topic, lambda *_: heard.set() or SUCCESS), Producer(shared.endpoint) as producer:
        producer.send(topic, "late")
        assert heard.wait(60)
