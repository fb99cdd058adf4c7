"""The synchronous producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self, overload

from popclient._convert import outbound
from popclient._lanes import unwrap
from popclient._loop import loop_thread
from popclient._producing import ProducerCore
from popclient.config import ClientConfig
from popclient.message import Message, SendReceipt, SendResults


class Producer:
    """Sends messages. Safe in threads; the sends of many threads travel together, each with its own outcome.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    topics: looked up by `start` or on entering `with`; others at their first message.
    on_disconnect, on_reconnect: see ClientConfig.

    >>> with Producer("127.0.0.1:8081") as producer:            # doctest: +SKIP
    ...     producer.send("flights", b"...", tag="UA")
    SendReceipt(message_id='01…', offset=0, transaction_id='', recall_handle='')
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
        self._thread = loop_thread()
        self._core = ProducerCore(self._config, topics)
        self._thread.close_at_exit(self._core)

    def start(self) -> None:
        """Opens the session and looks `topics` up; raises NotFound, Unreachable and so on. Else the first send does."""
        self._thread.run(self._core.start)

    @overload
    def send(self, message: Message, /) -> SendReceipt: ...
    @overload
    def send(
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
    def send(self, message: Message | str, body: bytes | str = b"", /, **fields: object) -> SendReceipt:
        """Sends one message and returns once the server has stored it.

        Tries up to `max_attempts` times under one message id, so that a server which drops repeats stores it once.
        Raises a PopError: BadRequest, NotFound, PayloadTooLarge, Unreachable and so on.
        """
        wire = outbound(as_message(message, body, fields), self._config.namespace)
        receipt: SendReceipt = unwrap(self._thread.ask(lambda reply: self._core.submit(wire, reply)))
        return receipt

    def send_many(self, messages: Iterable[Message]) -> SendResults:
        """Sends them together; each has an outcome of its own, a SendReceipt or a PopError, in the order given.

        `.raise_for_failures()` on the result turns failures into one MultipleResults.
        """
        given = list(messages)
        wires = [outbound(message, self._config.namespace) for message in given]
        return SendResults(given, self._thread.ask(lambda reply: self._core.submit_all(wires, reply)))

    @property
    def client_id(self) -> str:
        return self._core.session.client_id

    @property
    def healthy(self) -> bool:
        """Is the session with the server up?"""
        return self._core.session.healthy

    def close(self) -> None:
        """Sends what waits and says goodbye, within `close_timeout`. Closing twice is fine."""
        self._thread.forget(self._core)
        self._thread.run(self._core.close)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer {self._config.endpoints} {'healthy' if self.healthy else 'not connected'}>"


def as_message(given: Message | str, body: bytes | str, fields: Mapping[str, object]) -> Message:
    """What `send` was given, as a Message."""
    if isinstance(given, Message):
        if body or fields:
            raise TypeError("send takes a Message alone, or a topic, a body and fields; not both")
        return given
    return Message(given, body, **{name: value for name, value in fields.items() if value is not None})  # type: ignore[arg-type]
