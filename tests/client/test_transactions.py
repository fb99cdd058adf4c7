"""Transactions of both faces: the block decides, and the checker where nobody could."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import popserver
from popclient import (
    BadRequest,
    ClientConfig,
    Message,
    MessageView,
    Producer,
    SimpleConsumer,
    TransactionResolution,
    Unreachable,
    aio,
)
from popclient._producer.transactions import in_a_thread
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import ScriptedServer, ServerThread, status, until, until_in_thread

COMMIT, ROLLBACK, UNKNOWN = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK, TransactionResolution.UNKNOWN


@pytest.fixture
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded(manual_clock=True) as embedded:
        yield embedded


def received(broker: popserver.EmbeddedBroker, topic: str = "orders", await_duration: float = 5) -> list[str]:
    with SimpleConsumer(broker.endpoint, "billing", topic) as consumer:
        return [message.text for message in consumer.receive(await_duration=await_duration)]


def is_empty(broker: popserver.EmbeddedBroker) -> bool:
    return received(broker, await_duration=0) == []


def test_the_end_of_the_block_delivers(broker: popserver.EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer:
        with producer.transaction(Message("orders", "paid", tag="A")) as transaction:
            assert is_empty(broker)
            assert transaction.resolution is None
            assert transaction.message_id
            assert transaction.transaction_id
        assert transaction.resolution is COMMIT
        assert received(broker) == ["paid"]


def test_a_block_that_raises_delivers_nothing(broker: popserver.EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("orders", "paid")) as transaction:
            raise ZeroDivisionError
        assert transaction.resolution is ROLLBACK
        assert is_empty(broker)


def test_deciding_early(broker: popserver.EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer:
        with producer.transaction(Message("orders", "one")) as first:
            first.commit()
            assert received(broker) == ["one"]
            first.commit()
            with pytest.raises(RuntimeError, match="decision is COMMIT"):
                first.rollback()
        with producer.transaction(Message("orders", "two")) as second:
            second.rollback()
        assert is_empty(broker)


async def test_with_asyncio(broker: popserver.EmbeddedBroker) -> None:
    async with aio.Producer(broker.endpoint) as producer:
        async with producer.transaction(Message("orders", "one")) as transaction:
            assert transaction.transaction_id
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", "two")):
                raise ZeroDivisionError
        async with producer.transaction(Message("orders", "three")) as early:
            await early.rollback()
        assert (transaction.resolution, early.resolution) == (COMMIT, ROLLBACK)
    assert await asyncio.to_thread(received, broker) == ["one"]


SPECIAL = [{"message_group": "g"}, {"priority": 1}, {"delay": 5}, {"delivery_timestamp": datetime.now(UTC)}]


@pytest.mark.parametrize("special", SPECIAL, ids=", ".join)
def test_it_excludes_what_else_makes_a_type(broker: popserver.EmbeddedBroker, special: dict[str, object]) -> None:
    with Producer(broker.endpoint) as producer, pytest.raises(ValueError, match="in a transaction has no"):
        producer.transaction(Message("orders", b"x", **special))  # type: ignore[arg-type]


def test_it_is_used_in_a_block_and_once(broker: popserver.EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer:
        transaction = producer.transaction(Message("orders", b"x"))
        with pytest.raises(RuntimeError, match="has not begun"):
            transaction.commit()
        with transaction:
            pass
        with pytest.raises(RuntimeError, match="used once"), transaction:
            pass


def test_a_half_that_is_refused_runs_no_block(broker: popserver.EmbeddedBroker) -> None:
    with (
        Producer(broker.endpoint) as producer,
        pytest.raises(BadRequest, match="tag"),
        producer.transaction(Message("orders", b"x", tag="a|b")),
    ):
        raise AssertionError("the block has run")


def test_the_checker_answers_for_a_producer_that_died(broker: popserver.EmbeddedBroker) -> None:
    """complaint U33. The dead one's half is a send like any other to the server: it is sent here as such."""
    seen: list[MessageView] = []

    def checker(message: MessageView) -> TransactionResolution:
        seen.append(message)
        return COMMIT if message.text == "paid" else ROLLBACK

    with Producer(broker.endpoint) as dying:
        for body in ("paid", "not paid"):
            dying._bridge.run(dying.transaction(Message("orders", body, keys="k"))._half.begin)
    broker.clock.advance("1h")
    with Producer(broker.endpoint, "orders", checker=checker):
        # A clock that stands still wakes nobody by itself, and the checks must not come faster than their answers.
        until_in_thread(lambda: broker.clock.advance(0) or len(seen) == 2)
        until_in_thread(lambda: not undecided(broker))
    assert {(message.text, message.keys, message.corrupted) for message in seen} == {
        ("paid", ("k",), False),
        ("not paid", ("k",), False),
    }
    assert received(broker) == ["paid"]


async def test_an_asyncio_checker(broker: popserver.EmbeddedBroker) -> None:
    asked = asyncio.Event()

    async def checker(_message: MessageView) -> TransactionResolution:
        await asyncio.sleep(0)
        asked.set()
        return COMMIT

    async with aio.Producer(broker.endpoint, "orders", checker=checker) as producer:
        half = producer.transaction(Message("orders", "paid"), check_after=timedelta(minutes=10))
        await half._half.begin()
        await asyncio.to_thread(broker.clock.advance, "9m")
        assert not asked.is_set()
        await asyncio.to_thread(broker.clock.advance, "1m")
        await until(asked.is_set)
        await until(lambda: not undecided(broker))
    assert await asyncio.to_thread(received, broker) == ["paid"]


@pytest.mark.parametrize("answer", [UNKNOWN, None, "COMMIT", ZeroDivisionError()], ids=repr)
def test_no_answer_is_asked_again(broker: popserver.EmbeddedBroker, answer: object) -> None:
    answers = [answer, COMMIT]
    calls = threading.Semaphore(0)

    def checker(_message: MessageView) -> TransactionResolution:
        calls.release()
        said = answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return said  # type: ignore[return-value]

    with Producer(broker.endpoint, checker=checker) as producer:
        producer._bridge.run(producer.transaction(Message("orders", "paid"))._half.begin)
        broker.clock.advance("6s")
        assert calls.acquire(timeout=5)
        assert is_empty(broker)
        broker.clock.advance("30s")
        assert calls.acquire(timeout=5)
        until_in_thread(lambda: not undecided(broker))
    assert received(broker) == ["paid"]


def undecided(broker: popserver.EmbeddedBroker) -> int:
    count = "SELECT COUNT(*) FROM pending"
    return broker.run(broker.app.broker.engine.reader.read(lambda conn: int(conn.exec_driver_sql(count).scalar_one())))


async def test_a_decision_is_tried_again(server: ScriptedServer) -> None:
    refusals = [status(pb.INTERNAL_SERVER_ERROR), status(pb.TOO_MANY_REQUESTS)]
    server.answers["EndTransaction"] = lambda _: (
        rpc.EndTransactionResponse(status=refusals.pop(0)) if refusals else None
    )
    async with (
        aio.Producer(server.endpoints) as producer,
        producer.transaction(Message("orders", b"x"), check_after=90),
    ):
        pass
    requests = server.requests("EndTransaction")
    assert len(requests) == 3
    assert {(each.resolution, each.source) for each in requests} == {(pb.COMMIT, pb.SOURCE_CLIENT)}
    (sent,) = server.requests("SendMessage")
    system = sent.messages[0].system_properties
    assert system.message_type == pb.TRANSACTION
    assert system.orphaned_transaction_recovery_duration.ToTimedelta() == timedelta(seconds=90)
    assert requests[0].message_id == system.message_id


async def test_a_commit_that_reaches_nobody_raises(server: ScriptedServer) -> None:
    config = ClientConfig(server.endpoints, request_timeout=0.3, max_attempts=1)
    async with aio.Producer(config) as producer:
        with pytest.raises(Unreachable):
            async with producer.transaction(Message("orders", b"x")) as transaction:
                await server.stop()
        assert transaction.resolution is COMMIT


async def test_a_rollback_that_reaches_nobody_hides_nothing(server: ScriptedServer) -> None:
    config = ClientConfig(server.endpoints, request_timeout=0.3, max_attempts=1)
    async with aio.Producer(config) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", b"x")):
                await server.stop()
                raise ZeroDivisionError


def check_of(message_id: str) -> rpc.TelemetryCommand:
    """The server asks about a half message."""
    command = rpc.RecoverOrphanedTransactionCommand(transaction_id="t1")
    command.message.topic.name = "orders"
    command.message.system_properties.message_id = message_id
    return rpc.TelemetryCommand(recover_orphaned_transaction_command=command)


async def test_a_check_is_answered_as_one(server: ScriptedServer) -> None:
    async def checker(_message: MessageView) -> TransactionResolution:
        await asyncio.sleep(0)
        return ROLLBACK

    async with aio.Producer(server.endpoints, "orders", checker=checker):
        await until(lambda: server.streams)
        server.say(check_of("m1"))
        await until(lambda: server.requests("EndTransaction"))
    (request,) = server.requests("EndTransaction")
    assert (request.topic.name, request.message_id, request.transaction_id) == ("orders", "m1", "t1")
    assert (request.resolution, request.source) == (pb.ROLLBACK, pb.SOURCE_SERVER_CHECK)


GIVEN_UP = "the checker has not decided about message stuck of topic 'orders' within 0.05 s; the server will ask again"


async def test_an_asyncio_checker_that_hangs_is_given_up_and_stops_no_other(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("popclient._producer.transactions.CHECKS_AT_ONCE", 1)
    stuck = asyncio.Event()

    async def checker(message: MessageView) -> TransactionResolution:
        if message.message_id == "stuck":
            try:
                await stuck.wait()
            except asyncio.CancelledError:
                return COMMIT  # late
        return ROLLBACK

    async with aio.Producer(server.endpoints, "orders", checker=checker, checker_timeout=0.05):
        await until(lambda: server.streams)
        server.say(check_of("stuck"))
        server.say(check_of("other"))
        await until(lambda: server.requests("EndTransaction"))
    assert [request.message_id for request in server.requests("EndTransaction")] == ["other"]
    [record] = [record for record in caplog.records if "stuck" in record.getMessage()]
    assert (record.levelname, record.getMessage()) == ("WARNING", GIVEN_UP)


def test_a_checker_that_hangs_is_given_up_and_stops_no_other(
    threaded: ServerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("popclient._producer.transactions.CHECKS_AT_ONCE", 1)
    release, late = threading.Event(), threading.Event()

    def checker(message: MessageView) -> TransactionResolution:
        if message.message_id == "stuck":
            release.wait(60)
            late.set()
        return ROLLBACK

    server = threaded.server
    with Producer(threaded.endpoints, "orders", checker=checker, checker_timeout=timedelta(seconds=0.05)) as producer:
        until_in_thread(lambda: server.streams)
        threaded.say(check_of("stuck"))
        threaded.say(check_of("other"))
        until_in_thread(lambda: server.requests("EndTransaction"))
        release.set()
        assert late.wait(60)
        producer.send("orders", b"x")
    assert [request.message_id for request in server.requests("EndTransaction")] == ["other"]
    assert GIVEN_UP in [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def test_a_timeout_inside_the_checker_is_an_error_of_its_own(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def checker(_message: MessageView) -> TransactionResolution:
        raise TimeoutError("the database is slow")

    async with aio.Producer(server.endpoints, "orders", checker=checker):
        await until(lambda: server.streams)
        server.say(check_of("m1"))
        await until(lambda: "the checker failed on message m1 of topic 'orders'" in caplog.text)
    assert "the database is slow" in caplog.text


@pytest.mark.parametrize("face", [Producer, aio.Producer])
def test_a_checker_needs_some_time(face: Any) -> None:
    with pytest.raises(ValueError, match=r"checker_timeout is 0; it must be seconds or a timedelta, from 0\.001 s"):
        face("127.0.0.1:1", checker_timeout=0)


async def test_without_a_checker_a_check_goes_unanswered(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, "orders") as producer:
        await until(lambda: server.streams)
        server.say(rpc.TelemetryCommand(recover_orphaned_transaction_command=rpc.RecoverOrphanedTransactionCommand()))
        await producer.send("orders", b"x")
        assert producer.healthy
    assert server.requests("EndTransaction") == []


@pytest.mark.parametrize("raised", [StopIteration(), SystemExit(1), KeyError("x")])
async def test_whatever_a_checker_raises_frees_its_slot(raised: BaseException) -> None:
    def checker(_: MessageView) -> TransactionResolution:
        raise raised

    with pytest.raises(RuntimeError, match="the checker raised") as caught:
        async with asyncio.timeout(60):
            await in_a_thread(checker)(MessageView.unheld(pb.Message()))
    assert caught.value.__cause__ is raised
