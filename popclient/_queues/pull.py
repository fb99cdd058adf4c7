"""One pull: given a queue and an offset, it returns messages and the next offset.

Servers with the capability `pull-batch` answer it in one frame (PullBatch); the others, and every RocketMQ 5 proxy, a
frame per message (PullMessage). Nothing else differs.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from datetime import timedelta
from enum import IntFlag, StrEnum
from typing import Final, NamedTuple

import grpc

from popclient._queues.subscription import is_retry_topic
from popclient._queues.wire import PULL_BATCH, name_of, offered, offers, queue_of, resource_of
from popclient._session import convert
from popclient._session.session import Session
from popclient._session.transport import Link, grpc_timeout
from popclient.errors import UnexpectedAnswer, error_of
from popclient.message import FilterExpression, MessageQueue, MessageView
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc


class SysFlag(IntFlag):
    """Flags of a pull (requirement B4).

    COMMIT_OFFSET: it carries progress to commit. SUSPEND: the server may hold it until there are messages.
    SUBSCRIPTION: the filter is in the pull.
    """

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4


def pull_extras(
    *,
    hold: timedelta,
    commit_offset: int = 0,
    resets: int = 0,
    sub_version: int = 0,
    post_subscription: bool = False,
    generation: int = 0,
    max_bytes: int = 0,
) -> legacy.PullExtras:
    """The options of one pull; its sysFlag is computed from them.

    hold: how long the server may hold the pull; zero: it answers at once.
    commit_offset: progress to commit with the pull; 0 or less: none.
    resets: of the progress that `commit_offset` continues.
    sub_version: of the subscription of the pull, epoch milliseconds.
    post_subscription: whether the filter in the pull replaces the one in the client's settings.
    generation: of the topic that the offsets belong to; 0 if it is not known.
    max_bytes: of bodies in the answer, unless the first message is larger; 0 leaves it to the server.
    """
    sys_flag = SysFlag(0)
    sys_flag |= SysFlag.COMMIT_OFFSET if commit_offset > 0 else 0
    sys_flag |= SysFlag.SUSPEND if hold > timedelta(0) else 0
    sys_flag |= SysFlag.SUBSCRIPTION if post_subscription else 0
    return legacy.PullExtras(
        sys_flag=sys_flag,
        commit_offset=max(commit_offset, 0),
        resets=resets,
        sub_version=sub_version,
        generation=generation,
        max_bytes=max_bytes,
    )


class PullStatus(StrEnum):
    """FOUND: there are messages; the second check of their tags may refuse all of them.
    NO_NEW_MSG: the queue ends here. NO_MATCHED_MSG: the filter refused all messages before the next offset; they count
    as consumed. OFFSET_ILLEGAL: the offset is not in the queue; the next offset is the server's correction.
    """

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


def pull_status(code: int, next_offset: int, offset: int) -> PullStatus:
    """The meaning of the answer to a pull from `offset`: its status code and its next offset.

    Raises UnexpectedAnswer for another code, and for a next offset that no queue has: a guess would lose messages or
    repeat them for ever.
    """
    if code not in (pb.OK, pb.MESSAGE_NOT_FOUND, pb.ILLEGAL_OFFSET):
        raise UnexpectedAnswer(f"the pull from offset {offset} was answered {code}, which says nothing of the queue")
    if next_offset < 0:
        raise UnexpectedAnswer(f"the pull from offset {offset} is to go on from {next_offset}; it must be 0 or more")
    if code == pb.OK:
        return PullStatus.FOUND
    if code == pb.ILLEGAL_OFFSET:
        return PullStatus.OFFSET_ILLEGAL
    return PullStatus.NO_MATCHED_MSG if next_offset > offset else PullStatus.NO_NEW_MSG


def backwards(offset: int, next_offset: int, first_offset: int | None) -> str | None:
    """A sentence for the log if the next offset is before `offset`, which is an error of the server (requirement B11).

    first_offset: of the first message; None if there is none.
    """
    if next_offset >= offset and (first_offset is None or first_offset >= offset):
        return None
    return f"a pull from offset {offset} led back: next offset {next_offset}, first message's offset {first_offset}"


EXTRAS_HEADER: Final = "popmq-pull-bin"
PULL_MARGIN: Final = 3.0  # seconds that the answer may take in addition to the hold
CONNECTING: Final = 1.0  # if more seconds pass before a pull begins, its hold is shorter
RETRY_TOPIC: Final = "RETRY_TOPIC"  # the property of a retry with the topic that it comes from
_ANSWERS: Final = (pb.OK, pb.MESSAGE_NOT_FOUND, pb.ILLEGAL_OFFSET)


class Pulled(NamedTuple):
    """A pull's answer: OK, MESSAGE_NOT_FOUND or ILLEGAL_OFFSET, the messages, and the next offset.

    generation: of the topic; 0 if the server does not tell it.
    """

    code: int
    messages: list[MessageView]
    next_offset: int
    generation: int = 0


async def pull(
    session: Session,
    group: str,
    mq: MessageQueue,
    offset: int,
    *,
    batch_size: int,
    expression: FilterExpression | None,
    hold: timedelta,
    extras: legacy.PullExtras | None = None,
) -> Pulled:
    """Messages of the queue from `offset` on. If there are none, the server holds the call for up to `hold`.

    expression: None means the one in the client's settings. Messages of a retry topic have the topic that they come
    from. A pull changes nothing, so a broken one is repeated within its time.
    """
    request = legacy.PullBatchRequest(
        group=resource_of(session, group),
        queue=name_of(session, mq),
        offset=offset,
        batch_size=batch_size,
        filter_expression=None if expression is None else convert.filter_expression(expression),
        extras=extras,
    )
    in_one_piece = await offers(session, PULL_BATCH)

    async def attempt(link: Link, remaining: float) -> Pulled:
        request.long_polling_timeout.FromTimedelta(min(hold, timedelta(seconds=max(remaining - PULL_MARGIN, 0.0))))
        if in_one_piece:
            try:
                return await _pull_batch(session, link, request, mq, remaining)
            except grpc.aio.AioRpcError as failure:
                # An older server may have taken the place of the one that was met.
                if failure.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        return await _pull_message(session, link, request, mq, remaining)

    patience = CONNECTING + hold.total_seconds() + PULL_MARGIN
    return await offered(session, "PullMessage", session.transport.call(attempt, patience))


async def _pull_batch(
    session: Session, link: Link, request: legacy.PullBatchRequest, mq: MessageQueue, timeout: float
) -> Pulled:
    answer = await link.legacy.PullBatch(request, timeout=grpc_timeout(timeout), metadata=session.transport.headers())
    status = answer.status if answer.HasField("status") else None
    return _pulled(status, map(convert.own, answer.messages), answer.next_offset, mq, answer.generation)


async def _pull_message(
    session: Session, link: Link, asked: legacy.PullBatchRequest, mq: MessageQueue, timeout: float
) -> Pulled:
    request = rpc.PullMessageRequest(
        group=asked.group,
        message_queue=await queue_of(session, mq),
        offset=asked.offset,
        batch_size=asked.batch_size,
        filter_expression=asked.filter_expression if asked.HasField("filter_expression") else None,
        long_polling_timeout=asked.long_polling_timeout,
    )
    headers: tuple[tuple[str, str | bytes], ...] = session.transport.headers()
    if asked.HasField("extras"):
        headers = (*headers, (EXTRAS_HEADER, asked.extras.SerializeToString()))
    return await _read(link.messaging.PullMessage(request, timeout=grpc_timeout(timeout), metadata=headers), mq)


async def _read(frames: AsyncIterable[rpc.PullMessageResponse], mq: MessageQueue) -> Pulled:
    status: pb.Status | None = None
    next_offset: int | None = None
    messages: list[pb.Message] = []
    async for frame in frames:
        kind = frame.WhichOneof("content")
        if kind == "message":
            messages.append(frame.message)
        elif kind == "next_offset":
            next_offset = frame.next_offset
        elif kind == "status":
            status = frame.status
    return _pulled(status, messages, next_offset, mq)


def _pulled(
    status: pb.Status | None,
    messages: Iterable[pb.Message],
    next_offset: int | None,
    mq: MessageQueue,
    generation: int = 0,
) -> Pulled:
    if status is not None and status.code not in _ANSWERS:
        raise error_of(status)
    if status is None or next_offset is None:
        missing = "status" if status is None else "next offset"
        raise UnexpectedAnswer(f"the answer to a pull of queue {mq} has no {missing}")
    return Pulled(status.code, [_view(each, mq, generation) for each in messages], next_offset, generation)


def _view(wire: pb.Message, mq: MessageQueue, generation: int) -> MessageView:
    view = MessageView.unheld(wire)
    view._generation = generation
    if is_retry_topic(mq.topic):
        view.topic = wire.user_properties.get(RETRY_TOPIC, mq.topic)
    return view
