"""The asyncio producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Self, overload

from popclient._arguments import not_copied
from popclient._loop import Here
from popclient._producer.core import ProducerCore, as_messages, one_message
from popclient._producer.transactions import HalfMessage
from popclient._session.batching import unwrap
from popclient._session.convert import outbound
from popclient._tracing import carrying, sending
from popclient.aio.base import BaseClient
from popclient.aio.callbacks import checker_of
from popclient.config import ClientConfig
from popclient.listening import AsyncChecker, TransactionResolution
from popclient.message import Message, as_message
from popclient.receipts import SendReceipt, SendResults


# sync: sends of many tasks => sends of many threads
# sync: Belongs to ... or not. => Safe in threads.
# sync: a coroutine function, called with => called in a thread of its own with
class Producer(BaseClient[ProducerCore]):
    """Sends messages. The sends of many tasks share requests, and each has its own outcome.

    Belongs to the event loop of its first use. Cancelling one `send` does not affect others; the server may have stored
    its message or not.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    topics: looked up by `start` or on entering `with`; others at their first message.
    checker: a coroutine function, called with a half message of one of the topics without a decision, perhaps another
        producer's; returns a TransactionResolution: what became of the work behind the message.
    checker_timeout: seconds or a timedelta that one answer may take; a later one is dropped, and the server asks again.
    on_disconnect, on_reconnect: see ClientConfig.

    >>> async with Producer("127.0.0.1:8081") as producer:      # doctest: +SKIP
    ...     await producer.send("flights", b"...", tag="UA")
    SendReceipt(message_id='01…', offset=0, transaction_id='', recall_handle='', queue_id=0, delivery_timestamp=None)
    """

    __module__ = "popclient.aio"

    def __init__(
        self,
        endpoints: str | ClientConfig | None = None,
        topics: str | Iterable[str] = (),
        *,
        checker: AsyncChecker | None = None,
        checker_timeout: float | timedelta = 15,
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._bridge = Here()
        self._core = ProducerCore(self._config, topics, checker_of(checker), checker_timeout)
        self._bridge.close_at_exit(self._core)

    async def start(self) -> None:
        """Opens the session and looks `topics` up; raises NotFound, Unreachable and so on. Else the first send does."""
        await self._bridge.run(self._core.start)

    @overload
    async def send(self, message: Message, /) -> SendReceipt: ...
    @overload
    async def send(
        self,
        topic: str,
        body: bytes | str,
        /,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        delivery_timestamp: datetime | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
        delay: float | timedelta | None = None,
        lite_topic: str | None = None,
    ) -> SendReceipt: ...
    async def send(
        self,
        message: Message | str,
        body: bytes | str = b"",
        /,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        delivery_timestamp: datetime | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
        delay: float | timedelta | None = None,
        lite_topic: str | None = None,
    ) -> SendReceipt:
        """Sends one message and returns once the server has stored it.

        Tries up to `max_attempts` times under one message id, so that a server which drops repeats stores it once.
        Raises a PopError: BadRequest, NotFound, PayloadTooLarge, Unreachable and so on.
        """
        given = as_message("send", locals())
        with sending(self._config, [given]) as work:
            wire = outbound(work.messages[0], self._config.namespace)
            receipt: SendReceipt = unwrap(await self._bridge.ask(lambda reply: self._core.submit(wire, reply)))
            work.settle([receipt])
        return receipt

    async def send_many(self, messages: Iterable[Message]) -> SendResults:
        """Sends them together; each has an outcome of its own, a SendReceipt or a PopError, in the order given.

        `.raise_for_failures()` on the result turns failures into one MultipleResults.
        """
        given = as_messages(messages)
        with sending(self._config, given) as work:
            wires = [outbound(message, self._config.namespace) for message in work.messages]
            outcomes = await self._bridge.ask(lambda reply: self._core.submit_all(wires, reply))
            work.settle(outcomes)
        return SendResults(given, outcomes)

    async def recall(self, topic: str, handle: str | SendReceipt) -> str:
        """Takes a delayed message back, by its receipt or the recall handle in it; returns the message id.

        Raises PreconditionFailed when it is due already, NotFound when it was taken back before.
        """
        return await self._bridge.run(lambda: self._core.recall(topic, handle))

    def transaction(self, message: Message, *, check_after: float | timedelta | None = None) -> Transaction:
        """A block that decides about the message: `async with producer.transaction(message): …` stores it at once, and
        delivers it when the block ends; when the block raises, it is never delivered.

        If this process ends in between, the server asks the producers of the topic, first after `check_after` (seconds
        or a timedelta up to an hour; the server's 6 s without it): see `checker` of `Producer`.
        """
        return Transaction(self._core.half(carrying(self._config, one_message(message)), check_after), self._bridge)

    async def close(self) -> None:
        """Sends pending messages and ends the session, within `close_timeout`. Closing twice is fine."""
        await self._bridge.close(self._core.close, self._core)


class Transaction:
    """A block that decides whether its message is delivered; made by `Producer.transaction`. Used once."""

    __module__ = "popclient.aio"
    __reduce__ = not_copied

    def __init__(self, half: HalfMessage, bridge: Here) -> None:
        self._half = half
        self._bridge = bridge

    @property
    def message_id(self) -> str:
        """The id of the half message, which the message keeps when it is committed."""
        return self._half.receipt.message_id

    @property
    def transaction_id(self) -> str:
        """The server's name of this transaction."""
        return self._half.receipt.transaction_id

    @property
    def resolution(self) -> TransactionResolution | None:
        """What was decided; None before that."""
        return self._half.resolution

    async def commit(self) -> None:
        """Delivers the message, before the block ends. May be repeated if it fails."""
        await self._bridge.run(lambda: self._half.decide(TransactionResolution.COMMIT))

    async def rollback(self) -> None:
        """Discards the message: no consumer gets it."""
        await self._bridge.run(lambda: self._half.decide(TransactionResolution.ROLLBACK))

    async def __aenter__(self) -> Self:
        await self._bridge.run(self._half.begin)
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self._bridge.run(lambda: self._half.leave(kind is not None))
