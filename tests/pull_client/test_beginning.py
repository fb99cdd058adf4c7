"""A group's beginning is stored before anything is polled: no crash and no hand-over skips what came meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import pytest

import popserver
from popclient import Message, MessageQueue, MultipleResults, Producer, PullConsumer, aio
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.pull_consumers import core_of, make_topic, members, numbers, read_all, texts
from tests.support.queue_server import QueueServer
from tests.support.scripted_server import OK, status, until, until_in_thread

MQ = MessageQueue("flights", 0)


def send(broker: popserver.EmbeddedBroker, topic: str, texts: list[str]) -> None:
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message(topic, text) for text in texts]).raise_for_failures()


@pytest.mark.row("I1")
def test_what_was_polled_and_not_committed_comes_again_in_a_new_group_too(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    make_topic(shared, topic, 1)
    with PullConsumer(shared.endpoint, f"{topic}-g") as consumer:
        consumer.assign(topic)
        assert consumer.poll(0) == []
        send(shared, topic, numbers(5))
        first = texts(consumer.poll(5))
    with PullConsumer(shared.endpoint, f"{topic}-g") as after:
        after.assign(topic)
        again = texts(after.poll(5))
    assert first and again[: len(first)] == first == numbers(5)[: len(first)]


@pytest.mark.row("I1")
@pytest.mark.row("J11")
def test_what_came_before_a_hand_over_reaches_the_next_owner(shared: popserver.EmbeddedBroker, topic: str) -> None:
    queues = make_topic(shared, topic, 4)
    with PullConsumer(shared.endpoint, f"{topic}-g") as one, PullConsumer(shared.endpoint, f"{topic}-g") as other:
        assert one.subscribe(topic) == queues
        for text in numbers(80):
            send(shared, topic, [text])
        seen = set(texts(one.poll(5, 1)))
        assert len(other.subscribe(topic)) == 2
        until_in_thread(lambda: len(one.assignment) == 2)
        seen |= set(read_all([one, other], 79))  # what was polled is committed with the next that one polls
    assert len(seen) == 80


@pytest.mark.parametrize("capabilities", ["admin,batch,legacy", "admin,batch"])
@pytest.mark.parametrize("came_before", [0, 3])
async def test_it_is_stored_before_the_first_message_goes_out(capabilities: str, came_before: int) -> None:
    async with QueueServer(capabilities) as server, aio.PullConsumer(server.endpoints, "g") as consumer:
        await server.fill(MQ, numbers(came_before))
        await consumer.assign([MQ])
        await server.fill(MQ, ["new"])
        await until(lambda: server.requests("PullMessage"))
        assert server.progress == {}
        assert texts(await consumer.poll(5)) == ["new"]
        assert server.progress == {MQ: came_before}


async def test_a_place_that_was_sought_before_the_first_poll_is_the_callers_own(server: QueueServer) -> None:
    await server.fill(MQ, numbers(10))
    async with aio.PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        await consumer.seek_to_beginning()
        assert texts(await consumer.poll(5, 4)) == numbers(4)
        assert server.progress == {}
        await consumer.commit()
        assert server.progress == {MQ: 4}


async def test_from_the_first_on_nothing_needs_to_be_stored(server: QueueServer) -> None:
    await server.fill(MQ, numbers(3))
    async with aio.PullConsumer(server.endpoints, "g", consume_from="CONSUME_FROM_FIRST_OFFSET") as consumer:
        await consumer.assign([MQ])
        assert texts(await consumer.poll(5)) == numbers(3)
    assert server.progress == {}


async def test_a_member_begins_its_share_before_it_polls(server: QueueServer) -> None:
    for queue_id in range(4):
        await server.fill(MessageQueue("flights", queue_id), numbers(queue_id))
    async with aio.PullConsumer(server.endpoints, "g") as consumer:
        server.answers["ListMembers"] = partial(_alone, consumer)
        await consumer.subscribe("flights")
        assert server.progress == {MessageQueue("flights", queue_id): queue_id for queue_id in range(4)}
        assert [consumer.position(mq) for mq in consumer.assignment] == [0, 1, 2, 3]


async def test_a_share_whose_beginning_is_refused_is_not_taken(server: QueueServer) -> None:
    server.answers["CommitOffsets"] = refused(pb.FORBIDDEN)
    async with aio.PullConsumer(server.endpoints, "g") as consumer:
        server.answers["ListMembers"] = partial(_alone, consumer)
        with pytest.raises(Exception, match="no progress for you"):
            await consumer.subscribe("flights")
        assert consumer.assignment == []


async def test_an_operator_who_is_quicker_says_where_it_begins(server: QueueServer) -> None:
    await server.fill(MQ, numbers(10))

    def ask(request: rpc.QueryOffsetRequest) -> None:
        if request.message_queue.id == MQ.queue_id:
            server.reset(MQ, 7)

    server.answers["QueryOffset"] = ask
    for subscribes in (False, True):
        server.progress.clear()
        server.resets.clear()
        async with aio.PullConsumer(server.endpoints, "g") as consumer:
            server.answers["ListMembers"] = partial(_alone, consumer)
            await (consumer.subscribe("flights") if subscribes else consumer.assign([MQ]))
            assert texts(await consumer.poll(5)) == ["7", "8", "9"]


async def test_until_it_is_stored_nothing_is_polled(server: QueueServer, caplog: pytest.LogCaptureFixture) -> None:
    server.answers["CommitOffsets"] = refused(pb.INTERNAL_SERVER_ERROR, whole=True)
    caplog.set_level(logging.INFO, "popclient")
    async with aio.PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        await server.fill(MQ, ["new"])
        assert await consumer.poll(0.1) == []
        await until(lambda: "where group g begins is not stored yet" in caplog.text)
        del server.answers["CommitOffsets"]
        assert texts(await consumer.poll(5)) == ["new"]
        assert server.progress == {MQ: 0}


async def test_that_it_cannot_be_stored_is_raised_by_poll_again_and_again(server: QueueServer) -> None:
    server.answers["CommitOffsets"] = refused(pb.FORBIDDEN)
    async with aio.PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        await server.fill(MQ, ["new"])
        for _ in range(2):
            with pytest.raises(MultipleResults, match="no progress for you"):
                await consumer.poll(5)
        consumer.pause()
        assert await consumer.poll(0.05) == []
        assert core_of(consumer).assigned == [MQ]


def _alone(consumer: aio.PullConsumer, _: object) -> legacy.ListMembersResponse:
    return members(consumer.client_id)


def refused(code: int, *, whole: bool = False) -> Callable[[legacy.CommitOffsetsRequest], legacy.CommitOffsetsResponse]:
    """Of every offset, or of the call as a whole."""
    told = status(code, "no progress for you")

    def answer(request: legacy.CommitOffsetsRequest) -> legacy.CommitOffsetsResponse:
        if whole:
            return legacy.CommitOffsetsResponse(status=told)
        stored = legacy.QueueOffset(offset=-1)
        results = [legacy.CommitOffsetResult(status=told, stored=stored) for _ in request.offsets]
        return legacy.CommitOffsetsResponse(status=OK, results=results)

    return answer
