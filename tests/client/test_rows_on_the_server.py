"""Requirements of the message-by-message clients, with the real server: what it holds, filters and refuses."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import popserver
from popclient import (
    ClientConfig,
    ConsumeResult,
    FilterExpression,
    Forbidden,
    Interceptor,
    Message,
    MessageView,
    PopError,
    Producer,
    PushConsumer,
    SimpleConsumer,
    aio,
)
from popclient.admin import Admin
from tests.support.scripted_server import until, until_in_thread

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded(manual_clock=True) as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name of its own per test, of its group too."""
    return f"row-{next(_numbers)}"


def lag(broker: popserver.EmbeddedBroker, group: str, topic: str = "") -> tuple[int, int, int, int]:
    """How many are ready, in flight, waiting for a retry, dead. topic: of the name of the group unless told."""
    with Admin(broker.endpoint) as admin:
        for each in admin.get_group(group).lag:
            if each.topic == (topic or group):
                return each.ready, each.inflight, each.waiting_retry, each.dead_letters
    return 0, 0, 0, 0


@pytest.mark.row("A2")
@pytest.mark.row("A3")
@pytest.mark.row("C6")
@pytest.mark.row("E1")
def test_what_the_server_has_handed_out_never_exceeds_what_the_consumer_may_hold(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    received: list[int] = []
    names: set[str] = set()
    turn = threading.Semaphore(0)

    class Count(Interceptor):
        def after_receive(self, topic: str, messages: object, error: object, /) -> None:
            received.append(len(messages))  # type: ignore[arg-type]

    def listener(_: MessageView) -> ConsumeResult:
        names.add(threading.current_thread().name)
        assert turn.acquire(timeout=60)
        return SUCCESS

    with Producer(shared.endpoint) as producer:
        producer.send_many([Message(topic, str(number)) for number in range(60)]).raise_for_failures()
    consumer = PushConsumer(
        shared.endpoint, topic, topic, listener, max_cached_messages=8, concurrency=2, interceptors=[Count()]
    )
    with consumer:
        for done in range(0, 60, 10):
            until_in_thread(lambda: consumer.cached[0] == 8)
            assert lag(shared, topic)[1] <= 8
            turn.release(10)
            until_in_thread(lambda done=done: sum(lag(shared, topic)[:2]) <= 50 - done)
    assert sum(received) == 60
    assert names == {f"{topic}-1", f"{topic}-2"}


@pytest.mark.row("C6")
def test_nor_the_bytes(shared: popserver.EmbeddedBroker, topic: str) -> None:
    release = threading.Event()

    def listener(_: MessageView) -> ConsumeResult:
        assert release.wait(60)
        return SUCCESS

    with Producer(shared.endpoint) as producer:
        producer.send_many([Message(topic, b"x" * 50_000) for _ in range(20)]).raise_for_failures()
    with PushConsumer(
        shared.endpoint, topic, topic, listener, max_cached_bytes=200_000, max_cached_messages=4, concurrency=1
    ) as consumer:
        until_in_thread(lambda: consumer.cached[0] == 4)
        assert lag(shared, topic)[:2] == (16, 4)
        assert consumer.cached[1] <= 200_000
        release.set()
        until_in_thread(lambda: lag(shared, topic) == (0, 0, 0, 0))


@pytest.mark.row("L1")
@pytest.mark.parametrize(
    ("ladder", "waits"),
    [
        pytest.param((), (10, 30, 60), marks=pytest.mark.row("L5")),
        pytest.param((1, 40), (1, 40, 40), marks=pytest.mark.row("L17")),
    ],
)
async def test_a_message_that_always_fails_goes_through_every_state_up_to_the_dead_letters(
    shared: popserver.EmbeddedBroker, topic: str, ladder: tuple[int, ...], waits: tuple[int, ...]
) -> None:
    """The state is the server's word; the interval of each retry is the ladder's, to the second."""
    attempts: list[int] = []
    fail: list[asyncio.Future[ConsumeResult]] = []

    async def listener(message: MessageView) -> ConsumeResult:
        attempts.append(message.delivery_attempt)
        fail.append(asyncio.get_running_loop().create_future())
        return await fail[-1]

    async def comes_to(*wanted: int) -> None:
        async with asyncio.timeout(60):
            while await asyncio.to_thread(lag, shared, topic) != wanted:  # noqa: ASYNC110  it is in the database
                await asyncio.sleep(0.005)

    async def advance(seconds: int) -> None:
        await asyncio.to_thread(shared.clock.advance, seconds * 1_000)

    with Admin(shared.endpoint) as admin:
        await asyncio.to_thread(admin.create_group, topic, max_attempts=4, retry_intervals=ladder)
    async with aio.Producer(shared.endpoint) as producer:
        await producer.send(topic, b"x")
    async with aio.PushConsumer(shared.endpoint, topic, topic, listener):
        for number, seconds in enumerate(waits, start=1):
            await until(lambda number=number: len(fail) == number)
            await comes_to(0, 1, 0, 0)
            fail[-1].set_result(FAILURE)
            await comes_to(0, 0, 1, 0)
            await advance(seconds - 1)
            assert len(fail) == number
            await comes_to(0, 0, 1, 0)
            await advance(1)
        await until(lambda: len(fail) == 4)
        fail[-1].set_result(FAILURE)
        await comes_to(0, 0, 0, 1)
    assert attempts == [1, 2, 3, 4]


FILTERS = [
    pytest.param("a IS NULL", "none text", marks=pytest.mark.row("M8")),
    pytest.param("a IS NOT NULL", "five ten fifteen", marks=pytest.mark.row("M9")),
    pytest.param("a BETWEEN 5 AND 10", "five ten", marks=pytest.mark.row("M11")),
    pytest.param("a NOT BETWEEN 6 AND 14", "five fifteen", marks=pytest.mark.row("M12")),
    pytest.param("b IN ('x', 'z')", "five text", marks=pytest.mark.row("M13")),
    pytest.param("b NOT IN ('x', 'z')", "ten", marks=pytest.mark.row("M13")),
    pytest.param("a = 10", "ten", marks=pytest.mark.row("M14")),
    pytest.param("b <> 'x'", "ten text", marks=pytest.mark.row("M14")),
    pytest.param("a = 5 OR a = 10 AND b = 'nobody'", "five", marks=pytest.mark.row("M15")),
    pytest.param("NOT (a > 6)", "five", marks=pytest.mark.row("M15")),
    pytest.param("b STARTSWITH 'z' AND c CONTAINS '''s'", "text", marks=pytest.mark.row("M16")),
    pytest.param("a > -1e1 AND a < +6 AND TRUE /* a word */", "five", marks=pytest.mark.row("M16")),
]


@pytest.fixture(scope="module")
def filled(shared: popserver.EmbeddedBroker) -> str:
    messages = {
        "five": {"a": "5", "b": "x"},
        "ten": {"a": "10", "b": "y"},
        "fifteen": {"a": "15"},
        "none": {},
        "text": {"b": "z", "c": "it's"},
    }
    with Producer(shared.endpoint) as producer:
        for body, properties in messages.items():
            producer.send(Message("filtered", body, properties=properties))
    return "filtered"


@pytest.mark.parametrize(("expression", "wanted"), FILTERS)
def test_sql_is_judged_by_the_server(
    shared: popserver.EmbeddedBroker, filled: str, topic: str, expression: str, wanted: str
) -> None:
    sql = FilterExpression(expression, "SQL")
    with SimpleConsumer(shared.endpoint, topic, {filled: sql}) as consumer:
        seen: list[str] = []
        while len(seen) < len(wanted.split()):
            seen += [message.text for message in consumer.receive(32)]
        assert sorted(seen) == sorted(wanted.split())
        # The server holds those for the group and no other, and what the filter refuses is consumed.
        assert lag(shared, topic, filled) == (0, len(seen), 0, 0)


@pytest.mark.row("N1")
def test_the_first_of_two_endpoints_is_dead_and_the_second_serves(shared: popserver.EmbeddedBroker, topic: str) -> None:
    config = ClientConfig(f"127.0.0.1:1;{shared.endpoint}", request_timeout=60)
    with Producer(config) as producer, SimpleConsumer(config, topic, topic) as consumer:
        producer.send(topic, b"there")
        [message] = consumer.receive(await_duration=60)
        assert message.text == "there"
        consumer.ack(message)
    assert lag(shared, topic) == (0, 0, 0, 0)


@pytest.mark.row("N4")
def test_namespace_and_credentials_decide_what_the_server_gives() -> None:
    root: dict[str, Any] = {"access_key": "root", "access_secret": "root-secret-1"}
    with popserver.embedded(auth=True, admin_access_key="root", admin_secret="root-secret-1") as broker:
        blue = ClientConfig(broker.endpoint, namespace="blue", **root)
        plain = ClientConfig(broker.endpoint, **root)
        with Producer(blue) as producer, Producer(plain) as other:
            producer.send("orders", b"of blue")
            other.send("orders", b"of none")
        for config, text in ((blue, "of blue"), (plain, "of none")):
            with SimpleConsumer(config, "g", "orders") as consumer:
                assert [message.text for message in consumer.receive()] == [text]
        wrong = ClientConfig(broker.endpoint, access_key="root", access_secret="another-secret", request_timeout=60)
        with pytest.raises(PopError, match=r"(?i)signature|secret") as refused, Producer(wrong) as producer:
            producer.send("orders", b"forged")
        assert not isinstance(refused.value, Forbidden)
