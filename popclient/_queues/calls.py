"""The calls of queue granularity, one function each: queues and offsets in, queues and offsets out.

They raise a PopError; UnsupportedByServer where the server does not offer the call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

from popclient._arguments import require_whole
from popclient._queues.wire import call, call_legacy, has_legacy, name_of, names_of, queue_of, resource_of
from popclient._session.session import Session
from popclient.errors import BadRequest, NotFound, PopError, error_of
from popclient.message import MessageQueue, MessageView
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

DELAY_LEVEL_MAX: Final = 18


class QueueProgress(NamedTuple):
    """A group's progress in a queue.

    offset: the next one to consume; -1 if there is no progress. resets: how often an operator has moved it.
    generation: of the topic that the queue belongs to (`generations`).
    """

    offset: int
    resets: int = 0
    generation: int = 0


class Committed(NamedTuple):
    """The result of a commit.

    stored: the progress as it is now; its offset is -1 if a refusal does not tell it. refusal: None if it was stored.
    """

    stored: QueueProgress
    refusal: PopError | None


class GroupMember(NamedTuple):
    """A consumer that shares a group's queues with others. model: CLUSTERING or BROADCASTING."""

    client_id: str
    model: str
    topics: frozenset[str]
    joined_at: datetime


class Locked(NamedTuple):
    """The queues of a request that the caller holds now, and for how long without a renewal."""

    queues: frozenset[MessageQueue]
    lapses_after: timedelta


class QueueEnd(Enum):
    """An end of a queue. END is where the next message will be."""

    BEGINNING = pb.BEGINNING
    END = pb.END


# ---- Offsets ----


async def fetch_offsets(
    session: Session, group: str, queues: Collection[MessageQueue]
) -> dict[MessageQueue, QueueProgress]:
    """The group's progress in each of the queues."""
    if not await has_legacy(session):
        return {mq: QueueProgress(await _get_offset(session, group, mq)) for mq in queues}
    request = legacy.FetchOffsetsRequest(group=resource_of(session, group), queues=names_of(session, queues))
    answer = await call(session, "FetchOffsets", lambda link: link.legacy.FetchOffsets, request)
    return {mq: _progress(each) for mq, each in zip(queues, answer.offsets, strict=True)}


async def commit_offsets(
    session: Session, group: str, offsets: Mapping[MessageQueue, QueueProgress], *, begin: bool = False
) -> dict[MessageQueue, Committed]:
    """Moves the group's progress forward. An offset before the stored one changes nothing and is not refused.

    With `begin` it also changes nothing if there is progress. A commit with an older count of `resets`, or with an
    earlier generation of the topic, is refused. Servers that do not tell these accept every commit.
    """
    if not await has_legacy(session):
        return {mq: await _update_offset(session, group, mq, each) for mq, each in offsets.items()}
    entries = [
        legacy.QueueOffset(queue=name_of(session, mq, each.generation), offset=each.offset, resets=each.resets)
        for mq, each in offsets.items()
    ]
    request = legacy.CommitOffsetsRequest(group=resource_of(session, group), offsets=entries, begin=begin)
    answer = await call(
        session,
        "CommitOffsets",
        lambda link: link.legacy.CommitOffsets,
        request,
        has_results=lambda answer: len(answer.results) == len(entries),
    )
    return {mq: _committed(result) for mq, result in zip(offsets, answer.results, strict=True)}


async def query_offset(session: Session, mq: MessageQueue, where: QueueEnd | datetime) -> int:
    """An end of the queue, or the offset of the first message stored at an (aware) time or later."""
    request = rpc.QueryOffsetRequest(message_queue=await queue_of(session, mq))
    if isinstance(where, QueueEnd):
        request.query_offset_policy = where.value
    else:
        request.query_offset_policy = pb.TIMESTAMP
        request.timestamp.FromDatetime(where)
    return (await call(session, "QueryOffset", lambda link: link.messaging.QueryOffset, request)).offset


async def _get_offset(session: Session, group: str, mq: MessageQueue) -> int:
    request = rpc.GetOffsetRequest(group=resource_of(session, group), message_queue=await queue_of(session, mq))
    try:
        return (await call(session, "GetOffset", lambda link: link.messaging.GetOffset, request)).offset
    except NotFound as failure:
        if failure.code != pb.OFFSET_NOT_FOUND:
            raise
        return -1


async def _update_offset(session: Session, group: str, mq: MessageQueue, progress: QueueProgress) -> Committed:
    queue = await queue_of(session, mq)
    request = rpc.UpdateOffsetRequest(group=resource_of(session, group), message_queue=queue, offset=progress.offset)
    try:
        await call(session, "UpdateOffset", lambda link: link.messaging.UpdateOffset, request)
    except BadRequest as refusal:
        return Committed(QueueProgress(-1), refusal)
    return Committed(progress, None)


def _progress(wire: legacy.QueueOffset) -> QueueProgress:
    return QueueProgress(wire.offset, wire.resets, wire.queue.generation)


def _committed(result: legacy.CommitOffsetResult) -> Committed:
    refusal = None if result.status.code == pb.OK else error_of(result.status)
    return Committed(_progress(result.stored), refusal)


# ---- Members and locks ----


async def list_members(session: Session, group: str) -> list[GroupMember]:
    """The group's members, by client id. All servers give the same answer."""
    request = legacy.ListMembersRequest(group=resource_of(session, group))
    answer = await call_legacy(session, "ListMembers", lambda link: link.legacy.ListMembers, request)
    return [
        GroupMember(
            each.client_id,
            each.model,
            frozenset(entry.topic.name for entry in each.subscriptions),
            each.joined_at.ToDatetime(UTC),
        )
        for each in answer.members
    ]


async def lock_queues(session: Session, group: str, queues: Collection[MessageQueue]) -> Locked:
    """Takes or renews the locks of queues. The answer leaves out queues that others have locked."""
    request = legacy.LockQueuesRequest(group=resource_of(session, group), queues=names_of(session, queues))
    answer = await call_legacy(session, "LockQueues", lambda link: link.legacy.LockQueues, request)
    held = frozenset(MessageQueue(name.topic.name, name.queue_id) for name in answer.locked)
    return Locked(held, answer.lapses_after.ToTimedelta())


async def unlock_queues(session: Session, group: str, queues: Collection[MessageQueue]) -> None:
    """Gives the locks of queues up. Locks of others do not change."""
    request = legacy.UnlockQueuesRequest(group=resource_of(session, group), queues=names_of(session, queues))
    await call_legacy(session, "UnlockQueues", lambda link: link.legacy.UnlockQueues, request)


# ---- A message that failed ----


async def send_back(
    session: Session,
    group: str,
    mq: MessageQueue,
    offset: int,
    delay_level: int,
    max_reconsume_times: int | None,
    generation: int = 0,
) -> bool:
    """Hands a message back for a later delivery. Returns whether it became a dead letter instead.

    mq, offset, generation: as it was pulled. delay_level: 0 by the group's ladder, 1 to 18 that level, negative a dead
    letter. max_reconsume_times: None leaves it to the group.
    """
    request = legacy.SendBackRequest(
        group=resource_of(session, group),
        queue=name_of(session, mq, generation),
        offset=offset,
        delay_level=delay_level,
        max_reconsume_times=max_reconsume_times,
    )
    answer = await call_legacy(session, "SendBack", lambda link: link.legacy.SendBack, request)
    return answer.is_dead_letter


async def send_message_back(
    session: Session, group: str, message: MessageView, delay_level: int, max_reconsume_times: int | None
) -> bool:
    """The same with a pulled message."""
    if not isinstance(message, MessageView):
        raise TypeError(f"message is {message!r}; hand back a MessageView that was pulled")
    require_whole("delay_level", delay_level, -(2**31), DELAY_LEVEL_MAX)
    mq = MessageQueue(message._wire.topic.name, message.queue_id)  # for a retry, that of the retry topic
    return await send_back(
        session, group, mq, message.queue_offset, delay_level, max_reconsume_times, message._generation
    )
