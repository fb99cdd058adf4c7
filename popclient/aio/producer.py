"""The asyncio producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, overload

from popclient._convert import outbound
from popclient._lanes import unwrap
from popclient._producing import ProducerCore
from popclient._tracing import carrying, sending
from popclient._transactions import HalfMessage
from popclient.config import ClientConfig
from popclient.message import Message, SendReceipt, SendResults
from popclient.producer import as_message
from popclient.transaction import AsyncChecker, TransactionResolution


class Producer:
    """Sends messages; the concurrent sends of many tasks travel together, each with its own outcome.

    Takes what `popclient.Producer` takes; its `checker` is a coroutine function. Belongs to the event loop of its first
    use. Cancelling one `send` disturbs no other; whether the cancelled message is stored is then open.
    """

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
        self._core = ProducerCore(self._config, topics, checker, checker_timeout)

    async def start(self) -> None:
        """Opens the session and looks `topics` up; raises NotFound, Unreachable and so on. Else the first send does."""
        await self._core.start()

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
    ) -> SendReceipt: ...
    async def send(self, message: Message | str, body: bytes | str = b"", /, **fields: object) -> SendReceipt:
        """Sends one message and returns once the server has stored it.

        Tries up to `max_attempts` times under one message id, so that a server which drops repeats stores it once.
        Raises a PopError: BadRequest, NotFound, PayloadTooLarge, Unreachable and so on.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with sending(self._config, [as_message(message, body, fields)]) as work:
            self._core.submit(outbound(work.messages[0], self._config.namespace), reply)
            receipt: SendReceipt = unwrap(await reply)
            work.settle([receipt])
        return receipt

    async def send_many(self, messages: Iterable[Message]) -> SendResults:
        """Sends them together; each has an outcome of its own, a SendReceipt or a PopError, in the order given.

        `.raise_for_failures()` on the result turns failures into one MultipleResults.
        """
        given = list(messages)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with sending(self._config, given) as work:
            self._core.submit_all([outbound(message, self._config.namespace) for message in work.messages], reply)
            outcomes = await reply
            work.settle(outcomes)
        return SendResults(given, outcomes)

    async def recall(self, topic: str, handle: str | SendReceipt) -> str:
        """Takes a delayed message back, by its receipt or the recall handle in it; returns the message id.

        Raises PreconditionFailed when it is due already, NotFound when it was taken back before.
        """
        return await self._core.recall(topic, handle)

    def transaction(self, message: Message, *, check_after: float | timedelta | None = None) -> Transaction:
        """A block that decides about the message: `async with producer.transaction(message): …` stores it at once, and
        delivers it when the block ends; when the block raises, it is never delivered.

        Should this process die in between, the server asks the producers of the topic, first after `check_after`
        (seconds or a timedelta up to an hour; the server's 6 s without it): see `checker` above.
        """
        return Transaction(self._core.half(carrying(self._config, message), check_after))

    @property
    def client_id(self) -> str:
        return self._core.session.client_id

    @property
    def healthy(self) -> bool:
        """Is the session with the server up?"""
        return self._core.session.healthy

    async def close(self) -> None:
        """Sends what waits and says goodbye, within `close_timeout`. Closing twice is fine."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Producer {self._config.endpoints} {'healthy' if self.healthy else 'not connected'}>"


class Transaction:
    """A message whose fate this block decides; made by `Producer.transaction`. Used once."""

    def __init__(self, half: HalfMessage) -> None:
        self._half = half

    @property
    def message_id(self) -> str:
        return self._half.receipt.message_id

    @property
    def transaction_id(self) -> str:
        return self._half.receipt.transaction_id

    @property
    def resolution(self) -> TransactionResolution | None:
        """What was decided; None before that."""
        return self._half.resolution

    async def commit(self) -> None:
        """Delivers the message, before the block ends. May be repeated if it fails."""
        await self._half.decide(TransactionResolution.COMMIT)

    async def rollback(self) -> None:
        """Gives the message up; nobody will have seen it."""
        await self._half.decide(TransactionResolution.ROLLBACK)

    async def __aenter__(self) -> Self:
        await self._half.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._half.leave(error is not None)
