"""A pull by either call: what it puts on the wire, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

import popserver
from popclient import (
    ConsumeConcurrentlyStatus,
    FilterExpression,
    Forbidden,
    MessageQueue,
    MessageView,
    Producer,
    PullConsumer,
    QueuePushConsumer,
    UnexpectedAnswer,
    UnsupportedByServer,
    aio,
)
from popclient._queues import pull as pull_call
from popclient._queues.pull import Pulled
from popclient._session.session import Session
from popclient.config import ClientConfig
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from popserver.model.errors import Unsupported
from popserver.pulling.rpc import PullMethods
from tests.support.queue_server import QueueServer, pull_frames
from tests.support.scripted_server import status, until

MQ = MessageQueue("flights", 1)
RETRY = MessageQueue("%RETRY%g", 0)
FIRST = "CONSUME_FROM_FIRST_OFFSET"
IN_PIECES, IN_ONE_PIECE = "admin,batch,legacy", "admin,batch,legacy,pull-batch"
CALL_OF = {"": "PullMessage", IN_PIECES: "PullMessage", IN_ONE_PIECE: "PullBatch"}
Pull = Callable[..., Awaitable[Pulled]]


@asynccontextmanager
async def pulling(server: QueueServer) -> AsyncIterator[Pull]:
    """`pull_call.pull` in a session of its own; from the beginning of MQ, and not held, unless said."""
    settings = pb.Subscription(group=pb.Resource(name="g"))
    session = Session(ClientConfig(server.endpoints, namespace="airline"), pb.PULL_CONSUMER, "g", lambda: settings)

    async def pull(mq: MessageQueue = MQ, offset: int = 0, **more: Any) -> Pulled:
        options: dict[str, Any] = {"batch_size": 8, "expression": FilterExpression("*"), "hold": timedelta(0)} | more
        return await pull_call.pull(session, "g", mq, offset, **options)

    yield pull
    await session.close(0)


@pytest.fixture(params=CALL_OF, ids=["proxy", "in-pieces", "in-one-piece"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[QueueServer]:
    async with QueueServer(request.param) as server:
        yield server


def asked(server: QueueServer) -> Any:
    """The one request of the call that fits the server; none has come by the other."""
    call = CALL_OF[server.capabilities]
    assert {name for name, _ in server.calls if name.startswith("Pull")} == {call}
    [request] = server.requests(call)
    return request


async def test_what_is_there_and_where_to_go_on(server: QueueServer) -> None:
    await server.fill(MQ, ["0", "1", "2"])
    async with pulling(server) as pull:
        pulled = await pull(offset=1, hold=timedelta(seconds=15))
    assert (pulled.code, [message.text for message in pulled.messages], pulled.next_offset) == (pb.OK, ["1", "2"], 3)
    request = asked(server)
    assert (request.group.name, request.group.resource_namespace) == ("g", "airline")
    assert (request.offset, request.batch_size, request.long_polling_timeout.ToSeconds()) == (1, 8, 15)
    assert (request.filter_expression.type, request.filter_expression.expression) == (pb.TAG, "*")


async def test_the_queue_is_named_as_each_call_names_it(server: QueueServer) -> None:
    await server.fill(MQ, ["0"])
    async with pulling(server) as pull:
        await pull()
    request = asked(server)
    if isinstance(request, legacy.PullBatchRequest):
        assert (request.queue.topic.name, request.queue.topic.resource_namespace) == ("flights", "airline")
        assert request.queue.queue_id == 1
    else:
        assert (request.message_queue.topic.name, request.message_queue.id) == MQ
        assert request.message_queue.broker.name == "broker", "as the route has it"


async def test_what_it_carries_besides(server: QueueServer) -> None:
    await server.fill(MQ, ["0"])
    extras = legacy.PullExtras(sys_flag=7, commit_offset=77, resets=2, sub_version=1_700_000_000_000)
    async with pulling(server) as pull:
        await pull(expression=None, extras=extras)
    request = asked(server)
    if isinstance(request, legacy.PullBatchRequest):
        assert request.extras == extras
    else:
        sent: Any = server.metadata["PullMessage"][pull_call.EXTRAS_HEADER]
        assert legacy.PullExtras.FromString(sent) == extras
    assert not request.HasField("filter_expression")
    assert request.long_polling_timeout.ToTimedelta() == timedelta(0)


async def test_nothing_is_carried_where_there_is_nothing_to_say(server: QueueServer) -> None:
    await server.fill(MQ, ["0"])
    async with pulling(server) as pull:
        await pull()
    assert pull_call.EXTRAS_HEADER not in server.metadata[CALL_OF[server.capabilities]]
    assert isinstance(asked(server), rpc.PullMessageRequest) or not asked(server).HasField("extras")


async def test_an_offset_that_is_corrected(server: QueueServer) -> None:
    await server.fill(MQ, ["0"])
    async with pulling(server) as pull:
        assert await pull(offset=9) == Pulled(pb.ILLEGAL_OFFSET, [], 1)


async def test_a_retry_carries_the_topic_that_it_comes_from(server: QueueServer) -> None:
    await server.fill(RETRY, ["0"])
    server.queues[RETRY][0].user_properties["RETRY_TOPIC"] = "flights"
    async with pulling(server) as pull:
        [message] = (await pull(RETRY)).messages
    assert message.topic == "flights"


async def test_a_refusal_is_raised_as_it_is(server: QueueServer) -> None:
    call, refused = CALL_OF[server.capabilities], status(pb.FORBIDDEN, "not this one")
    whole = legacy.PullBatchResponse(status=refused)
    server.answers[call] = lambda _: whole if call == "PullBatch" else [rpc.PullMessageResponse(status=refused)]
    async with pulling(server) as pull:
        with pytest.raises(Forbidden, match="not this one"):
            await pull()


async def test_one_that_breaks_is_repeated(server: QueueServer) -> None:
    await server.fill(MQ, ["0"])
    call, failures = CALL_OF[server.capabilities], [grpc.StatusCode.UNAVAILABLE]
    server.answers[call] = lambda _: failures.pop() if failures else None
    async with pulling(server) as pull:
        assert [message.text for message in (await pull()).messages] == ["0"]
    assert len(server.requests(call)) == 2


async def test_one_under_way_at_a_seek_brings_nothing(server: QueueServer) -> None:
    await server.fill(MQ, ["0", "1", "2"])
    call = CALL_OF[server.capabilities]
    async with aio.PullConsumer(server.endpoints, "g", consume_from="CONSUME_FROM_LAST_OFFSET") as consumer:
        await consumer.assign([MQ])
        await until(lambda: server.requests(call))
        consumer.seek(MQ, 1)
        assert [message.text for message in await consumer.poll(5)] == ["1", "2"]


@pytest.mark.parametrize(
    ("frames", "missing"),
    [
        (pull_frames(pb.OK, [], 1)[1:], "status"),
        (pull_frames(pb.OK, [], 1)[:1], "next offset"),
        ([], "status"),
    ],
)
async def test_half_an_answer_is_none(frames: list[rpc.PullMessageResponse], missing: str) -> None:
    async with QueueServer(IN_PIECES) as server, pulling(server) as pull:
        server.answers["PullMessage"] = lambda _: frames
        with pytest.raises(UnexpectedAnswer, match=f"a pull of queue flights:1 has no {missing}"):
            await pull()


async def test_an_answer_in_one_piece_without_a_status_is_none() -> None:
    async with QueueServer(IN_ONE_PIECE) as server, pulling(server) as pull:
        server.answers["PullBatch"] = lambda _: legacy.PullBatchResponse(next_offset=1)
        with pytest.raises(UnexpectedAnswer, match="a pull of queue flights:1 has no status"):
            await pull()


async def test_a_server_that_turns_out_to_be_older_is_asked_in_pieces() -> None:
    """As may be while the servers of one address are renewed one after the other."""
    async with QueueServer(IN_ONE_PIECE) as server, pulling(server) as pull:
        await server.fill(MQ, ["0"])
        server.answers["PullBatch"] = lambda _: grpc.StatusCode.UNIMPLEMENTED
        assert [message.text for message in (await pull()).messages] == ["0"]


async def test_one_that_offers_neither_is_named() -> None:
    async with QueueServer(IN_ONE_PIECE) as server, pulling(server) as pull:
        server.answers["PullBatch"] = server.answers["PullMessage"] = lambda _: grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(UnsupportedByServer, match=r"^PullMessage is not offered by the server"):
            await pull()


def test_our_own_server_is_asked_in_one_piece(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    async def refuse(*_: object) -> None:
        raise Unsupported("there is a call that costs less")

    monkeypatch.setattr(PullMethods, "pull_message", refuse)
    heard: SimpleQueue[str] = SimpleQueue()

    def listener(messages: Sequence[MessageView], _: object) -> ConsumeConcurrentlyStatus:
        for message in messages:
            heard.put(message.text)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with popserver.embedded() as broker:
        with Producer(broker.endpoint) as producer:
            producer.send(topic, "UA 1545")
        with PullConsumer(broker.endpoint, f"{topic}-pull", consume_from=FIRST) as consumer:
            consumer.assign(topic)
            assert [message.text for message in consumer.poll(5)] == ["UA 1545"]
        with QueuePushConsumer(broker.endpoint, f"{topic}-push", topic, listener, consume_from=FIRST):
            assert heard.get(timeout=60) == "UA 1545"
