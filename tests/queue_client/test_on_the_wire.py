"""Progress and pulls as they reach a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from popclient import ClientConfig, MessageQueue
from popclient._progress.remote import RemoteOffsetStore
from popclient._progress.store import NO_OFFSET, OFFSET_ERROR, ReadOffsetType
from popclient._queues import pull as pull_call
from popclient._queues.pull import PullStatus, pull_extras, pull_status
from popclient._session.session import Session
from popclient.message import FilterExpression
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.queue_server import QueueServer

BOTH = ReadOffsetType.MEMORY_FIRST_THEN_STORE
STORE = ReadOffsetType.READ_FROM_STORE
T0, T1 = MessageQueue("t", 0), MessageQueue("t", 1)
VIA = {"admin,batch,legacy": ("FetchOffsets", "CommitOffsets"), "admin,batch": ("GetOffset", "UpdateOffset")}


class HeedingServer(QueueServer):
    """Keeps the extras of each pull."""

    def __init__(self) -> None:
        super().__init__()
        self.extras: list[legacy.PullExtras] = []

    async def PullMessage(  # noqa: N802
        self, request: rpc.PullMessageRequest, context: Any
    ) -> AsyncIterator[rpc.PullMessageResponse]:
        self.extras.append(legacy.PullExtras.FromString(dict(context.invocation_metadata())["popmq-pull-bin"]))
        async for frame in super().PullMessage(request, context):
            yield frame


@asynccontextmanager
async def session_with(server: QueueServer, request_timeout: float = 3.0) -> AsyncIterator[Session]:
    config = ClientConfig(endpoints=server.endpoints, namespace="ns", request_timeout=request_timeout)
    session = Session(config, pb.PULL_CONSUMER, "g", pb.Subscription)
    await session.start()
    try:
        yield session
    finally:
        await session.close(0)


@pytest.mark.row("B3")
async def test_a_pull_says_all_that_the_fields_pulls_say() -> None:
    async with HeedingServer() as server, session_with(server) as session:
        await server.fill(T0, ["a", "b"])
        hold = timedelta(seconds=15)
        pulled = await pull_call.pull(
            session,
            "g",
            T0,
            1,
            batch_size=32,
            expression=FilterExpression("*"),
            hold=hold,
            extras=pull_extras(
                hold=hold, commit_offset=1, resets=2, sub_version=1_700_000_000_000, post_subscription=True
            ),
        )
        assert pull_status(pulled.code, pulled.next_offset, 1) is PullStatus.FOUND
        assert [view.text for view in pulled.messages] == ["b"]
        (request,) = server.requests("PullMessage")
        assert (request.group.name, request.group.resource_namespace) == ("g", "ns")
        assert (request.message_queue.topic.name, request.message_queue.id) == ("t", 0)
        assert (request.offset, request.batch_size) == (1, 32)
        assert (request.filter_expression.type, request.filter_expression.expression) == (pb.TAG, "*")
        assert request.long_polling_timeout.ToTimedelta() == hold
        assert server.extras == [
            legacy.PullExtras(sys_flag=1 | 2 | 4, commit_offset=1, resets=2, sub_version=1_700_000_000_000)
        ]


@pytest.mark.row("H3")
@pytest.mark.parametrize("capabilities", VIA)
async def test_whoever_owns_the_queue_next_goes_on_right_there(capabilities: str) -> None:
    async with QueueServer(capabilities) as server:
        await server.fill(T0, map(str, range(103)))
        await server.fill(T1, map(str, range(8)))
        async with session_with(server) as here:
            store = RemoteOffsetStore.of(here, "g", lambda _: None)
            await store.load()
            assert await store.read_offset(T0, BOTH) == NO_OFFSET
            store.update_offset(T0, 103, increase_only=True)
            store.update_offset(T1, 7, increase_only=True)
            await store.persist_all([T0, T1])
        async with session_with(server) as there:
            store = RemoteOffsetStore.of(there, "g", lambda _: None)
            assert [await store.read_offset(mq, BOTH) for mq in (T0, T1)] == [103, 7]
        fetch, commit = VIA[capabilities]
        assert server.requests(fetch)
        assert len(server.requests(commit)) == (1 if commit == "CommitOffsets" else 2)


async def test_a_reset_reaches_who_is_online() -> None:
    told: list[MessageQueue] = []
    async with QueueServer() as server, session_with(server) as session:
        await server.fill(T0, map(str, range(20)))
        store = RemoteOffsetStore.of(session, "g", told.append)
        store.update_offset(T0, 15, increase_only=True)
        server.reset(T0, 3)
        await store.persist(T0)
        assert (told, server.progress[T0]) == ([T0], 3)
        assert (await store.read_offset(T0, STORE), store.resets(T0)) == (3, 1)


@pytest.mark.row("H4")
async def test_a_server_that_is_gone_is_not_one_without_progress() -> None:
    async with QueueServer() as server, session_with(server, request_timeout=0.2) as session:
        store = RemoteOffsetStore.of(session, "g", lambda _: None)
        assert await store.read_offset(T0, STORE) == NO_OFFSET
        await server.stop()
        assert await store.read_offset(T0, STORE) == OFFSET_ERROR
