"""Each call of queue granularity but the pull: what it puts on the wire, and what it makes of the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from popclient import BadRequest, MessageQueue, PopError
from popclient._queues import calls
from popclient._queues.calls import Committed, GroupMember, QueueEnd, QueueProgress
from popclient._session.session import Session
from popclient.config import ClientConfig
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from tests.support.queue_server import QueueServer
from tests.support.scripted_server import OK, status

MQ = MessageQueue("flights", 1)
OTHER = MessageQueue("flights", 2)


@pytest.fixture
async def session(server: QueueServer) -> AsyncIterator[Session]:
    settings = pb.Subscription(group=pb.Resource(name="g"))
    session = Session(ClientConfig(server.endpoints, namespace="airline"), pb.PULL_CONSUMER, "g", lambda: settings)
    yield session
    await session.close(0)


async def test_the_offsets_of_a_queue(server: QueueServer, session: Session) -> None:
    await server.fill(MQ, ["0", "1", "2"])
    server.trim(MQ, 1)
    assert await calls.query_offset(session, MQ, QueueEnd.BEGINNING) == 1
    assert await calls.query_offset(session, MQ, QueueEnd.END) == 3
    moment = datetime(2013, 1, 1, 5, 15, 0, 250, tzinfo=UTC)
    await calls.query_offset(session, MQ, moment)
    request = server.requests("QueryOffset")[-1]
    assert request.query_offset_policy == pb.TIMESTAMP
    assert request.timestamp.ToDatetime(UTC) == moment


async def test_progress_of_several_queues_is_one_call(server: QueueServer, session: Session) -> None:
    await server.fill(MQ, ["0", "1", "2"])
    server.reset(MQ, 1)
    assert await calls.fetch_offsets(session, "g", [OTHER, MQ]) == {OTHER: QueueProgress(-1), MQ: QueueProgress(1, 1)}
    committed = await calls.commit_offsets(session, "g", {MQ: QueueProgress(2, 0), OTHER: QueueProgress(0)})
    assert committed[OTHER] == Committed(QueueProgress(0), None)
    assert committed[MQ].stored == QueueProgress(1, 1)
    assert isinstance(committed[MQ].refusal, BadRequest)
    assert (len(server.requests("FetchOffsets")), len(server.requests("CommitOffsets"))) == (1, 1)


async def test_members(server: QueueServer, session: Session) -> None:
    joined = datetime(2013, 1, 1, tzinfo=UTC)
    answer = legacy.ListMembersResponse(status=OK)
    member = answer.members.add(client_id="172.18.120.141@21908", model="CLUSTERING")
    member.joined_at.FromDatetime(joined)
    member.subscriptions.add(topic=pb.Resource(name="flights"))
    server.answers["ListMembers"] = lambda _: answer
    assert await calls.list_members(session, "g") == [
        GroupMember("172.18.120.141@21908", "CLUSTERING", frozenset({"flights"}), joined)
    ]


async def test_locks(server: QueueServer, session: Session) -> None:
    locked = await calls.lock_queues(session, "g", [MQ, OTHER])
    assert (locked.queues, locked.lapses_after) == ({MQ, OTHER}, timedelta(seconds=60))
    await calls.unlock_queues(session, "g", [OTHER])
    [request] = server.requests("UnlockQueues")
    assert [(name.topic.name, name.topic.resource_namespace, name.queue_id) for name in request.queues] == [
        ("flights", "airline", 2)
    ]


@pytest.mark.parametrize(("level", "most", "is_dead"), [(0, None, False), (3, 16, False), (-1, -1, True)])
async def test_handing_back(server: QueueServer, session: Session, level: int, most: int | None, is_dead: bool) -> None:
    assert await calls.send_back(session, "g", MQ, 7, level, most) is is_dead
    [request] = server.requests("SendBack")
    assert (request.queue.queue_id, request.offset, request.delay_level) == (1, 7, level)
    assert (request.max_reconsume_times if request.HasField("max_reconsume_times") else None) == most


async def test_a_refusal_is_raised_as_it_is(server: QueueServer, session: Session) -> None:
    server.answers["LockQueues"] = lambda _: legacy.LockQueuesResponse(
        status=status(pb.BAD_REQUEST, "consumer group 'g' consumes in mode POP")
    )
    with pytest.raises(PopError, match="in mode POP"):
        await calls.lock_queues(session, "g", [MQ])
