"""The asyncio producer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self, overload

from popclient._convert import outbound
from popclient._lanes import unwrap
from popclient._producing import ProducerCore
from popclient.config import ClientConfig
from popclient.message import Message, SendReceipt, SendResults
from popclient.producer import as_message


class Producer:
    """Sends messages; the concurrent sends of many tasks travel together, each with its own outcome.

    Takes what `popclient.Producer` takes. Belongs to the event loop of its first use. Cancelling one `send` disturbs
    no other; whether the cancelled message is stored is then open.
    """

    def __init__(
        self,
        endpoints: str | ClientConfig | None = None,
        topics: str | Iterable[str] = (),
        *,
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._core = ProducerCore(self._config, topics)

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
    ) -> SendReceipt: ...
    async def send(self, message: Message | str, body: bytes | str = b"", /, **fields: object) -> SendReceipt:
        """Sends one message and returns once the server has stored it.

        Tries up to `max_attempts` times under one message id, so that a server which drops repeats stores it once.
        Raises a PopError: BadRequest, NotFound, PayloadTooLarge, Unreachable and so on.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._core.submit(outbound(as_message(message, body, fields), self._config.namespace), reply)
        receipt: SendReceipt = unwrap(await reply)
        return receipt

    async def send_many(self, messages: Iterable[Message]) -> SendResults:
        """Sends them together; each has an outcome of its own, a SendReceipt or a PopError, in the order given.

        `.raise_for_failures()` on the result turns failures into one MultipleResults.
        """
        given = list(messages)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._core.submit_all([outbound(message, self._config.namespace) for message in given], reply)
        return SendResults(given, await reply)

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
