"""Calls of popmq.v1.Bulk: pulls many messages by offset, or receives many under an attempt id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import grpc

from popclient._session import convert
from popclient._session.session import Session
from popclient._session.transport import Link, grpc_timeout
from popclient.errors import Unreachable, check
from popclient.message import FilterExpression, MessageQueue
from popclient.spark.link import ServerLink
from popproto.v1 import bulk_pb2 as wire
from popproto.v2 import definition_pb2 as pb

BULK: Final = "bulk"  # the capability of a server that offers popmq.v1.Bulk
# The limit for the answer of one receive. The server limits bodies as they are stored, but sends them decompressed.
HELD_BYTES_MAX: Final = 1024 * 1024 * 1024
_LEAST_PATIENCE: Final = 0.001


class TooMuchHeld(RuntimeError):
    """The messages of one receive are larger than HELD_BYTES_MAX."""


class Chunk(NamedTuple):
    """A frame of a bulk pull.

    arrow: an Arrow IPC stream; empty in the first frame. next_offset: all wanted messages before it are in this frame
    or an earlier one; None in a frame that has the first and the last offset of the queue instead. The first frame is
    one of these, and so is a last one after which the next message does not exist.
    """

    arrow: bytes
    next_offset: int | None
    min_offset: int = 0
    max_offset: int = 0


def pull(
    link: ServerLink,
    queue: MessageQueue,
    offset: int,
    end_offset: int,
    *,
    expression: FilterExpression,
    columns: Sequence[str],
) -> Iterator[Chunk]:
    """The messages of the queue from `offset` (included) to `end_offset` (excluded), frame by frame.

    If the connection breaks, the pull is repeated from the last offset that was read, until it has made no progress for
    the duration of the option requestTimeout. Raises a PopError.
    """
    request = wire.PullBulkRequest(
        group=convert.resource(link.group, link.config.namespace),
        topic=convert.resource(queue.topic, link.config.namespace),
        queue_id=queue.queue_id,
        offset=offset,
        end_offset=end_offset,
        filter_expression=convert.filter_expression(expression),
        columns=columns,
    )
    answer = _Answer(request, link.config.request_timeout)
    waited = 0.0
    try:
        while True:
            begun = time.monotonic()
            frame = link.ask(answer.next_frame, max(link.config.request_timeout - waited, _LEAST_PATIENCE))
            if frame is None:
                return
            if frame.chunk or frame.next_offset:
                request.offset = frame.next_offset  # a repeated pull continues here
                waited = 0.0
                yield Chunk(frame.chunk, frame.next_offset)
            else:
                waited += time.monotonic() - begun
                yield Chunk(b"", None, frame.min_offset, frame.max_offset)
    finally:
        link.run(answer.left)


class _Answer:
    """The frames of a pull; opens a new call if the session is a new one, or the call has failed."""

    def __init__(self, request: wire.PullBulkRequest, patience: float) -> None:
        self._request = request
        self._patience = patience
        self._call: Any = None
        self._session: Session | None = None  # of the call

    async def next_frame(self, session: Session) -> wire.PullBulkResponse | None:
        """The next frame; None after the last one."""
        if session is not self._session:
            self._leave()
            self._session = session

        async def attempt(link: Link, remaining: float) -> wire.PullBulkResponse | None:
            if self._call is None:
                # Without a deadline: the reader asks for a frame only when it has processed the one before.
                self._call = link.bulk.PullBulk(self._request, metadata=session.transport.headers())
            try:
                async with asyncio.timeout(remaining):
                    frame = await self._call.read()
                if frame is grpc.aio.EOF:
                    return None
                if frame.HasField("status") and frame.status.code != pb.ILLEGAL_OFFSET:
                    check(frame.status)
            except TimeoutError:
                self._leave()
                raise Unreachable(f"no answer from {session.transport.where} within {remaining:.1f} s") from None
            except BaseException:
                self._leave()
                raise
            answered: wire.PullBulkResponse = frame
            return answered

        return await session.transport.call(attempt, self._patience)

    async def left(self) -> None:
        """Cancels the call; frames that were not read are dropped."""
        self._leave()

    def _leave(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


class HeldMessages(NamedTuple):
    """The messages held under an attempt id: Arrow IPC streams, and the number of messages in them."""

    chunks: list[bytes]
    messages: int


def receive(
    link: ServerLink,
    topic: str,
    attempt_id: str,
    *,
    max_messages: int,
    invisible: timedelta,
    expression: FilterExpression,
    columns: Sequence[str],
) -> HeldMessages:
    """The messages held under the attempt id; if there are none, receives up to `max_messages` under it.

    max_messages: up to 1,000; with 0 it receives nothing new. May be repeated. Raises a PopError, and TooMuchHeld.
    """
    request = wire.ReceiveBulkRequest(
        group=convert.resource(link.group, link.config.namespace),
        topic=convert.resource(topic, link.config.namespace),
        attempt_id=attempt_id,
        max_messages=max_messages,
        filter_expression=convert.filter_expression(expression),
        columns=columns,
    )
    request.invisible_duration.FromTimedelta(invisible)

    async def ask(session: Session) -> HeldMessages:
        async def attempt(wire_link: Link, remaining: float) -> HeldMessages:
            chunks: list[bytes] = []
            messages = size = 0
            call = wire_link.bulk.ReceiveBulk(
                request, timeout=grpc_timeout(remaining), metadata=session.transport.headers()
            )
            try:
                async for frame in call:
                    if frame.HasField("status"):
                        check(frame.status)
                    if frame.chunk:
                        chunks.append(frame.chunk)
                        messages += frame.messages
                        size += len(frame.chunk)
                        _require_room(topic, attempt_id, size)
            finally:
                call.cancel()
            return HeldMessages(chunks, messages)

        return await session.transport.call(attempt, link.config.request_timeout)

    return link.ask(ask)


def _require_room(topic: str, attempt_id: str, size: int) -> None:
    if size > HELD_BYTES_MAX:
        raise TooMuchHeld(
            f"the receive {attempt_id} of topic {topic} has more than {HELD_BYTES_MAX} bytes, because its bodies were"
            " compressed; set a lower maxMessagesPerTrigger, and start again when its holds have ended"
        )


def renew(link: ServerLink, topic: str, attempt_id: str, invisible: timedelta) -> int:
    """Extends the holds of the attempt by `invisible` from now; returns their number. Raises a PopError."""
    request = _of_attempt(wire.RenewAttemptRequest, link, topic, attempt_id)
    request.invisible_duration.FromTimedelta(invisible)
    return int(_ask(link, lambda wire_link: wire_link.bulk.RenewAttempt, request).held)


def ack(link: ServerLink, topic: str, attempt_id: str) -> int:
    """Acks all messages held under the attempt id; returns their number. May be repeated. Raises a PopError."""
    request = _of_attempt(wire.AckAttemptRequest, link, topic, attempt_id)
    return int(_ask(link, lambda wire_link: wire_link.bulk.AckAttempt, request).acked)


def _of_attempt(kind: Callable[..., Any], link: ServerLink, topic: str, attempt_id: str) -> Any:
    namespace = link.config.namespace
    group, named = convert.resource(link.group, namespace), convert.resource(topic, namespace)
    return kind(group=group, topic=named, attempt_id=attempt_id)


def _ask(link: ServerLink, pick: Callable[[Link], Any], request: Any) -> Any:
    async def ask(session: Session) -> Any:
        answer = await session.transport.unary(pick, request, link.config.request_timeout)
        check(answer.status)
        return answer

    return link.ask(ask)
