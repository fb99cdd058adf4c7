"""One ReceiveMessage call: a long poll, and what the server has granted to one that was cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterable
from datetime import timedelta
from typing import Final

import grpc

from popclient._session import convert
from popclient._session.session import Session
from popclient._session.transport import Link
from popclient._version import log
from popclient.errors import PopError, UnexpectedAnswer, error_of
from popclient.message import FilterExpression, MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

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
    repeats: if the answer breaks, is it asked for again, where the server repeats all of it? Otherwise what came before
        it broke is the answer: its hold is running.
    """

    def __init__(
        self,
        session: Session,
        request: rpc.ReceiveMessageRequest,
        hold: timedelta,
        long_poll: float,
        *,
        repeats: bool,
    ) -> None:
        self.brought: list[MessageView] = []
        self._session = session
        self._request = request
        self._hold = hold
        self._long_poll = long_poll
        self._repeats = repeats

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
        """After `run` was cancelled: brings what the server has granted on the way, too.

        The attempt is repeated once, for `patience` seconds at most: what was granted is held for us, and to give it
        back one must know of it (requirement K9). A server that repeats nothing is not asked.
        """
        if not self._session.is_popmq or patience <= 0:
            return
        granted: list[MessageView] = []
        self._request.long_polling_timeout.FromTimedelta(timedelta(seconds=SHORTEST_POLL))
        with contextlib.suppress(TimeoutError, PopError, grpc.aio.AioRpcError, grpc.aio.UsageError):
            async with asyncio.timeout(patience):
                link = await self._session.transport.link()
                await read_messages(self._call(link, SHORTEST_POLL + POLL_MARGIN), self._hold, granted)
        self.brought = list({view.message_id: view for view in (*self.brought, *granted)}.values())

    async def _attempt(self, link: Link, remaining: float) -> pb.Status | None:
        timeout = max(remaining, SHORTEST_POLL + POLL_MARGIN)
        self._request.long_polling_timeout.FromTimedelta(timedelta(seconds=timeout - POLL_MARGIN))
        try:
            return await read_messages(self._call(link, timeout), self._hold, self.brought)
        except grpc.aio.AioRpcError as failure:
            if not self.brought:
                raise
            log.info("a receive broke after %d messages: %s", len(self.brought), failure.details())
            if self._repeats and self._session.is_popmq:
                self.brought.clear()
                raise
        return None

    def _call(self, link: Link, timeout: float) -> AsyncIterable[rpc.ReceiveMessageResponse]:
        headers = self._session.transport.headers()
        call: AsyncIterable[rpc.ReceiveMessageResponse] = link.messaging.ReceiveMessage(
            self._request, timeout=timeout, metadata=headers
        )
        return call


def receive_request(
    group: pb.Resource,
    queue: pb.MessageQueue,
    expression: FilterExpression,
    count: int,
    invisible: timedelta,
    *,
    auto_renew: bool,
) -> rpc.ReceiveMessageRequest:
    """A request for up to `count` messages, under an attempt id of its own."""
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
    """Reads the answer of a receive to its end, the messages into `brought`; returns its status."""
    status = None
    async for frame in call:
        if frame.HasField("message"):
            until = brought[0].invisible_until if brought else convert.now() + hold
            brought.append(MessageView(frame.message, until))
        elif frame.HasField("status"):
            status = frame.status
    return status
