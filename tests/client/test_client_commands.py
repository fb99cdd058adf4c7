"""What an operator asks of popclient's consumers, against the real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import popserver
from popclient import ClientConfig, ConsumeResult, MessageView, Producer, PushConsumer, SimpleConsumer, aio
from popclient.admin import Admin, Trial
from popclient.errors import NotFound
from tests.support.scripted_server import until_in_thread

TOPIC, GROUP = "flights", "counters"


@pytest.fixture
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as opened:
        yield opened


@pytest.fixture
def admin(broker: popserver.EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.endpoint) as opened:
        yield opened


def client_of(admin: Admin, group: str = GROUP) -> str:
    (found,) = admin.list_clients(group)
    assert found.connected
    return found.client_id


def lag(admin: Admin) -> tuple[int, int, int]:
    (found,) = admin.get_group(GROUP).lag
    return found.ready, found.inflight, found.waiting_retry


def test_a_push_consumer_tries_messages_out(broker: popserver.EmbeddedBroker, admin: Admin) -> None:
    heard: list[str] = []

    def listener(message: MessageView) -> ConsumeResult | None:
        heard.append(message.text)
        if message.text == "broken":
            raise ValueError("it is broken")
        return {"good": ConsumeResult.SUCCESS, "bad": ConsumeResult.FAILURE}.get(message.text)

    with Producer(broker.endpoint) as producer:
        admin.create_topic("elsewhere")
        ids = {text: producer.send("elsewhere", text).message_id for text in ("good", "bad", "broken", "nothing")}
    with PushConsumer(broker.endpoint, GROUP, TOPIC, listener):
        until_in_thread(lambda: bool(admin.list_clients(GROUP)))
        client_id = client_of(admin)
        good = admin.verify_message(client_id, ids["good"], "elsewhere")
        assert good.succeeded
        assert admin.verify_message(client_id, ids["bad"]) == Trial(
            "FAILED_TO_CONSUME_MESSAGE", "the listener ended with FAILED"
        )
        broken = admin.verify_message(client_id, ids["broken"])
        assert broken.sentence == "the listener ended with EXCEPTION: ValueError('it is broken')"
        assert admin.verify_message(client_id, ids["nothing"]).sentence == "the listener ended with RETURNNULL"
        assert heard == ["good", "bad", "broken", "nothing"]
        with pytest.raises(NotFound):
            admin.verify_message(client_id, "0" * 34)
    assert lag(admin) == (0, 0, 0), "for the group nothing has happened"


def test_a_trial_waits_for_its_turn(broker: popserver.EmbeddedBroker, admin: Admin) -> None:
    """A listener that is made for one call at a time gets one at a time."""
    at_work, may_end, together = threading.Event(), threading.Event(), threading.Semaphore(1)
    clashes: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        if not together.acquire(blocking=False):
            clashes.append(message.text)
        at_work.set()
        may_end.wait(10)
        together.release()
        return ConsumeResult.SUCCESS

    with Producer(broker.endpoint) as producer:
        message_id = producer.send(TOPIC, "first").message_id
        with PushConsumer(broker.endpoint, GROUP, TOPIC, listener, concurrency=1):
            assert at_work.wait(10)
            trials: list[Trial] = []
            client_id = client_of(admin)
            trial = threading.Thread(target=lambda: trials.append(admin.verify_message(client_id, message_id)))
            trial.start()
            until_in_thread(lambda: bool(broker.app.broker.sessions.commands._asked))
            assert not trials
            may_end.set()
            trial.join(10)
            assert [each.succeeded for each in trials] == [True]
            assert not clashes


def test_the_threads_of_a_consumer(broker: popserver.EmbeddedBroker, admin: Admin) -> None:
    at_work, may_end = threading.Event(), threading.Event()

    def a_listener_that_waits(_message: MessageView) -> ConsumeResult:
        at_work.set()
        may_end.wait(10)
        return ConsumeResult.SUCCESS

    with Producer(broker.endpoint) as producer:
        producer.send(TOPIC, "first")
    with PushConsumer(broker.endpoint, GROUP, TOPIC, a_listener_that_waits):
        assert at_work.wait(10)
        trace = admin.print_threads(client_of(admin))
        may_end.set()
    assert "a_listener_that_waits" in trace
    assert "may_end.wait(10)" in trace


def test_a_simple_consumer_tries_nothing_out(broker: popserver.EmbeddedBroker, admin: Admin) -> None:
    with Producer(broker.endpoint) as producer:
        message_id = producer.send(TOPIC, "first").message_id
    with SimpleConsumer(broker.endpoint, GROUP, TOPIC) as consumer:
        assert consumer.receive(await_duration=1)
        trial = admin.verify_message(client_of(admin), message_id)
    assert trial == Trial("NOT_IMPLEMENTED", "only a push consumer consumes messages on trial")


def test_a_client_opens_its_session_anew(broker: popserver.EmbeddedBroker, admin: Admin) -> None:
    """It is gone for a moment, and loses nothing."""
    back = threading.Event()
    heard: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        heard.append(message.text)
        return ConsumeResult.SUCCESS

    config = ClientConfig(broker.endpoint, on_reconnect=back.set)
    with Producer(broker.endpoint) as producer, PushConsumer(config, GROUP, TOPIC, listener) as consumer:
        producer.send(TOPIC, "before")
        until_in_thread(lambda: heard == ["before"])
        admin.reconnect_client(client_of(admin))
        assert back.wait(10)
        producer.send(TOPIC, "after")
        until_in_thread(lambda: heard == ["before", "after"])
        assert consumer.healthy


async def test_listeners_in_tasks_try_messages_out_too(broker: popserver.EmbeddedBroker, admin: Admin) -> None:
    async def listener(message: MessageView) -> ConsumeResult:
        return ConsumeResult.SUCCESS if message.text == "good" else ConsumeResult.FAILURE

    async with aio.Producer(broker.endpoint) as producer:
        await asyncio.to_thread(admin.create_topic, "elsewhere")
        good = (await producer.send("elsewhere", "good")).message_id
        bad = (await producer.send("elsewhere", "bad")).message_id
        async with aio.PushConsumer(broker.endpoint, GROUP, TOPIC, listener):
            client_id = await asyncio.to_thread(client_of, admin)
            assert (await asyncio.to_thread(admin.verify_message, client_id, good)).succeeded
            assert not (await asyncio.to_thread(admin.verify_message, client_id, bad)).succeeded
