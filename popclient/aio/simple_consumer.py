"""The asyncio simple consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from popclient._arguments import as_timedelta
from popclient._engine.simple import SimpleConsumerCore
from popclient._lanes import unwrap
from popclient._tracing import acking
from popclient.config import ClientConfig
from popclient.message import MessageView
from popclient.simple_consumer import Topics, as_topics, as_views, asking, raise_for_acks


class SimpleConsumer:
    """Receives messages of a consumer group and says, message by message, what became of them.

    Takes what `popclient.SimpleConsumer` takes. Belongs to the event loop of its first use. A cancelled `receive`
    loses nothing: what its poll brings goes to the next one, or back to the server.
    """

    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        topics: Topics,
        *,
        max_messages: int = 32,
        invisible_duration: float | timedelta = 30,
        await_duration: float | timedelta = 15,
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._defaults = asking(max_messages, invisible_duration, await_duration)
        self._core = SimpleConsumerCore(self._config, group, as_topics(topics), self._defaults)

    async def start(self) -> None:
        """Looks the topics up and opens the session, as the first call would; raises NotFound, Unreachable etc."""
        await self._core.start()

    async def receive(
        self,
        max_messages: int | None = None,
        invisible_duration: float | timedelta | None = None,
        await_duration: float | timedelta | None = None,
    ) -> list[MessageView]:
        """Messages of one topic, at most `max_messages`, held for `invisible_duration`.

        Waits for the first one up to `await_duration`; then the list is empty. With several topics it goes round, and
        never waits on an empty one while another has messages. Raises a PopError.
        """
        return await self._core.receive(asking(max_messages, invisible_duration, await_duration, self._defaults))

    async def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """Says that the message, or all of several, are done: they never come again.

        Concurrent acks travel together. Raises InvalidReceiptHandle when the hold is over; for several,
        MultipleResults with those that failed.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(messages, MessageView):
            with acking(self._config, self.group, [messages]) as work:
                self._core.submit_ack(messages, reply)
                outcome = await reply
                work.settle([outcome])
            unwrap(outcome)
        else:
            views = as_views(messages)
            with acking(self._config, self.group, views) as work:
                self._core.submit_acks(views, reply)
                outcomes = await reply
                work.settle(outcomes)
            raise_for_acks(views, outcomes)

    async def change_invisible_duration(self, message: MessageView, duration: float | timedelta) -> None:
        """Restarts the hold: it ends `duration` from now. The message gets its new handle; a failure keeps the old."""
        await self._core.change_invisible_duration(message, as_timedelta("duration", duration))

    async def forward_to_dead_letter_queue(self, message: MessageView) -> None:
        """Gives the message up: it moves to the group's dead letter queue."""
        await self._core.forward_to_dead_letter_queue(message)

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Long-polls until the consumer is closed; a server that restarts is waited for.

        A message is handed out with at least half of its hold left. Not acked by itself: call `ack`. Several tasks may
        iterate: they share what is received.
        """
        while (view := self._core.take_ready() or await self._core.next()) is not None:
            yield view

    @property
    def group(self) -> str:
        return self._core.group

    @property
    def client_id(self) -> str:
        return self._core.session.client_id

    @property
    def healthy(self) -> bool:
        """Is the session with the server up?"""
        return self._core.session.healthy

    async def close(self) -> None:
        """Stops polling, gives back what iteration has received and not handed out (no attempt is burnt), finishes
        waiting acks and says goodbye, within `close_timeout`. Closing twice is fine."""
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
        state = "healthy" if self.healthy else "not connected"
        return f"<aio.SimpleConsumer {self._config.endpoints} group={self.group!r} {state}>"
