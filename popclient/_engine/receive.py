"""One receive: a long poll, and the messages that the server has granted to a cancelled one.

Servers with the capability `receive-batch` answer it in one frame (ReceiveBatch); the others, and every RocketMQ 5
proxy, a frame per message (ReceiveMessage).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterable
from datetime import datetime, timedelta
from typing import Final

import grpc

from popclient._session import convert
from popclient._session.session import Session
from popclient._session.transport import Link, grpc_timeout
from popclient._version import log
from popclient.errors import PopError, UnexpectedAnswer, error_of
from popclient.message import FilterExpression, MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

RECEIVE_BATCH: Final = "receive-batch"
ONE_FRAME_MAX: Final = 128  # messages that such a server returns at once
BATCH_SIZE: Final = 32  # messages that other servers return at once
POLL_MARGIN: Final = 3.0  # seconds that the call may take beyond the long poll itself
# Servers poll for 5 s at least (requirement A12) and refuse a call whose deadline leaves less. A receive that waits
# less leaves its poll to the next receive.
SHORTEST_POLL: Final = 5.0
LEAST_PACE: Final = 1.0  # seconds; a server that answers empty at once must not make its clients spin (requirement A11)
# What the server has answered is there at once; an attempt that was granted nothing would wait a whole poll.
RECALL_PATIENCE: Final = 0.2


class Receive:
    """One receive, and the messages that it has brought.

    hold: how long the server holds what it grants. long_poll: seconds that it may wait for messages.
    repeats: whether a receive is repeated if its answer breaks and the server can repeat all of it. Otherwise the
        messages that came before are the answer: their holds are running.
    waits: False asks for what is there now; only for servers with `receive-batch`. Its answer may be read late, so the
        holds count from the request, and from the first one if it is repeated.
    """

    def __init__(
        self,
        session: Session,
        request: rpc.ReceiveMessageRequest,
        hold: timedelta,
        long_poll: float,
        *,
        repeats: bool,
        waits: bool = True,
    ) -> None:
        self.brought: list[MessageView] = []
        self._session = session
        self._request = request
        self._hold = hold
        self._long_poll = long_poll
        self._repeats = repeats
        self._waits = waits
        self._asked_at: datetime | None = None  # if it does not wait

    async def run(self) -> None:
        """Returns when the messages are here, or the long poll has ended empty; raises PopError."""
        patience = max(self._long_poll, SHORTEST_POLL) + POLL_MARGIN
        status = await self._session.transport.call(self._attempt, patience)
        if self.brought:
            return
        if status is None:
            raise UnexpectedAnswer("the server ended the receive without a status")
        if status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            raise error_of(status)

    async def recall(self, patience: float = RECALL_PATIENCE) -> None:
        """After `run` was cancelled: also brings the messages that the server had granted by then.

        The attempt is repeated once, for `patience` seconds at most: what was granted is held for this client, which
        can only give back what it knows of (requirement K9). A server that cannot repeat a receive is not asked.
        """
        if not self._session.is_popmq or patience <= 0:
            return
        granted: list[MessageView] = []
        self._request.long_polling_timeout.FromTimedelta(
            timedelta(0) if self._in_one_frame else timedelta(seconds=SHORTEST_POLL)
        )
        with contextlib.suppress(TimeoutError, PopError, grpc.aio.AioRpcError, grpc.aio.UsageError):
            async with asyncio.timeout(patience):
                link = await self._session.transport.link()
                await self._ask(link, SHORTEST_POLL + POLL_MARGIN, granted)
        self.brought = list({view.message_id: view for view in (*self.brought, *granted)}.values())

    async def _attempt(self, link: Link, remaining: float) -> pb.Status | None:
        timeout = max(remaining, SHORTEST_POLL + POLL_MARGIN)
        poll = timeout - POLL_MARGIN if self._waits else 0.0
        self._request.long_polling_timeout.FromTimedelta(timedelta(seconds=poll))
        try:
            return await self._ask(link, timeout, self.brought)
        except grpc.aio.AioRpcError as failure:
            if not self.brought:
                raise
            log.info("a receive broke after %d messages: %s", len(self.brought), failure.details())
            if self._repeats and self._session.is_popmq:
                self.brought.clear()
                raise
        return None

    @property
    def _in_one_frame(self) -> bool:
        return RECEIVE_BATCH in self._session.capabilities

    async def _ask(self, link: Link, timeout: float, brought: list[MessageView]) -> pb.Status | None:
        """One call. Adds the messages to `brought`, and returns the status of the answer."""
        headers = self._session.transport.headers()
        if self._in_one_frame:
            if not self._waits and self._asked_at is None:
                self._asked_at = convert.now()
            try:
                answer = await link.receiving.ReceiveBatch(
                    self._request, timeout=grpc_timeout(timeout), metadata=headers
                )
            except grpc.aio.AioRpcError as failure:
                # An older server may have taken the place of the one that was met.
                if failure.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
            else:
                until: datetime = (self._asked_at or convert.now()) + self._hold
                brought += [MessageView(convert.own(message), until) for message in answer.messages]
                return answer.status if answer.HasField("status") else None
        call = link.messaging.ReceiveMessage(self._request, timeout=grpc_timeout(timeout), metadata=headers)
        return await read_messages(call, self._hold, brought)


def receive_request(
    group: pb.Resource,
    queue: pb.MessageQueue,
    expression: FilterExpression,
    count: int,
    invisible: timedelta,
    *,
    auto_renew: bool,
) -> rpc.ReceiveMessageRequest:
    """A request for up to `count` messages, with a new attempt id."""
    request = rpc.ReceiveMessageRequest(
        group=group,
        message_queue=queue,
        filter_expression=convert.filter_expression(expression),
        batch_size=count,
        auto_renew=auto_renew,
        attempt_id=str(uuid.uuid4()),
    )
    request.invisible_duration.FromTimedelta(invisible)
    return request


async def read_messages(
    call: AsyncIterable[rpc.ReceiveMessageResponse], hold: timedelta, brought: list[MessageView]
) -> pb.Status | None:
    """Reads the answer of a receive to its end. Adds the messages to `brought`, and returns the status."""
    status = None
    async for frame in call:
        if frame.HasField("message"):
            until = brought[0].invisible_until if brought else convert.now() + hold
            brought.append(MessageView(frame.message, until))
        elif frame.HasField("status"):
            status = frame.status
    return status
