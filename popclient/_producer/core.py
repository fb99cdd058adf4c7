"""The core of `popclient.Producer` and `popclient.aio.Producer`, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from popclient._arguments import MILLISECOND, as_timedelta, require_function, require_text
from popclient._producer.transactions import RESOLUTIONS, Checks, Decide, HalfMessage
from popclient._session import convert
from popclient._session.batching import (
    Batcher,
    BatchLimits,
    BatchQueue,
    BatchSender,
    Call,
    CombinedReply,
    Reply,
    settle,
)
from popclient._session.convert import Outbound
from popclient._session.session import Session
from popclient._session.transport import Link, grpc_timeout
from popclient._tasks import Tasks
from popclient.config import ClientConfig
from popclient.errors import (
    Answered,
    ClientClosed,
    PopError,
    UnexpectedAnswer,
    Unreachable,
    UnsupportedByServer,
    check,
    error_of,
    for_caller,
)
from popclient.listening import TransactionResolution
from popclient.message import Message
from popclient.receipts import SendReceipt
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

Answer = TypeVar("Answer", bound=Answered)
MESSAGES_PER_REQUEST: Final = 128
BODIES_PER_REQUEST: Final = 4 * 1024 * 1024  # bytes; a single message may be larger
REQUESTS_AT_ONCE: Final = 4
# Without the capability "batch" every message has a request of its own, so more of them are needed.
SINGLE_REQUESTS_AT_ONCE: Final = 64
IDEMPOTENCY: Final = "idempotency"  # the capability of a server that stores one message of a key


def as_messages(given: Iterable[Message]) -> list[Message]:
    """The argument of `send_many`. Raises TypeError for anything else, such as a body."""
    messages = [given] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"send_many takes Messages, not {repr(message)[:100]}; use Message(topic, body)")
    return messages


def one_message(given: Message) -> Message:
    """The argument of `transaction`. Raises TypeError for anything else, such as a topic."""
    if not isinstance(given, Message):
        raise TypeError(f"transaction takes a Message, not {repr(given)[:100]}; use Message(topic, body)")
    return given


def names_of_topics(given: str | Iterable[str]) -> set[str]:
    """Raises TypeError, or ValueError, for what is no name."""
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise TypeError(f"topics is {given!r}; give the name of a topic, or several")
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        require_text("a topic", name)
    return set(names)


class ProducerCore:
    """Looks topics up at their first message, and sends; see `submit`."""

    def __init__(
        self, config: ClientConfig, topics: Iterable[str], decide: Decide | None, checker_timeout: float | timedelta
    ) -> None:
        require_function("checker", decide)
        self.config = config
        self._topics = names_of_topics(topics)
        self.session = Session(config, pb.PRODUCER, None, lambda: convert.publishing(self._topics, config.namespace))
        self._checks = Checks(
            self._end_transaction, decide, as_timedelta("checker_timeout", checker_timeout, MILLISECOND).total_seconds()
        )
        self.session.handlers["recover_orphaned_transaction_command"] = self._checks.asked
        self._sender = BatchSender(self.session, self._exchange)
        self._batcher: Batcher[Outbound] = Batcher(self._new_queue)
        self._opening: dict[str, list[Call[Outbound]]] = {}
        self._tasks = Tasks()
        self._closing = False

    async def start(self) -> None:
        """Opens the session and looks the known topics up; raises NotFound, Unreachable and so on."""
        for topic in sorted(self._topics):
            await self.session.route(topic)
        await self.session.start()

    def submit(self, message: Outbound, reply: Reply) -> None:
        """Sends it; the reply gets a SendReceipt or a PopError."""
        call = Call(message, message.body_size, reply)
        if self._closing:
            reply.set_result(ClientClosed())
        elif self.session.has_topic(message.topic):
            self._hand_over(call)
        elif (waiting := self._opening.get(message.topic)) is not None:
            waiting.append(call)
        else:
            self._opening[message.topic] = [call]
            self._tasks.spawn(self._open(message.topic), lambda failure: self._not_opened(message.topic, failure))

    def submit_all(self, messages: Sequence[Outbound], reply: Reply) -> None:
        """Sends them; the reply gets the list of outcomes."""
        combined = CombinedReply(len(messages), reply)
        for index, message in enumerate(messages):
            self.submit(message, combined.part(index))

    async def _open(self, topic: str) -> None:
        """Looks the topic up, then submits the messages that have waited for it, in order."""
        self._topics.add(topic)
        await self.session.route(topic)
        for call in self._opening.pop(topic):
            self._hand_over(call)

    def _hand_over(self, call: Call[Outbound]) -> None:
        """To the queue of its destination, unless the server would ignore its idempotency key."""
        if call.item.has_key and IDEMPOTENCY not in self.session.capabilities:
            settle([call], [self._no_keys()])
        else:
            self._batcher.submit(self._destination(call.item), call)

    def _no_keys(self) -> PopError:
        where = self.session.transport.where
        if not self.session.settings.client_type:
            return Unreachable(f"the server at {where} has not said yet whether it heeds idempotency keys; send again")
        return UnsupportedByServer(
            f"the server at {where} heeds no idempotency key: it is no PopMQ server, or runs with"
            " --idempotency-window 0s; leave the key out, or send to one that does"
        )

    def _not_opened(self, topic: str, failure: BaseException) -> None:
        self._topics.discard(topic)
        waiting = self._opening.pop(topic, [])
        settle(waiting, [for_caller(failure) for _ in waiting])

    # ---- Taking back, deciding ----

    async def recall(self, topic: str, handle: str | SendReceipt) -> str:
        """Takes a delayed message back; returns its id."""
        recall_handle = handle.recall_handle if isinstance(handle, SendReceipt) else handle
        if not recall_handle:
            raise ValueError("there is no recall handle; only the receipt of a delayed message has one")
        request = rpc.RecallMessageRequest(topic=self._resource(topic), recall_handle=recall_handle)
        answer = await self._ask(lambda link: link.messaging.RecallMessage, request)
        return answer.message_id

    def half(self, message: Message, check_after: float | timedelta | None) -> HalfMessage:
        """A transaction that begins with this message."""
        after = None if check_after is None else as_timedelta("check_after", check_after)
        half = convert.half(message, self.config.namespace, after)
        return HalfMessage(half, self.submit, self._end_transaction)

    async def _end_transaction(
        self,
        topic: str,
        message_id: str,
        transaction_id: str,
        resolution: TransactionResolution,
        source: pb.TransactionSource.ValueType,
    ) -> None:
        """Tells the server, as often as `max_attempts` allows: a decision that is repeated does no harm."""
        request = rpc.EndTransactionRequest(
            topic=self._resource(topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=RESOLUTIONS[resolution],
            source=source,
        )
        await self._ask(lambda link: link.messaging.EndTransaction, request)

    def _resource(self, topic: str) -> pb.Resource:
        return convert.resource(topic, self.config.namespace)

    async def _ask(self, pick: Callable[[Link], Callable[..., Awaitable[Answer]]], request: Any) -> Answer:
        """A call that may be repeated, tried as often as a send."""
        self.session.require_open()
        for attempt in itertools.count(1):
            try:
                answer = await self.session.transport.unary(pick, request, self.config.request_timeout)
                check(answer.status)
            except PopError as failure:
                if not failure.retryable or attempt >= self.config.max_attempts:
                    raise
                await asyncio.sleep(convert.send_backoff(self.session.settings, attempt))
            else:
                return answer
        raise AssertionError("unreachable")

    # ---- Batcher ----

    @property
    def batches(self) -> bool:
        """Does the server take many messages in one request?"""
        return "batch" in self.session.capabilities

    def _destination(self, message: Outbound) -> tuple[str, int, str]:
        """Without batches each message group has a queue of its own: one request at a time would delay the others."""
        return message.topic, message.kind, "" if self.batches else message.message_group

    def _new_queue(self, destination: tuple[str, int, str]) -> BatchQueue[Outbound]:
        if destination[1] in (pb.FIFO, pb.LITE):
            return BatchQueue(self._sender.send_in_order, lambda: self._limits()._replace(in_flight=1))
        return BatchQueue(self._sender.send, self._limits)

    def _limits(self) -> BatchLimits:
        if self.batches:
            return BatchLimits(MESSAGES_PER_REQUEST, BODIES_PER_REQUEST, REQUESTS_AT_ONCE)
        return BatchLimits(1, BODIES_PER_REQUEST, SINGLE_REQUESTS_AT_ONCE)

    async def _exchange(self, messages: Sequence[Outbound]) -> Sequence[Any]:
        request = convert.send_request(messages)

        async def attempt(link: Link, remaining: float) -> rpc.SendMessageResponse:
            return await link.send_message(
                request, timeout=grpc_timeout(remaining), metadata=self.session.transport.headers()
            )

        answer = await self.session.transport.call(attempt, self.config.request_timeout)
        if len(answer.entries) == len(messages):
            return [convert.send_outcome(entry) for entry in answer.entries]
        if answer.status.code != pb.OK:
            raise error_of(answer.status)
        raise UnexpectedAnswer(f"{len(answer.entries)} results for {len(messages)} messages")

    # ---- The end ----

    async def close(self) -> None:
        """Sends the waiting messages and says goodbye, within `close_timeout`."""
        if self._closing:
            return
        self._closing = True
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.config.close_timeout
        patience = 0.0  # an interrupted close does not say goodbye
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._flush()
            patience = deadline - clock()
        finally:
            self._tasks.cancel()
            self._batcher.abandon()
            self._sender.abandon()
            self._checks.abandon()
            await self.session.close(patience)

    async def _flush(self) -> None:
        await self._tasks.ended()
        await self._batcher.flush()
        await self._sender.flush()
        await self._checks.flush()
