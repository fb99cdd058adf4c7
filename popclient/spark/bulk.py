"""Many messages at once from a server that offers popmq.v1.Bulk: pulled by offsets, or held under an attempt id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import grpc

from popclient import _convert as convert
from popclient._session import Session
from popclient._transport import Link
from popclient.errors import Unreachable, check
from popclient.message import FilterExpression, MessageQueue
from popclient.spark.link import ServerLink
from popproto.v1 import bulk_pb2 as wire
from popproto.v2 import definition_pb2 as pb

BULK: Final = "bulk"  # the capability of a server that offers it
# What one receive may bring. The server counts bodies as they are stored, and sends them unpacked.
HELD_BYTES_MAX: Final = 1024 * 1024 * 1024
_LEAST_PATIENCE: Final = 0.001


class TooMuchHeld(RuntimeError):
    """What one receive holds is more than a process should have."""


class Chunk(NamedTuple):
    """A frame of a bulk pull: an Arrow IPC stream, empty in the first one.

    next_offset: everything before it is in this chunk, in an earlier one, or not wanted; None in a frame that says
    where the queue begins and ends: the first one, and a last one where what was next is not there.
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
    """What is stored in the queue from `offset` up to, not including, `end_offset`; each chunk when it is asked for.

    An answer that breaks off is asked for again from where it came to, for as long as the option requestTimeout says
    since it last came further. Raises a PopError.
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
                request.offset = frame.next_offset  # where an answer that breaks off goes on
                waited = 0.0
                yield Chunk(frame.chunk, frame.next_offset)
            else:
                waited += time.monotonic() - begun
                yield Chunk(b"", None, frame.min_offset, frame.max_offset)
    finally:
        link.run(answer.left)


class _Answer:
    """The frames of a pull, across the connections that it takes to get them."""

    def __init__(self, request: wire.PullBulkRequest, patience: float) -> None:
        self._request = request
        self._patience = patience
        self._call: Any = None
        self._session: Session | None = None  # that the call was made in

    async def next_frame(self, session: Session) -> wire.PullBulkResponse | None:
        """None: that was the last one."""
        if session is not self._session:
            self._leave()
            self._session = session

        async def attempt(link: Link, remaining: float) -> wire.PullBulkResponse | None:
            if self._call is None:
                # Without a deadline: the reader takes a chunk when it has dealt with the one before.
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
        """Whatever has not been read is not wanted any more."""
        self._leave()

    def _leave(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


class HeldMessages(NamedTuple):
    """What is held under an attempt id: Arrow IPC streams, and how many messages are in them."""

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
    """What is held under the attempt id, and nothing new; where nothing is, up to so many messages, held from now on.

    max_messages: up to 1,000; 0 takes nothing. Can be repeated. Raises a PopError, and TooMuchHeld.
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
            call = wire_link.bulk.ReceiveBulk(request, timeout=remaining, metadata=session.transport.headers())
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
            f"the receive {attempt_id} of topic {topic} brings more than {HELD_BYTES_MAX} bytes, for its bodies were"
            " packed; when its holds have ended, receive fewer messages at a time: lower maxMessagesPerTrigger"
        )


def renew(link: ServerLink, topic: str, attempt_id: str, invisible: timedelta) -> int:
    """Has the holds of the attempt last so long from now on; how many there are. Raises a PopError."""
    request = wire.RenewAttemptRequest(
        group=convert.resource(link.group, link.config.namespace),
        topic=convert.resource(topic, link.config.namespace),
        attempt_id=attempt_id,
    )
    request.invisible_duration.FromTimedelta(invisible)

    async def ask(session: Session) -> int:
        pick = _renew_attempt
        answer = await session.transport.unary(pick, request, link.config.request_timeout)
        check(answer.status)
        return int(answer.held)

    return link.ask(ask)


def ack(link: ServerLink, topic: str, attempt_id: str) -> int:
    """Has done everything that is held under the attempt id; how much there was. Can be repeated. Raises a PopError."""
    request = wire.AckAttemptRequest(
        group=convert.resource(link.group, link.config.namespace),
        topic=convert.resource(topic, link.config.namespace),
        attempt_id=attempt_id,
    )

    async def ask(session: Session) -> int:
        pick = _ack_attempt
        answer = await session.transport.unary(pick, request, link.config.request_timeout)
        check(answer.status)
        return int(answer.acked)

    return link.ask(ask)


def _renew_attempt(link: Link) -> Any:
    return link.bulk.RenewAttempt


def _ack_attempt(link: Link) -> Any:
    return link.bulk.AckAttempt
