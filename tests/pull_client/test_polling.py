"""What poll returns: everything of the assigned queues, in order, once; nothing that was fetched for another place."""

from __future__ import annotations

import asyncio
import logging

import pytest

from popclient import BadRequest, ClientClosed, FilterExpression, MessageQueue, MessageView, NotFound
from popclient.aio import PullConsumer
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.pull_consumers import FIRST, core_of, numbers, texts
from tests.support.queue_server import QueueServer, pull_frames
from tests.support.scripted_server import status, until

MQ = MessageQueue("flights", 0)
ALL = [MessageQueue("flights", queue_id) for queue_id in range(4)]


async def test_every_queue_of_a_topic_each_in_its_order(server: QueueServer) -> None:
    for mq in ALL:
        await server.fill(mq, (f"{mq.queue_id}-{number}" for number in range(50)))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        assert await consumer.queues("flights") == ALL
        assert await consumer.assign("flights") == ALL
        seen: list[MessageView] = []
        while len(seen) < 200:
            seen += await consumer.poll(5)
        for mq in ALL:
            mine = [message for message in seen if message.queue_id == mq.queue_id]
            assert [message.queue_offset for message in mine] == list(range(50))
            assert texts(mine) == [f"{mq.queue_id}-{number}" for number in range(50)]
            assert consumer.position(mq) == 50
        assert {message.topic for message in seen} == {"flights"}


async def test_a_long_poll_brings_what_comes_late(server: QueueServer) -> None:
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        waiting = asyncio.create_task(consumer.poll(5))
        await until(lambda: server.requests("PullMessage"))
        await server.fill(MQ, ["late"])
        assert texts(await waiting) == ["late"]
        assert server.requests("PullMessage")[0].long_polling_timeout.ToSeconds() == 15


async def test_no_message_is_no_error_and_costs_one_pull(server: QueueServer) -> None:
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        assert await consumer.poll(0.05) == []
        assert await consumer.poll(0) == []
        assert len(server.requests("PullMessage")) == 1


async def test_a_server_that_answers_empty_at_once_is_not_asked_again_at_once(server: QueueServer) -> None:
    server.answers["PullMessage"] = lambda request: pull_frames(pb.MESSAGE_NOT_FOUND, [], request.offset)
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        await consumer.poll(0.15)
        assert len(server.requests("PullMessage")) == 1


async def test_one_cancelled_poll_loses_nothing(server: QueueServer) -> None:
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.poll(5), 0.02)
        await server.fill(MQ, ["a", "b"])
        assert texts(await consumer.poll(5)) == ["a", "b"]


async def test_iterating_ends_when_the_consumer_is_closed(server: QueueServer) -> None:
    await server.fill(MQ, numbers(5))
    consumer = PullConsumer(server.endpoints, "g", consume_from=FIRST)
    await consumer.assign(MQ)
    seen: list[str] = []
    closing: list[asyncio.Task[None]] = []
    async for message in consumer:
        seen.append(message.text)
        assert consumer.position(MQ) == len(seen)
        if len(seen) == 5:
            closing.append(asyncio.create_task(consumer.close()))
    assert seen == numbers(5)
    with pytest.raises(ClientClosed):
        await consumer.poll(0)
    await asyncio.gather(*closing)


# ---- Places ----


async def test_nothing_fetched_before_a_seek_is_returned_after_it(server: QueueServer) -> None:
    await server.fill(MQ, numbers(100))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST, batch_size=10) as consumer:
        await consumer.assign([MQ])
        assert texts(await consumer.poll(5, 3)) == ["0", "1", "2"]
        consumer.seek(MQ, 90)
        assert consumer.position(MQ) == 90
        assert texts(await consumer.poll(5, 100))[0] == "90"


async def test_a_pull_under_way_at_a_seek_brings_nothing(server: QueueServer) -> None:
    await server.fill(MQ, numbers(20))
    gate = server.gates["PullMessage"] = asyncio.Event()
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ])
        await until(lambda: server.requests("PullMessage"))
        consumer.seek(MQ, 15)
        gate.set()
        assert texts(await consumer.poll(5)) == numbers(20, 15)
        consumer.seek(MQ, 0)
        assert texts(await consumer.poll(5)) == numbers(20)


async def test_seeks_in_quick_succession_end_at_the_last(server: QueueServer) -> None:
    await server.fill(MQ, numbers(100))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST, batch_size=7) as consumer:
        await consumer.assign([MQ])
        for offset in (50, 3, 99, 42):
            consumer.seek(MQ, offset)
            await asyncio.sleep(0)
        seen: list[str] = []
        while len(seen) < 58:
            seen += texts(await consumer.poll(5))
        assert seen == numbers(100, 42)


@pytest.mark.parametrize(("asked", "told"), [(999, 30), (0, 10), (30, 30), (10, 10)])
async def test_an_offset_beyond_an_end_is_corrected_with_a_line_in_the_log(
    server: QueueServer, caplog: pytest.LogCaptureFixture, asked: int, told: int
) -> None:
    await server.fill(MQ, numbers(30))
    server.trim(MQ, 10)
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        with caplog.at_level(logging.WARNING, "popclient"):
            await consumer.assign([MQ])
            await consumer.poll(5)
            caplog.clear()
            consumer.seek(MQ, asked)
            await until(lambda: consumer.position(MQ) == told)
            await server.fill(MQ, ["new"])
            [first, *_] = await consumer.poll(5)
        assert first.queue_offset == told
        corrected = [record.getMessage() for record in caplog.records]
        assert corrected == ([] if asked == told else [f"flights:0 has no offset {asked}; going on from {told}"])


async def test_a_server_that_always_corrects_is_not_asked_without_end(server: QueueServer) -> None:
    server.answers["PullMessage"] = lambda request: pull_frames(pb.ILLEGAL_OFFSET, [], 7 if request.offset else 3)
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        assert await consumer.poll(0.15) == []
        assert len(server.requests("PullMessage")) == 2


async def test_to_the_ends(server: QueueServer) -> None:
    for mq in ALL[:2]:
        await server.fill(mq, numbers(10))
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign(ALL[:2])
        await consumer.seek_to_beginning(ALL[0])
        assert [consumer.position(mq) for mq in ALL[:2]] == [0, 10]
        await consumer.seek_to_beginning()
        assert [consumer.position(mq) for mq in ALL[:2]] == [0, 0]
        await consumer.seek_to_end()
        assert [consumer.position(mq) for mq in ALL[:2]] == [10, 10]


async def test_what_is_paused_is_not_returned_and_goes_on_where_it_was(server: QueueServer) -> None:
    for mq in ALL[:2]:
        await server.fill(mq, numbers(5))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign(ALL[:2])
        assert len(await consumer.poll(5, 1)) == 1
        places = [consumer.position(mq) for mq in ALL[:2]]
        consumer.pause(ALL[0])
        seen: list[MessageView] = []
        while len(seen) < 5 - places[1]:
            seen += await consumer.poll(5)
        assert {message.queue_id for message in seen} == {1}
        assert await consumer.poll(0.02) == []
        assert consumer.position(ALL[0]) == places[0]
        consumer.resume()
        assert texts(await consumer.poll(5)) == numbers(5, places[0])


async def test_paused_queues_leave_their_room_to_others(server: QueueServer) -> None:
    await server.fill(ALL[0], numbers(10))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST, max_cached_messages=4, batch_size=4) as consumer:
        await consumer.assign(ALL[0])
        await until(lambda: server.requests("PullMessage"))
        assert await consumer.poll(5, 1)
        consumer.pause(ALL[0])
        await server.fill(ALL[1], numbers(3))
        await consumer.assign(ALL[:2])
        seen: list[MessageView] = []
        while len(seen) < 3:
            seen += await consumer.poll(5)
        assert {message.queue_id for message in seen} == {1}


# ---- Bounds ----


async def test_no_more_is_fetched_ahead_than_there_is_room_for(server: QueueServer) -> None:
    for mq in ALL:
        await server.fill(mq, numbers(500))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST, max_cached_messages=40) as consumer:
        await consumer.assign("flights")
        room = core_of(consumer)._assignment.budget
        await until(lambda: room.messages + room.asked_messages >= 30)
        seen = 0
        while seen < 2000:
            seen += len(await consumer.poll(5, 7))
            assert room.messages + room.asked_messages <= 40
        assert (room.messages, room.bytes) == (0, 0)


async def test_bytes_are_bounded_by_what_one_pull_brings_beyond(server: QueueServer) -> None:
    await server.fill(MQ, ["x" * 1000] * 50)
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST, max_cached_bytes=4000, batch_size=2) as consumer:
        await consumer.assign([MQ])
        room = core_of(consumer)._assignment.budget
        await until(lambda: room.bytes)
        seen = 0
        while seen < 50:
            seen += len(await consumer.poll(5, 1))
            assert room.bytes <= 4000 + 2 * 1000


# ---- Filters ----


async def test_what_is_not_wanted_is_passed_over_and_counts_as_consumed(server: QueueServer) -> None:
    await server.fill(MQ, numbers(100), tag="B")
    await server.fill(MQ, ["wanted"], tag="A")
    filters: dict[str, str | FilterExpression] = {"flights": "A", "hotels": FilterExpression.sql("stars > 3")}
    async with PullConsumer(server.endpoints, "g", filters=filters, consume_from=FIRST) as consumer:
        await consumer.assign([MQ, MessageQueue("hotels", 0)])
        assert texts(await consumer.poll(5)) == ["wanted"]
        assert consumer.position(MQ) == 101
        await until(lambda: len({request.message_queue.topic.name for request in server.requests("PullMessage")}) == 2)
        sent = {r.message_queue.topic.name: r.filter_expression for r in server.requests("PullMessage")}
        assert (sent["flights"].type, sent["flights"].expression) == (pb.TAG, "A")
        assert (sent["hotels"].type, sent["hotels"].expression) == (pb.SQL, "stars > 3")


async def test_a_retry_shows_the_topic_that_it_comes_from(server: QueueServer) -> None:
    retries = MessageQueue("%RETRY%g", 0)
    await server.fill(retries, ["again"])
    server.queues[retries][0].user_properties["RETRY_TOPIC"] = "flights"
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([retries])
        [message] = await consumer.poll(5)
        assert (message.topic, message.queue_id, message.queue_offset) == ("flights", 0, 0)
        assert consumer.position(retries) == 1


# ---- Failures ----


async def test_what_waiting_does_not_mend_is_raised_by_poll_again_and_again(server: QueueServer) -> None:
    refusal = status(pb.ILLEGAL_FILTER_EXPRESSION, "no operand at position 3")
    server.answers["PullMessage"] = lambda _: [rpc.PullMessageResponse(status=refusal)]
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        for _ in range(2):
            with pytest.raises(BadRequest, match="no operand at position 3"):
                await consumer.poll(5)
        assert len(server.requests("PullMessage")) <= 3
        del server.answers["PullMessage"]
        await server.fill(MQ, ["mended"])
        consumer.seek(MQ, 0)
        assert texts(await consumer.poll(5)) == ["mended"]


async def test_a_failing_queue_does_not_hide_what_others_bring(server: QueueServer) -> None:
    await server.fill(ALL[1], numbers(3))
    refusal = rpc.PullMessageResponse(status=status(pb.FORBIDDEN, "not this one"))
    server.answers["PullMessage"] = lambda request: None if request.message_queue.id else [refusal]
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign(ALL[1])
        await until(lambda: core_of(consumer)._assignment.budget.messages == 3)
        await consumer.assign(ALL[:2])
        assert texts(await consumer.poll(5)) == numbers(3)


@pytest.mark.parametrize("code", [pb.TOO_MANY_REQUESTS, pb.INTERNAL_SERVER_ERROR])
async def test_what_waiting_mends_is_waited_for(server: QueueServer, code: int) -> None:
    refusals = [[rpc.PullMessageResponse(status=status(code, "later"))], None]
    server.answers["PullMessage"] = lambda _: refusals.pop(0) if refusals else None
    await server.fill(MQ, ["there"])
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ])
        assert texts(await consumer.poll(5)) == ["there"]


async def test_a_server_that_restarts_is_waited_for(server: QueueServer) -> None:
    await server.fill(MQ, ["before"])
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign([MQ])
        assert texts(await consumer.poll(5)) == ["before"]
        port = server.port
        await server.stop()
        await server.fill(MQ, ["after"])
        await server.start(port)
        assert texts(await consumer.poll(5)) == ["after"]


async def test_an_answer_without_its_next_offset_is_refused(server: QueueServer) -> None:
    server.answers["PullMessage"] = lambda _: [rpc.PullMessageResponse(status=status(pb.OK))]
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        with pytest.raises(Exception, match="flights:0 has no next offset"):
            await consumer.poll(5)


# ---- Assignment ----


async def test_a_new_assignment_keeps_the_place_of_what_stays(server: QueueServer) -> None:
    await server.fill(ALL[0], numbers(10))
    async with PullConsumer(server.endpoints, "g", consume_from=FIRST) as consumer:
        await consumer.assign(ALL[:2])
        assert texts(await consumer.poll(5, 4)) == numbers(4)
        assert await consumer.assign([ALL[0], ALL[3]]) == [ALL[0], ALL[3]]
        assert texts(await consumer.poll(5)) == numbers(10, 4)
        assert consumer.assignment == [ALL[0], ALL[3]]
        assert await consumer.assign([]) == []
        with pytest.raises(ValueError, match=r"call assign\(topic\)"):
            await consumer.poll(0)


async def test_a_queue_that_there_is_not_changes_nothing(server: QueueServer) -> None:
    async with PullConsumer(server.endpoints, "g") as consumer:
        await consumer.assign([MQ])
        with pytest.raises(NotFound, match="topic flights has no queue 9; it has flights:0, flights:1"):
            await consumer.assign([ALL[1], MessageQueue("flights", 9)])
        assert consumer.assignment == [MQ]


async def test_more_queues_than_room_is_refused(server: QueueServer) -> None:
    async with PullConsumer(server.endpoints, "g", max_cached_messages=3) as consumer:
        with pytest.raises(ValueError, match="4 queues are assigned and max_cached_messages is 3"):
            await consumer.assign("flights")


async def test_a_topic_that_grows_is_followed_from_the_beginning_of_its_new_queues(server: QueueServer) -> None:
    route = rpc.QueryRouteResponse(status=status(pb.OK))
    for queue_id in range(2):
        topic = pb.Resource(name="flights")
        route.message_queues.add(topic=topic, id=queue_id, permission=pb.READ_WRITE, broker=pb.Broker(name="b"))
    server.answers["QueryRoute"] = lambda _: route
    async with PullConsumer(server.endpoints, "g") as consumer:
        assert await consumer.assign("flights") == ALL[:2]
        route.message_queues.add(topic=topic, id=2, permission=pb.READ_WRITE, broker=pb.Broker(name="b"))
        route.message_queues.add(topic=topic, id=3, permission=pb.WRITE, broker=pb.Broker(name="b"))
        await server.fill(ALL[2], ["in a new queue"])
        core = core_of(consumer)
        await core.session.routes.refresh_all()
        await core._follow()
        assert texts(await consumer.poll(5)) == ["in a new queue"]
        assert consumer.assignment == ALL[:3]
