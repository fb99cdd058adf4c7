"""Half messages over gRPC: unseen until they are committed, and asked about on their producers' streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.engine.clock import ManualClock
from popserver.model.errors import Forbidden
from popserver.producing.half_messages import Check
from popserver.transport import convert
from tests.support.wire_server import CLIENT, TOPIC, WireServer, a_message, opened

S = 1_000
PATIENCE_S = 10


@pytest.fixture
async def wire_server(tmp_path: Path, clock: ManualClock) -> AsyncIterator[WireServer]:
    async with opened(tmp_path, clock=clock) as opened_server:
        yield opened_server


def a_half(message_id: str = "m1", **more: Any) -> pb.Message:
    return a_message(message_id, message_type=pb.TRANSACTION, **more)


async def send_half(wire_server: WireServer, message_id: str = "m1", client_id: str = CLIENT, **more: Any) -> str:
    """The transaction id."""
    request = wire.SendMessageRequest(messages=[a_half(message_id, **more)])
    (entry,) = (await wire_server.call("SendMessage", request, client_id=client_id)).entries
    assert (entry.status.code, entry.message_id) == (pb.OK, message_id)
    transaction_id: str = entry.transaction_id
    return transaction_id


async def end(
    wire_server: WireServer, transaction_id: str, resolution: int, message_id: str = "m1", **more: Any
) -> pb.Status:
    request = wire.EndTransactionRequest(
        topic=more.get("topic", TOPIC),
        message_id=message_id,
        transaction_id=transaction_id,
        resolution=resolution,  # type: ignore[arg-type]
    )
    status: pb.Status = (await wire_server.call("EndTransaction", request)).status
    return status


class Producer:
    """A producer's end of its telemetry stream."""

    def __init__(self, stream: Any, client_id: str) -> None:
        self._stream = stream
        self.client_id = client_id

    async def publish(self, *topics: pb.Resource) -> None:
        settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=topics))
        await self._stream.write(wire.TelemetryCommand(settings=settings))
        assert (await self._read()).status.code == pb.OK

    async def asked(self) -> tuple[str, str]:
        """(message id, transaction id) of the next check."""
        command = (await self._read()).recover_orphaned_transaction_command
        return command.message.system_properties.message_id, command.transaction_id

    async def command(self) -> wire.TelemetryCommand:
        return await self._read()

    async def _read(self) -> wire.TelemetryCommand:
        async with asyncio.timeout(PATIENCE_S):
            command: wire.TelemetryCommand = await self._stream.read()
        return command


@asynccontextmanager
async def producer(wire_server: WireServer, client_id: str, *topics: pb.Resource) -> AsyncIterator[Producer]:
    async with wire_server.telemetry(client_id) as stream:
        made = Producer(stream, client_id)
        await made.publish(*topics)
        yield made
    await gone(wire_server, client_id)


async def gone(wire_server: WireServer, client_id: str) -> None:
    """The server has noticed that the stream ended."""
    async with asyncio.timeout(PATIENCE_S):
        while wire_server.broker.producing.transactions.producers.stream_of(client_id) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def asked_at_once(made: Producer, wire_server: WireServer, clock: ManualClock) -> tuple[str, str]:
    """What a producer is asked as soon as it is there; a clock that stands still wakes nobody by itself."""
    asked = asyncio.create_task(made.asked())
    while not asked.done():
        await pass_(wire_server, clock, 0)
        await asyncio.sleep(0.005)
    return await asked


async def pass_(wire_server: WireServer, clock: ManualClock, by_ms: int) -> None:
    await clock.advance(by_ms, wire_server.broker.settle)


async def ids(wire_server: WireServer) -> list[str]:
    return [each.system_properties.message_id for each in await wire_server.receive()]


async def test_unseen_until_it_is_committed(wire_server: WireServer) -> None:
    transaction_id = await send_half(wire_server, tag="A", keys=["k"])
    assert transaction_id
    assert await wire_server.receive() == []
    assert (await end(wire_server, transaction_id, pb.COMMIT)).code == pb.OK
    (message,) = await wire_server.receive()
    system = message.system_properties
    assert (system.message_id, system.message_type, system.tag, list(system.keys)) == ("m1", pb.NORMAL, "A", ["k"])


async def test_a_waiting_poll_ends_with_the_commit(wire_server: WireServer) -> None:
    transaction_id = await send_half(wire_server)
    await wire_server.receive()
    poll = asyncio.create_task(wire_server.receive(poll_ms=60_000))
    await end(wire_server, transaction_id, pb.COMMIT)
    async with asyncio.timeout(PATIENCE_S):
        assert len(await poll) == 1


async def test_what_is_rolled_back_is_gone(wire_server: WireServer, clock: ManualClock) -> None:
    transaction_id = await send_half(wire_server)
    assert (await end(wire_server, transaction_id, pb.ROLLBACK)).code == pb.OK
    await pass_(wire_server, clock, 600 * S)
    assert await wire_server.receive() == []


async def test_the_first_decision_counts(wire_server: WireServer) -> None:
    committed, rolled_back = await send_half(wire_server, "c"), await send_half(wire_server, "r")
    await end(wire_server, committed, pb.COMMIT, "c")
    await end(wire_server, rolled_back, pb.ROLLBACK, "r")
    before = await wire_server.digest()
    assert (await end(wire_server, committed, pb.COMMIT, "c")).code == pb.OK
    too_late = await end(wire_server, committed, pb.ROLLBACK, "c")
    assert (too_late.code, "was committed before" in too_late.message) == (pb.INVALID_TRANSACTION_ID, True)
    assert (await end(wire_server, rolled_back, pb.COMMIT, "c")).code == pb.INVALID_TRANSACTION_ID
    assert (await end(wire_server, rolled_back, pb.ROLLBACK, "r")).code == pb.OK
    assert (await end(wire_server, rolled_back, pb.COMMIT, "r")).code == pb.INVALID_TRANSACTION_ID
    assert await wire_server.digest() == before


async def test_no_decision_is_none(wire_server: WireServer) -> None:
    transaction_id = await send_half(wire_server)
    before = await wire_server.digest()
    assert (await end(wire_server, transaction_id, pb.TRANSACTION_RESOLUTION_UNSPECIFIED)).code == pb.OK
    assert await wire_server.digest() == before


BAD = [
    ({"transaction_id": ""}, pb.INVALID_TRANSACTION_ID, "blank"),
    ({"transaction_id": " "}, pb.INVALID_TRANSACTION_ID, "blank"),
    ({"transaction_id": "", "resolution": 0}, pb.INVALID_TRANSACTION_ID, "blank"),
    ({"transaction_id": "unknown"}, pb.INVALID_TRANSACTION_ID, "'unknown'"),
    ({"transaction_id": "unknown", "resolution": pb.ROLLBACK}, pb.INVALID_TRANSACTION_ID, "'unknown'"),
    ({"message_id": "m2"}, pb.INVALID_TRANSACTION_ID, "'m2'"),
    ({"message_id": ""}, pb.INVALID_TRANSACTION_ID, "names no message"),
    ({"message_id": "late"}, pb.INVALID_TRANSACTION_ID, "'late'"),
    ({"resolution": 7}, pb.BAD_REQUEST, "resolution 7"),
    ({"topic": pb.Resource(name="nowhere")}, pb.TOPIC_NOT_FOUND, "popmq topic create nowhere"),
    ({"topic": pb.Resource(name="a.b")}, pb.ILLEGAL_TOPIC, "'a.b'"),
    ({"topic": pb.Resource()}, pb.ILLEGAL_TOPIC, "blank"),
]


@pytest.mark.parametrize(("wrong", "code", "words"), BAD, ids=lambda value: str(value)[:40])
async def test_a_bad_decision_changes_nothing(
    wire_server: WireServer, wrong: dict[str, Any], code: pb.Code.ValueType, words: str
) -> None:
    transaction_id = await send_half(wire_server)
    late = a_message("late")
    convert.set_ms(late.system_properties.delivery_timestamp, wire_server.broker.engine.clock.now_ms() + 60 * S)
    await wire_server.send(late)
    before = await wire_server.digest()
    given: dict[str, Any] = {"transaction_id": transaction_id, "resolution": pb.COMMIT} | wrong
    status = await end(wire_server, **given)
    assert (pb.Code.Name(status.code), status.code) == (pb.Code.Name(code), code)
    assert words in status.message
    assert await wire_server.digest() == before


async def test_halves_and_others_in_one_request(wire_server: WireServer) -> None:
    answer = await wire_server.send(a_half("h"), a_message("n"), a_half("bad", body=b""))
    assert [entry.status.code for entry in answer.entries] == [pb.OK, pb.OK, pb.MESSAGE_BODY_EMPTY]
    assert [bool(entry.transaction_id) for entry in answer.entries] == [True, False, False]
    assert await ids(wire_server) == ["n"]


async def test_a_repeated_half_is_one_transaction(wire_server: WireServer) -> None:
    first, again = await wire_server.send(a_half()), await wire_server.send(a_half())
    assert first == again
    await end(wire_server, first.entries[0].transaction_id, pb.COMMIT)
    late = (await wire_server.send(a_half())).entries[0]
    assert (await end(wire_server, late.transaction_id, pb.COMMIT)).code == pb.OK
    assert len(await wire_server.receive()) == 1


async def test_its_producer_is_asked(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(wire_server, CLIENT, TOPIC) as asked:
        transaction_id = await send_half(wire_server, body=b"whole", tag="A", user_properties={"p": "v"})
        await pass_(wire_server, clock, 6 * S)
        command = await asked.command()
        assert command.status.code == pb.OK
        check = command.recover_orphaned_transaction_command
        assert check.transaction_id == transaction_id
        assert (check.message.body, check.message.topic, dict(check.message.user_properties)) == (
            b"whole",
            TOPIC,
            {"p": "v"},
        )
        system = check.message.system_properties
        assert (system.message_type, system.tag, system.body_encoding) == (pb.TRANSACTION, "A", pb.IDENTITY)
        assert (system.body_digest.type, len(system.body_digest.checksum)) == (pb.MD5, 32)
        await end(wire_server, transaction_id, pb.COMMIT)
        await pass_(wire_server, clock, 60 * S)
        assert await ids(wire_server) == ["m1"]


async def test_when_it_is_asked(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(wire_server, CLIENT, TOPIC) as asked:
        begun_ms = clock.now_ms()
        await send_half(wire_server)
        at_ms: list[int] = []
        for by_ms in (6 * S, 30 * S, 30 * S):
            await pass_(wire_server, clock, by_ms - 1)
            assert await checks(wire_server) == len(at_ms)
            await pass_(wire_server, clock, 1)
            await asked.asked()
            at_ms.append(clock.now_ms() - begun_ms)
        assert at_ms == [6 * S, 36 * S, 66 * S]


async def test_a_message_may_say_how_long_it_takes(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(wire_server, CLIENT, TOPIC) as asked:
        half = a_half()
        half.system_properties.orphaned_transaction_recovery_duration.seconds = 3_600
        await wire_server.send(half)
        await pass_(wire_server, clock, 3_600 * S - 1)
        assert await checks(wire_server) == 0
        await pass_(wire_server, clock, 1)
        assert (await asked.asked())[0] == "m1"


async def test_another_producer_is_asked_next(wire_server: WireServer, clock: ManualClock) -> None:
    async with AsyncExitStack() as stack:
        there = [await stack.enter_async_context(producer(wire_server, name, TOPIC)) for name in ("p0", "p1", "p2")]
        transaction_id = await send_half(wire_server, client_id="p1")
        for number in (1, 2, 0, 1):
            await pass_(wire_server, clock, 30 * S)
            assert await there[number].asked() == ("m1", transaction_id)


async def test_who_may_not_be_asked_about_one_topic_is_asked_about_others(
    wire_server: WireServer, clock: ManualClock
) -> None:
    other = pb.Resource(name="other")
    async with producer(wire_server, CLIENT, TOPIC, other) as asked:
        await send_half(wire_server, "m1")
        await send_half(wire_server, "m2", topic=other)
        producers = wire_server.broker.producing.transactions.producers
        stream, ask = producers.stream_of(CLIENT) or (None, None)

        async def ask_or_refuse(check: Check) -> None:
            if check.stored.message.topic.name == TOPIC.name:
                raise Forbidden("not now")
            assert ask is not None
            await ask(check)

        producers.joined(CLIENT, stream, [], ask_or_refuse)
        await pass_(wire_server, clock, 6 * S)
        assert (await asked.asked())[0] == "m2"
        assert await checks(wire_server) == 1, "no check of the first is counted"
        # Its right is given back, and it says again what it publishes.
        await asked.publish(TOPIC)
        assert (await asked_at_once(asked, wire_server, clock))[0] == "m1"


@pytest.mark.user("U33")
async def test_a_sibling_answers_for_a_dead_producer(wire_server: WireServer, clock: ManualClock) -> None:
    """complaint U33: the producer dies after its half message."""
    async with producer(wire_server, "dies", TOPIC):
        transaction_id = await send_half(wire_server, client_id="dies")
    await pass_(wire_server, clock, 3_600 * S)
    assert await checks(wire_server) == 0  # with nobody there to answer, no check counts
    async with producer(wire_server, "sibling", TOPIC) as sibling:
        assert await asked_at_once(sibling, wire_server, clock) == ("m1", transaction_id)
        assert (await end(wire_server, transaction_id, pb.COMMIT)).code == pb.OK
    assert await ids(wire_server) == ["m1"]


async def test_the_sender_is_asked_though_it_names_no_topic(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(wire_server, "p1") as sender:
        transaction_id = await send_half(wire_server, client_id="p1")
        await pass_(wire_server, clock, 6 * S)
        assert await sender.asked() == ("m1", transaction_id)
    await pass_(wire_server, clock, 60 * S)
    async with producer(wire_server, "p1") as back:
        assert await asked_at_once(back, wire_server, clock) == ("m1", transaction_id)


async def test_other_topics_are_not_its_business(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(
        wire_server, "p2", pb.Resource(name="other"), pb.Resource(resource_namespace="n", name=TOPIC.name)
    ):
        await send_half(wire_server, client_id="p1")
        await pass_(wire_server, clock, 600 * S)
        assert await checks(wire_server) == 0


async def test_a_consumer_is_never_asked(wire_server: WireServer, clock: ManualClock) -> None:
    settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER)
    settings.subscription.group.name = "counters"
    settings.subscription.subscriptions.add(topic=TOPIC)
    async with wire_server.telemetry("p1") as stream:
        await stream.write(wire.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == pb.OK
        await send_half(wire_server, client_id="p1")
        await pass_(wire_server, clock, 60 * S)
        assert await checks(wire_server) == 0


async def test_after_the_last_check_it_is_discarded(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(wire_server, CLIENT, TOPIC) as asked:
        transaction_id = await send_half(wire_server)
        for _ in range(15):
            await pass_(wire_server, clock, 30 * S)
            await asked.asked()
        with structlog.testing.capture_logs() as logs:
            await pass_(wire_server, clock, 30 * S)
        (entry,) = [each for each in logs if each["event"] == "a half message was discarded"]
        assert (entry["topic"], entry["message_id"], entry["checks"]) == ("flights", "m1", 15)
        assert wire_server.broker.producing.transactions.discarded == 1
        assert (await end(wire_server, transaction_id, pb.COMMIT)).code == pb.INVALID_TRANSACTION_ID
        assert await ids(wire_server) == []


async def test_goodbye_ends_the_asking(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(wire_server, CLIENT, TOPIC):
        await send_half(wire_server)
        await wire_server.call("NotifyClientTermination", wire.NotifyClientTerminationRequest())
        await pass_(wire_server, clock, 60 * S)
        assert await checks(wire_server) == 0


async def test_many_are_asked_about(wire_server: WireServer, clock: ManualClock) -> None:
    async with producer(wire_server, CLIENT, TOPIC) as asked:
        for start in range(0, 250, 125):
            await wire_server.send(*(a_half(f"m{number}") for number in range(start, start + 125)))
        advancing = asyncio.create_task(pass_(wire_server, clock, 6 * S))
        found = {(await asked.asked())[0] for _ in range(250)}
        await advancing
        assert found == {f"m{number}" for number in range(250)}


async def checks(wire_server: WireServer) -> int:
    """How often any producer was asked about what is still undecided."""

    def look(conn: Any) -> int:
        return int(conn.exec_driver_sql("SELECT COALESCE(SUM(checks), 0) FROM pending").scalar_one())

    return await wire_server.broker.engine.reader.read(look)
