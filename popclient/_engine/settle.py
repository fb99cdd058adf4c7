"""What consumers do with the messages that they hold: ack, change the hold, give back, give up.

Acks share requests (see `_session.batching`); every other call names one message.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar

from popclient._session import convert
from popclient._session.batching import Batcher, BatchLimits, BatchQueue, BatchSender, Call, Reply
from popclient._session.session import Session
from popclient._session.transport import Link
from popclient._version import log
from popclient.errors import Answered, PopError, UnexpectedAnswer, check, error_of
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

Answer = TypeVar("Answer", bound=Answered)
ENTRIES_PER_ACK: Final = 512
ACK_REQUESTS_AT_ONCE: Final = 4
CHANGES_AT_ONCE: Final = 64
REASON_HEADER: Final = "popmq-reason-bin"
REASON_LENGTH_MAX: Final = 256  # the server cuts longer ones


class _Ack(NamedTuple):
    """What is sent of an ack. PopMQ needs no lite topic for it, RocketMQ does."""

    topic: str
    message_id: str
    receipt_handle: str
    lite_topic: str | None


class Settling:
    """Settles messages for one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = convert.resource(group, session.config.namespace)
        self._sender = BatchSender(session, self._exchange_acks)
        self._acks: Batcher[_Ack] = Batcher(self._new_ack_queue)

    # ---- Acks ----

    def submit_ack(self, view: MessageView, reply: Reply) -> None:
        """Acks it; the reply gets None or a PopError."""
        ack = _Ack(view.topic, view.message_id, view.receipt_handle, view.lite_topic)
        self._acks.submit(view.topic, Call(ack, 0, reply))

    def _new_ack_queue(self, _topic: str) -> BatchQueue[_Ack]:
        return BatchQueue(self._sender.send, lambda: BatchLimits(ENTRIES_PER_ACK, 1, ACK_REQUESTS_AT_ONCE))

    async def _exchange_acks(self, entries: Sequence[_Ack]) -> Sequence[Any]:
        request = rpc.AckMessageRequest(group=self._group, topic=self._resource(entries[0].topic))
        for each in entries:
            request.entries.add(
                message_id=each.message_id, receipt_handle=each.receipt_handle, lite_topic=each.lite_topic
            )
        answer = await self._session.transport.unary(
            lambda link: link.messaging.AckMessage, request, self._session.config.request_timeout
        )
        if answer.entries and all(entry.receipt_handle for entry in answer.entries):
            return _by_handle([each.receipt_handle for each in entries], answer.entries)
        if len(answer.entries) == len(entries):
            return [_ack_outcome(entry) for entry in answer.entries]
        if answer.status.code == pb.OK:
            return [None] * len(entries)
        raise error_of(answer.status)

    # ---- One by one ----

    async def change_invisible_duration(
        self, view: MessageView, duration: timedelta, *, suspend: bool | None = None, reason: str = ""
    ) -> None:
        """Restarts the hold; the view gets the new handle, or keeps the old one when this fails.

        reason: why the attempt failed, if it did.
        """
        self._session.require_open()
        request = rpc.ChangeInvisibleDurationRequest(**self._names(view), suspend=suspend)
        request.invisible_duration.FromTimedelta(duration)
        asked_at: datetime = convert.now()
        answer = await self._ask(lambda link: link.messaging.ChangeInvisibleDuration, request, reason)
        view._renew_hold(answer.receipt_handle or view.receipt_handle, asked_at + duration)

    async def forward_to_dead_letter_queue(self, view: MessageView, reason: str = "") -> None:
        self._session.require_open()
        request = rpc.ForwardMessageToDeadLetterQueueRequest(
            **self._names(view),
            delivery_attempt=view.delivery_attempt,
            max_delivery_attempts=self._session.settings.backoff_policy.max_attempts,
        )
        await self._ask(lambda link: link.messaging.ForwardMessageToDeadLetterQueue, request, reason)

    async def give_back(self, views: Sequence[MessageView]) -> None:
        """Makes them Ready at once without burning an attempt; what fails comes back when its hold ends."""
        waiting = iter(views)

        async def work() -> None:
            for view in waiting:  # all workers share it
                try:
                    await self.give_back_one(view)
                except PopError as failure:
                    log.debug("%s was not given back: %s", view, failure)

        await asyncio.gather(*(work() for _ in range(min(len(views), CHANGES_AT_ONCE))))

    async def give_back_one(self, view: MessageView) -> None:
        await self.change_invisible_duration(view, timedelta(0), suspend=True)

    def _names(self, view: MessageView) -> dict[str, Any]:
        """The fields of a request that say which message of which group it is about."""
        return {
            "group": self._group,
            "topic": self._resource(view.topic),
            "receipt_handle": view.receipt_handle,
            "message_id": view.message_id,
            "lite_topic": view.lite_topic,
        }

    async def _ask(self, pick: Callable[[Link], Callable[..., Awaitable[Answer]]], request: Any, reason: str) -> Answer:
        """The reason goes in a header of PopMQ's: RocketMQ's requests have no field for it."""
        header: Sequence[tuple[str, bytes]] = ()
        if reason and self._session.is_popmq:
            header = ((REASON_HEADER, reason[:REASON_LENGTH_MAX].encode(errors="replace")),)
        timeout = self._session.config.request_timeout
        answer = await self._session.transport.unary(pick, request, timeout, header)
        check(answer.status)
        return answer

    def _resource(self, topic: str) -> pb.Resource:
        return convert.resource(topic, self._session.config.namespace)

    # ---- The end ----

    async def flush(self) -> None:
        """Returns when every ack submitted so far has its outcome."""
        await self._acks.flush()
        await self._sender.flush()

    def abandon(self) -> None:
        self._acks.abandon()
        self._sender.abandon()


def _by_handle(handles: Sequence[str], entries: Sequence[rpc.AckMessageResultEntry]) -> list[PopError | None]:
    """The outcome of each handle; the server may answer in any order.

    If a handle is acked twice in one request, each has its own answer, or both have the last one.
    """
    answers: defaultdict[str, deque[PopError | None]] = defaultdict(deque)
    for entry in entries:
        answers[entry.receipt_handle].append(_ack_outcome(entry))
    return [_next_of(answers[handle]) for handle in handles]


def _next_of(answers: deque[PopError | None]) -> PopError | None:
    if not answers:
        return UnexpectedAnswer("the server did not say what became of this ack")
    return answers.popleft() if len(answers) > 1 else answers[0]


def _ack_outcome(entry: rpc.AckMessageResultEntry) -> PopError | None:
    return None if entry.status.code == pb.OK else error_of(entry.status)
