"""popclient's consumers of lite topics, against a server on each database."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from popclient import (
    ConsumeResult,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    Producer,
    PushConsumer,
    SimpleConsumer,
    aio,
    cli,
)
from popclient.admin import Admin
from popclient.errors import BadRequest, NotFound, QuotaExceeded
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from popserver import embedded
from tests.support.scripted_server import ScriptedServer, until_in_thread

PATIENCE_S = 30


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path}/popmq.db"


@pytest.fixture
def endpoint(database: str) -> Iterator[str]:
    with embedded(database) as server:
        with Admin(server.endpoint) as admin:
            admin.create_topic("sessions", accept_message_types=["LITE"])
        yield server.endpoint


def send(endpoint: str, *names: str) -> None:
    with Producer(endpoint, "sessions") as producer:
        batch = [Message("sessions", f"{name}{number}", lite_topic=name) for number, name in enumerate(names)]
        producer.send_many(batch).raise_for_failures()


def taken(consumer: LiteSimpleConsumer) -> list[str]:
    got = consumer.receive(await_duration=1)
    consumer.ack(got)
    return sorted(view.text for view in got)


async def test_what_settles_a_message_names_its_lite_topic() -> None:
    """RocketMQ finds a held message by it."""
    async with ScriptedServer() as server:
        request = rpc.SendMessageRequest()
        message = request.messages.add(topic=pb.Resource(name="t"), body=b"1")
        message.system_properties.message_id, message.system_properties.lite_topic = "m", "ada"
        server.store(request)
        async with aio.SimpleConsumer(server.endpoints, "g", "t") as consumer:
            (view,) = await consumer.receive()
            await consumer.change_invisible_duration(view, 30)
            await consumer.ack(view)
    (change,), (ack,) = server.requests("ChangeInvisibleDuration"), server.requests("AckMessage")
    assert (change.lite_topic, ack.entries[0].lite_topic) == ("ada", "ada")


@pytest.mark.row("N3")
def test_the_first_use_of_a_missing_topic_leaves_none_behind(database: str) -> None:
    """One created on first use would take no lite messages, for ever."""
    way_out = "popmq topic create newtopic --type LITE"
    with embedded(database) as server, Admin(server.endpoint) as admin:
        with Producer(server.endpoint, "newtopic") as producer, pytest.raises(NotFound, match=way_out):
            producer.send(Message("newtopic", "hi", lite_topic="a"))
        simple = LiteSimpleConsumer(server.endpoint, "agents", "newtopic")
        push = LitePushConsumer(server.endpoint, "agents", "newtopic", lambda _: ConsumeResult.SUCCESS)
        for consumer in (simple, push):
            with pytest.raises(NotFound, match=way_out):
                consumer.start()
            consumer.close()
        assert cli.main(["--endpoint", server.endpoint, *"message send newtopic hi --lite-topic a".split()]) == 4
        assert list(admin.list_topics()) == []
        admin.create_topic("newtopic", accept_message_types=["LITE"])
        with LiteSimpleConsumer(server.endpoint, "agents", "newtopic", "a") as receiver:
            with Producer(server.endpoint) as producer:
                producer.send(Message("newtopic", "hi", lite_topic="a"))
            assert taken(receiver) == ["hi"]


async def test_a_quota_in_the_settings_is_kept_without_the_servers_help(endpoint: str) -> None:
    async with aio.LiteSimpleConsumer(endpoint, "agents", "sessions", ["a"]) as consumer:
        await consumer.subscribe_lite("b")
        consumer._core.session.settings.subscription.lite_subscription_quota = 2
        with pytest.raises(QuotaExceeded, match="would subscribe to 3 lite topics, at most 2 are allowed"):
            await consumer.subscribe_lite("c")
        assert consumer.lite_topics == {"a", "b"}


def test_a_simple_consumer_gets_its_lite_topics(endpoint: str) -> None:
    with LiteSimpleConsumer(endpoint, "agents", "sessions", "a") as consumer:
        send(endpoint, "a", "b", "c")
        assert taken(consumer) == ["a0"]
        consumer.subscribe_lite(["b", "c"])
        assert consumer.lite_topics == {"a", "b", "c"}
        assert taken(consumer) == ["b1", "c2"]
        consumer.unsubscribe_lite("a")
        send(endpoint, "a", "b")
        assert taken(consumer) == ["b1"]
        consumer.subscribe_lite("a", begin="min")
        assert taken(consumer) == ["a0", "a0"]
        with pytest.raises(BadRequest, match="allowed: 1 to 64 of"):
            consumer.subscribe_lite("no/name")
        with pytest.raises(QuotaExceeded, match="at most 2000 are allowed"):
            consumer.subscribe_lite(f"t{number}" for number in range(2_001))
        assert consumer.lite_topics == {"a", "b", "c"}


def test_a_suspended_message_comes_again_with_the_same_attempt(endpoint: str) -> None:
    with LiteSimpleConsumer(endpoint, "agents", "sessions", "a") as consumer:
        send(endpoint, "a")
        (held,) = consumer.receive()
        consumer.suspend(held, 0.1)
        (again,) = consumer.receive()
        assert (again.message_id, again.delivery_attempt) == (held.message_id, 1)
        assert again.lite_topic == "a"
        assert again.message_group is None


def test_a_push_consumer_gets_each_lite_topic_in_order(endpoint: str) -> None:
    got: queue.Queue[str] = queue.Queue()

    def listener(message: MessageView) -> ConsumeResult:
        got.put(message.text)
        return ConsumeResult.SUCCESS

    with LitePushConsumer(endpoint, "agents", "sessions", listener, ["a", "b"]) as consumer:
        send(endpoint, *"abababx")
        texts = [got.get(timeout=PATIENCE_S) for _ in range(6)]
        assert [text for text in texts if text[0] == "a"] == ["a0", "a2", "a4"]
        assert [text for text in texts if text[0] == "b"] == ["b1", "b3", "b5"]
        consumer.subscribe_lite("x")
        assert got.get(timeout=PATIENCE_S) == "x6"
        consumer.unsubscribe_lite("x")
        assert consumer.lite_topics == {"a", "b"}


def test_an_exclusive_group_tells_who_has_lost_a_lite_topic(endpoint: str) -> None:
    with Admin(endpoint) as admin:
        assert admin.create_group("owners", lite="exclusive").lite == "EXCLUSIVE"
    with (
        LiteSimpleConsumer(endpoint, "owners", "sessions", ["a", "b"]) as one,
        LiteSimpleConsumer(endpoint, "owners", "sessions") as two,
    ):
        two.subscribe_lite("a")
        send(endpoint, "a", "b")
        assert taken(two) == ["a0"]
        assert taken(one) == ["b1"]
        for _ in range(1_000):
            if one.lite_topics == {"b"}:
                break
            one.receive(await_duration=0)
        assert one.lite_topics == {"b"}


def test_who_does_not_get_a_lite_topic_is_told(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    """In the constructor it takes none from others; `subscribe_lite` does."""
    lost: queue.Queue[tuple[str, frozenset[str]]] = queue.Queue()
    with Admin(endpoint) as admin:
        admin.create_group("owners", lite="EXCLUSIVE")
    with LiteSimpleConsumer(
        endpoint, "owners", "sessions", ["a"], on_lost=lambda names: lost.put(("one", names))
    ) as one:
        two = LitePushConsumer(
            endpoint,
            "owners",
            "sessions",
            lambda _: ConsumeResult.SUCCESS,
            ["a", "b"],
            on_lost=lambda names: lost.put(("two", names)),
        )
        with two:
            assert lost.get(timeout=PATIENCE_S) == ("two", {"a"})
            assert (one.lite_topics, two.lite_topics) == ({"a"}, {"b"})
            two.subscribe_lite("a")
            assert lost.get(timeout=PATIENCE_S) == ("one", {"a"})
            assert (one.lite_topics, two.lite_topics) == (frozenset(), {"a", "b"})
    told = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    sentence = "this client does not get lite topic a, because another client of the exclusive group owners has it"
    assert [each.startswith(sentence) for each in told] == [True, True]


def test_an_ordinary_consumer_of_a_lite_group_is_refused(endpoint: str) -> None:
    with LiteSimpleConsumer(endpoint, "agents", "sessions", "a"):
        simple = SimpleConsumer(endpoint, "agents", "sessions")
        push = PushConsumer(endpoint, "agents", "sessions", lambda _: ConsumeResult.SUCCESS)
        for consumer in (simple, push):
            with pytest.raises(BadRequest, match=r"use a lite consumer \(LitePushConsumer, LiteSimpleConsumer\)"):
                consumer.start()
            consumer.close()


def test_another_word_for_the_beginning_is_refused(endpoint: str) -> None:
    with LiteSimpleConsumer(endpoint, "agents", "sessions") as consumer:
        with pytest.raises(ValueError, match="begin is 'first'; it must be 'min', 'max' or 'last'"):
            consumer.subscribe_lite("bob", begin="first")  # type: ignore[arg-type]
        assert consumer.lite_topics == frozenset()


async def test_the_asyncio_ones_too(endpoint: str) -> None:
    async with (
        aio.Producer(endpoint, "sessions") as producer,
        aio.LiteSimpleConsumer(endpoint, "agents", "sessions", ["a"]) as consumer,
    ):
        await producer.send("sessions", "hello", lite_topic="a")
        (got,) = await consumer.receive()
        assert (got.text, got.lite_topic) == ("hello", "a")
        await consumer.ack(got)
        await consumer.subscribe_lite("b")
        await consumer.unsubscribe_lite("b")
        assert consumer.lite_topics == {"a"}


async def test_an_asyncio_consumer_suspends_a_message(endpoint: str) -> None:
    async with aio.LiteSimpleConsumer(endpoint, "agents", "sessions", "a") as consumer:
        await asyncio.to_thread(send, endpoint, "a")
        (held,) = await consumer.receive()
        await consumer.suspend(held, 0.1)
        (again,) = await consumer.receive()
        assert (again.message_id, again.delivery_attempt) == (held.message_id, 1)
        await consumer.ack(again)


async def test_an_asyncio_listener_gets_each_lite_topic_in_order(endpoint: str) -> None:
    got: asyncio.Queue[str] = asyncio.Queue()

    async def listener(message: MessageView) -> ConsumeResult:
        await got.put(message.text)
        return ConsumeResult.SUCCESS

    async with (
        aio.LitePushConsumer(endpoint, "agents", "sessions", listener, ["a", "b"]) as consumer,
        asyncio.timeout(PATIENCE_S),
    ):
        await asyncio.to_thread(send, endpoint, *"ababx")
        texts = [await got.get() for _ in range(4)]
        assert [text for text in texts if text[0] == "a"] == ["a0", "a2"]
        assert [text for text in texts if text[0] == "b"] == ["b1", "b3"]
        await consumer.unsubscribe_lite("a")
        await consumer.subscribe_lite("x")
        assert await got.get() == "x4"
        assert consumer.lite_topics == {"b", "x"}


def test_a_subscription_says_where_it_begins(endpoint: str) -> None:
    send(endpoint, "a", "b")
    with LiteSimpleConsumer(endpoint, "agents", "sessions") as consumer:
        consumer.subscribe_lite("a", begin="max")
        consumer.subscribe_lite("b", begin="last")
        assert taken(consumer) == ["b1"]
        send(endpoint, "a")
        assert taken(consumer) == ["a0"]


@pytest.mark.user("U32")
def test_after_a_restart_of_the_server_lite_topics_go_on(database: str) -> None:
    """Those from the start and those of later, of a listener and of one who receives."""
    got: queue.Queue[str] = queue.Queue()

    def listener(message: MessageView) -> ConsumeResult:
        got.put(message.text)
        return ConsumeResult.SUCCESS

    with embedded(database) as server, Admin(server.endpoint) as admin:
        admin.create_topic("sessions", accept_message_types=["LITE"])
        at = server.endpoint
        push = LitePushConsumer(at, "listeners", "sessions", listener, "a")
        simple = LiteSimpleConsumer(at, "agents", "sessions", "a")
        push.subscribe_lite("b")
        simple.subscribe_lite("b")
        send(at, "a", "b")
        assert sorted(got.get(timeout=PATIENCE_S) for _ in range(2)) == taken(simple) == ["a0", "b1"]
    with embedded(database, port=int(at.rpartition(":")[2])):
        send(at, "a", "b", "x")
        assert sorted(got.get(timeout=PATIENCE_S) for _ in range(2)) == ["a0", "b1"]
        found: list[str] = []
        until_in_thread(lambda: len(found.extend(taken(simple)) or found) == 2)
        assert sorted(found) == ["a0", "b1"]
        assert push.lite_topics == simple.lite_topics == {"a", "b"}
        push.close()
        simple.close()
    assert got.empty()


def test_a_message_has_one_of_group_and_lite_topic() -> None:
    with pytest.raises(ValueError, match="message_group and lite_topic exclude each other"):
        Message("sessions", "x", message_group="g", lite_topic="a")
