"""The synchronous simple consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from popclient._arguments import as_timedelta, require_whole
from popclient._engine.polls import Asking
from popclient._engine.simple import SimpleConsumerCore
from popclient._lanes import unwrap
from popclient._loop import loop_thread
from popclient._tracing import acking
from popclient.config import ClientConfig
from popclient.errors import MultipleResults, PopError
from popclient.message import FilterExpression, MessageView

Topics = str | Iterable[str] | Mapping[str, str | FilterExpression]


class SimpleConsumer:
    """Receives messages of a consumer group and says, message by message, what became of them. Safe in threads.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    topics: one, several, or a mapping to what is wanted of each: "*", tags such as "a || b", or a FilterExpression.
    max_messages, invisible_duration, await_duration: defaults of `receive`; iteration uses them. Durations are seconds
        or timedeltas.
    on_disconnect, on_reconnect: see ClientConfig.

    >>> with SimpleConsumer("127.0.0.1:8081", "billing", "flights") as consumer:    # doctest: +SKIP
    ...     for message in consumer:
    ...         handle(message.body)
    ...         consumer.ack(message)
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
        self._thread = loop_thread()
        self._core = SimpleConsumerCore(self._config, group, as_topics(topics), self._defaults, self._thread)
        self._thread.close_at_exit(self._core)

    def start(self) -> None:
        """Looks the topics up and opens the session, as the first call would; raises NotFound, Unreachable etc."""
        self._thread.run(self._core.start)

    def receive(
        self,
        max_messages: int | None = None,
        invisible_duration: float | timedelta | None = None,
        await_duration: float | timedelta | None = None,
    ) -> list[MessageView]:
        """Messages of one topic, at most `max_messages`, held for `invisible_duration`.

        Waits for the first one up to `await_duration`; then the list is empty. With several topics it goes round, and
        never waits on an empty one while another has messages. Raises a PopError.
        """
        wanted = asking(max_messages, invisible_duration, await_duration, self._defaults)
        return self._thread.run(lambda: self._core.receive(wanted))

    def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """Says that the message, or all of several, are done: they never come again.

        Acking again is fine. Raises InvalidReceiptHandle when the hold is over; for several, MultipleResults with those
        that failed.
        """
        if isinstance(messages, MessageView):
            view = messages
            with acking(self._config, self.group, [view]) as work:
                outcome = self._thread.ask(lambda reply: self._core.submit_ack(view, reply))
                work.settle([outcome])
            unwrap(outcome)
        else:
            views = as_views(messages)
            with acking(self._config, self.group, views) as work:
                outcomes = self._thread.ask(lambda reply: self._core.submit_acks(views, reply))
                work.settle(outcomes)
            raise_for_acks(views, outcomes)

    def change_invisible_duration(self, message: MessageView, duration: float | timedelta) -> None:
        """Restarts the hold: it ends `duration` from now. The message gets its new handle; a failure keeps the old."""
        length = as_timedelta("duration", duration)
        self._thread.run(lambda: self._core.change_invisible_duration(message, length))

    def forward_to_dead_letter_queue(self, message: MessageView) -> None:
        """Gives the message up: it moves to the group's dead letter queue."""
        self._thread.run(lambda: self._core.forward_to_dead_letter_queue(message))

    def __iter__(self) -> Iterator[MessageView]:
        """Long-polls until the consumer is closed; a server that restarts is waited for.

        A message is handed out with at least half of its hold left. Not acked by itself: call `ack`. Several threads
        may iterate: they share what is received.
        """
        while (view := self._core.take_ready() or self._thread.run(self._core.next)) is not None:
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

    def close(self) -> None:
        """Stops polling, gives back what iteration has received and not handed out (no attempt is burnt), finishes
        waiting acks and says goodbye, within `close_timeout`. Closing twice is fine."""
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
        state = "healthy" if self.healthy else "not connected"
        return f"<SimpleConsumer {self._config.endpoints} group={self.group!r} {state}>"


def as_topics(given: Topics) -> dict[str, FilterExpression]:
    """Topics in any of the accepted forms, each with its filter."""
    names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not names:
        raise ValueError("a consumer needs at least one topic")
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"topics is {given!r}; give the name of a topic, several, or a mapping of names to filters")
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(names, "*")
    return {name: _filter_of(name, wanted[name]) for name in names}


def _filter_of(topic: str, wanted: str | FilterExpression) -> FilterExpression:
    if not isinstance(wanted, str | FilterExpression):
        raise TypeError(
            f"topics[{topic!r}] is {wanted!r}; give a tag expression such as 'a || b', or a FilterExpression"
        )
    return FilterExpression.of(wanted)


def asking(
    max_messages: int | None,
    invisible_duration: float | timedelta | None,
    await_duration: float | timedelta | None,
    default: Asking | None = None,
) -> Asking:
    """The parameters of a receive, checked; None stands for the default's."""
    if default is not None and max_messages is None and invisible_duration is None and await_duration is None:
        return default
    base = default or Asking(32, timedelta(seconds=30), timedelta(seconds=15))
    wanted = Asking(
        base.max_messages if max_messages is None else max_messages,
        base.invisible if invisible_duration is None else as_timedelta("invisible_duration", invisible_duration),
        base.await_duration if await_duration is None else as_timedelta("await_duration", await_duration),
    )
    require_whole("max_messages", wanted.max_messages)
    return wanted


def as_views(given: Iterable[MessageView]) -> list[MessageView]:
    """The messages to ack; raises TypeError for anything else, such as a receipt handle."""
    views = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for view in views:
        if not isinstance(view, MessageView):
            raise TypeError(f"ack takes messages as they were received, one or several, not {view!r}")
    return views


def raise_for_acks(views: list[MessageView], outcomes: list[Any]) -> None:
    failures = [(v, o) for v, o in zip(views, outcomes, strict=True) if isinstance(o, PopError)]
    if failures:
        raise MultipleResults(
            f"{len(failures)} of {len(views)} messages were not acked; the first: {failures[0][1]}", failures=failures
        )
