"""A simple consumer of a topic on two brokers: RocketMQ's proxy looks at one of them for each receive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popclient import PopError
from popclient.aio import SimpleConsumer
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import OK, ScriptedServer, status

BROKERS = ("broker-a", "broker-b")


class TwoBrokers:
    """What the server does: a receive brings the messages of the broker that it names, or waits until that is dead."""

    def __init__(self, server: ScriptedServer) -> None:
        self.asked: list[str] = []
        self.at: dict[str, str] = {}
        self._dead = {name: asyncio.Event() for name in BROKERS}
        self.both_asked = asyncio.Event()
        server.capabilities = ""
        server.answers["QueryRoute"] = self._route
        server.answers["ReceiveMessage"] = self._receive

    def kill(self, name: str) -> None:
        self._dead[name].set()

    def _route(self, request: rpc.QueryRouteRequest) -> rpc.QueryRouteResponse:
        answer = rpc.QueryRouteResponse(status=OK)
        for name in BROKERS:
            for number in range(4):
                queue = answer.message_queues.add(topic=request.topic, id=number, permission=pb.READ_WRITE)
                queue.broker.name = name
        return answer

    def _receive(self, request: rpc.ReceiveMessageRequest) -> list[Any]:
        name = request.message_queue.broker.name
        self.asked.append(name)
        if set(self.asked) == set(BROKERS):
            self.both_asked.set()
        if name not in self.at:
            return [self._dead[name].wait(), rpc.ReceiveMessageResponse(status=status(pb.INTERNAL_SERVER_ERROR))]
        answer = rpc.ReceiveMessageResponse()
        answer.message.topic.CopyFrom(request.message_queue.topic)
        answer.message.body = self.at.pop(name).encode()
        return [rpc.ReceiveMessageResponse(status=OK), answer]


@pytest.fixture
def brokers(server: ScriptedServer) -> TwoBrokers:
    return TwoBrokers(server)


@pytest.mark.parametrize("name", BROKERS)
async def test_a_message_is_found_at_whichever_broker_it_is(
    server: ScriptedServer, brokers: TwoBrokers, name: str
) -> None:
    brokers.at[name] = "here"
    async with SimpleConsumer(server.endpoints, "g", "t") as consumer:
        [message] = await consumer.receive(await_duration=60)
        assert message.text == "here"


async def test_each_broker_is_waited_at_by_one_poll(server: ScriptedServer, brokers: TwoBrokers) -> None:
    """Also after polls at one of them have ended."""
    async with SimpleConsumer(server.endpoints, "g", "t") as consumer:
        for number in range(3):
            brokers.at["broker-b"] = str(number)
            [message] = await consumer.receive(await_duration=60)
            assert message.text == str(number)
    assert brokers.asked.count("broker-a") <= 1


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_dead_broker_does_not_hide_the_other(
    server: ScriptedServer, brokers: TwoBrokers, is_cancelled: bool
) -> None:
    """The consumer raises its refusal when it waits at no other broker, also after a cancelled receive."""
    brokers.kill("broker-a")
    async with SimpleConsumer(server.endpoints, "g", "t") as consumer:
        receiving = asyncio.create_task(consumer.receive(await_duration=60))
        await brokers.both_asked.wait()
        assert not (await asyncio.wait([receiving], timeout=0.1))[0]
        if is_cancelled:
            receiving.cancel()
            receiving = asyncio.create_task(consumer.receive(await_duration=60))
        brokers.kill("broker-b")
        for again in (receiving, consumer.receive(await_duration=60), consumer.receive(await_duration=60)):
            with pytest.raises(PopError, match="INTERNAL_SERVER_ERROR"):
                await again
