"""What is committed: what poll has returned; by auto-commit what is dealt with too. A reset wins over everybody."""

from __future__ import annotations

import asyncio
import logging

import pytest

from popclient import ClientClosed, MessageQueue, MultipleResults
from popclient.aio import PullConsumer
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.pull_consumers import FIRST, core_of, numbers, texts
from tests.support.queue_server import QueueServer
from tests.support.scripted_server import status, until

MQ = MessageQueue("flights", 0)
OTHER = MessageQueue("flights", 1)


@pytest.fixture(params=["admin,batch,legacy", "admin,batch"], ids=["legacy", "protocol-alone"])
def capabilities(request: pytest.FixtureRequest) -> str:
    """Of a PopMQ server, and of one that has but the protocol's own offset calls."""
    given: str = request.param
    return given


async def test_what_was_polled_and_no_more(capabilities: str) -> None:
    async with QueueServer(capabilities) as server:
        await server.fill(MQ, numbers(10))
        async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
            await consumer.assign([MQ])
            assert await consumer.committed(MQ) is None
            await consumer.poll(5, 4)
            await consumer.commit()
            assert (server.progress[MQ], await consumer.committed(MQ)) == (4, 4)
        async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as another:
            await another.assign([MQ])
            assert texts(await another.poll(5)) == numbers(10, 4)


async def test_a_commit_of_what_was_not_polled_is_refused_here(server: QueueServer) -> None:
    await server.fill(MQ, numbers(10))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ])
        await consumer.poll(5, 4)
        with pytest.raises(
            ValueError, match="offset 5 of flights:0 is beyond what poll has returned; commit at most 4"
        ):
            await consumer.commit({MQ: 5})
        with pytest.raises(ValueError, match="flights:1 is not assigned; assigned are flights:0"):
            await consumer.commit({OTHER: 0})
        assert server.progress == {}
        await consumer.commit({MQ: 3})
        assert server.progress[MQ] == 3


async def test_progress_that_has_not_changed_is_not_sent_again(server: QueueServer) -> None:
    await server.fill(MQ, numbers(10))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ, OTHER])
        await consumer.poll(5, 4)
        await consumer.commit()
        await consumer.commit()
        await consumer.poll(5, 1)
        await consumer.commit()
        sent = [[entry.offset for entry in request.offsets] for request in server.requests("CommitOffsets")]
        assert sent == [[4, 0], [5]]


async def test_one_refused_offset_does_not_hold_the_others_back(capabilities: str) -> None:
    async with QueueServer(capabilities) as server:
        for mq in (MQ, OTHER):
            await server.fill(mq, numbers(2))
        async with PullConsumer(server.endpoints, "g") as consumer:
            await consumer.assign([MQ, OTHER])
            consumer.seek(MQ, 99)
            with pytest.raises(MultipleResults, match="1 of 2 offsets were not committed; the first, of flights:0"):
                await consumer.commit({MQ: 99, OTHER: 2})
            assert server.progress == {OTHER: 2}


# ---- By itself ----


async def test_off_by_default(server: QueueServer) -> None:
    await server.fill(MQ, numbers(3))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ])
        await consumer.poll(5)
    assert not server.requests("CommitOffsets")


async def test_only_what_earlier_polls_returned_is_committed_by_itself(server: QueueServer) -> None:
    await server.fill(MQ, numbers(10))
    consumer = PullConsumer(server.endpoints, "g", consume_from=FIRST, auto_commit=True, commit_interval=0.01)
    async with consumer:
        await consumer.assign([MQ])
        await consumer.poll(5, 4)
        await until(lambda: MQ in server.progress)
        assert server.progress[MQ] == 0  # the four may still be in work
        await consumer.poll(5, 2)
        await until(lambda: server.progress[MQ] == 4)
    assert server.progress[MQ] == 6  # closing says that all is dealt with


async def test_a_block_that_fails_does_not_commit_its_last_poll(server: QueueServer) -> None:
    await server.fill(MQ, numbers(10))
    with pytest.raises(ZeroDivisionError):
        async with PullConsumer(server.endpoints, "g", consume_from=FIRST, auto_commit=True) as consumer:
            await consumer.assign([MQ])
            await consumer.poll(5, 4)
            await consumer.poll(5, 2)
            raise ZeroDivisionError
    assert server.progress[MQ] == 4


async def test_a_commit_by_itself_that_fails_is_logged_and_tried_again(
    server: QueueServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers["CommitOffsets"] = _commit_refused
    consumer = PullConsumer(server.endpoints, "g", auto_commit=True, commit_interval=0.01)
    with caplog.at_level(logging.WARNING, "popclient"):
        async with consumer:
            await consumer.assign([MQ])
            await until(lambda: len(server.requests("CommitOffsets")) > 1)
            del server.answers["CommitOffsets"]
            await until(lambda: MQ in server.progress)
    assert "progress of group g is not committed" in caplog.text


async def test_after_closing_nothing_goes_on(server: QueueServer) -> None:
    consumer = PullConsumer(server.endpoints, "g")
    await consumer.assign([MQ])
    await consumer.close()
    await consumer.close()
    for call in (consumer.commit(), consumer.assign([MQ]), consumer.queues("flights")):
        with pytest.raises(ClientClosed):
            await call
    with pytest.raises(ClientClosed):
        consumer.seek(MQ, 0)


# ---- Resets ----


async def test_a_commit_from_before_a_reset_is_not_taken_and_polling_goes_on_there(
    server: QueueServer, caplog: pytest.LogCaptureFixture
) -> None:
    await server.fill(MQ, numbers(10))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ])
        await consumer.poll(5, 6)
        await consumer.commit()
        server.reset(MQ, 2)
        await consumer.poll(5, 1)
        with caplog.at_level(logging.WARNING, "popclient"):
            await consumer.commit()
        assert server.progress[MQ] == 2
        assert "flights:0 was reset for group g; going on from 2" in caplog.text
        assert texts(await consumer.poll(5, 3)) == ["2", "3", "4"]
        await consumer.commit()
        assert server.progress[MQ] == 5


async def test_a_reset_that_the_server_tells_of_is_heeded_at_once(server: QueueServer) -> None:
    await server.fill(MQ, numbers(10))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ, OTHER])
        await consumer.poll(5, 6)
        server.reset(MQ, 1)
        settings = pb.Settings()
        settings.CopyFrom(core_of(consumer).session.settings)
        settings.client_properties["popmq.resets"] = "1"
        server.say(rpc.TelemetryCommand(status=status(pb.OK), settings=settings))
        await until(lambda: consumer.position(MQ) == 1)
        assert texts(await consumer.poll(5, 1)) == ["1"]


# ---- Where a queue begins ----


@pytest.mark.row("I1")
async def test_a_new_group_begins_at_the_end(server: QueueServer) -> None:
    await server.fill(MQ, numbers(100))
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        assert consumer.position(MQ) == 100
        await server.fill(MQ, ["new"])
        assert texts(await consumer.poll(5)) == ["new"]


@pytest.mark.row("I2")
async def test_or_at_the_beginning_even_of_a_trimmed_queue(server: QueueServer) -> None:
    await server.fill(MQ, numbers(100))
    server.trim(MQ, 50)
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ])
        assert texts(await consumer.poll(5))[0] == "50"


@pytest.mark.parametrize("consume_from", ["CONSUME_FROM_LAST_OFFSET", FIRST, "CONSUME_FROM_TIMESTAMP"])
async def test_stored_progress_wins_over_the_setting(server: QueueServer, consume_from: str) -> None:
    await server.fill(MQ, numbers(100))
    server.progress[MQ] = 42
    async with PullConsumer(server.endpoints, "g", consume_from=consume_from) as consumer:
        await consumer.assign([MQ])
        assert consumer.position(MQ) == 42


async def test_nothing_begins_at_a_guess_when_progress_is_not_known(server: QueueServer) -> None:
    server.answers["FetchOffsets"] = _fetch_refused
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        with pytest.raises(Exception, match="not now"):
            await consumer.assign([MQ])
        assert consumer.assignment == []
        assert not server.requests("PullMessage")


async def test_concurrent_assignments_come_one_after_the_other(server: QueueServer) -> None:
    async with PullConsumer(server.endpoints, "g") as consumer:
        first, second = await asyncio.gather(consumer.assign([MQ]), consumer.assign([OTHER]))
        assert (first, second, consumer.assignment) == ([MQ], [OTHER], [OTHER])


def _commit_refused(_: object) -> legacy.CommitOffsetsResponse:
    return legacy.CommitOffsetsResponse(status=status(pb.INTERNAL_SERVER_ERROR, "not now"))


def _fetch_refused(_: object) -> legacy.FetchOffsetsResponse:
    return legacy.FetchOffsetsResponse(status=status(pb.INTERNAL_SERVER_ERROR, "not now"))
