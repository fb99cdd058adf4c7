"""What a member handed back outlives `kill -9`: it comes again, once."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from popclient import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, Message
from popclient.aio import Producer, QueuePushConsumer
from popproto.v1 import legacy_pb2
from popproto.v1.legacy_pb2_grpc import LegacyStub
from popproto.v2 import definition_pb2 as pb
from tests.support.scripted_server import until
from tests.support.server_process import served

COUNT = 20
ONE_SECOND = 1  # the delay level
PATIENCE_S = 30
FIRST = "CONSUME_FROM_FIRST_OFFSET"


class Member:
    """A queue push consumer that fails at whatever comes for the first time."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    async def __call__(self, messages: Any, context: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        self.seen += [(message.text, message.delivery_attempt) for message in messages]
        context.delay_level_when_next_consume = ONE_SECOND
        is_first = messages[0].delivery_attempt == 1
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if is_first else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def has(self, count: int) -> None:
        await until(lambda: len(self.seen) >= count, PATIENCE_S)
        assert len(self.seen) == count


@pytest.mark.timeout(360)
@pytest.mark.row("E9")
async def test_a_kill_neither_loses_nor_doubles_a_retry(database_url: str) -> None:
    async with served(database_url) as server:
        async with Producer(server.endpoint) as producer:
            await producer.send_many([Message("orders", str(number)) for number in range(COUNT)])
        failing = Member()
        async with QueuePushConsumer(server.endpoint, "billing", "orders", failing, consume_from=FIRST):
            await failing.has(COUNT)
        # Closing has handed everything back and committed it. A member whose leaving is not stored counts for a while.
        await _everybody_has_left(server.endpoint)
        first_failures = {text for text, attempt in failing.seen if attempt == 1}
        await server.kill()
        await server.start()
        later = Member()
        async with QueuePushConsumer(server.endpoint, "billing", "orders", later, consume_from=FIRST):
            await later.has(COUNT)
            await asyncio.sleep(0.2)
        assert first_failures == {str(number) for number in range(COUNT)}
        assert sorted(later.seen) == sorted((text, 2) for text in first_failures)


async def _everybody_has_left(endpoint: str) -> None:
    request = legacy_pb2.ListMembersRequest(group=pb.Resource(name="billing"))
    async with asyncio.timeout(PATIENCE_S), grpc.aio.insecure_channel(endpoint) as channel:
        stub = LegacyStub(channel)
        metadata = (("x-mq-client-id", "observer"),)
        while (await stub.ListMembers(request, metadata=metadata)).members:  # noqa: ASYNC110 - the server has no event
            await asyncio.sleep(0.01)
