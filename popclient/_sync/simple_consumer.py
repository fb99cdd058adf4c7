# Made by scripts/unasync.py from popclient/aio/simple_consumer.py. Do not edit.
"""The synchronous simple consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from popclient._arguments import as_timedelta, is_async
from popclient._engine.options import SimpleOptions, Topics, as_topics, as_views, asking
from popclient._loop import LoopThread
from popclient._session.batching import unwrap
from popclient._simple.core import SimpleConsumerCore, raise_for_acks
from popclient._sync.base import BaseConsumer
from popclient._sync.callbacks import require_kind
from popclient._sync.signals import Signals
from popclient._tracing import acking
from popclient._version import log
from popclient.config import ClientConfig
from popclient.errors import PopError
from popclient.listening import ConsumeResult, GiveUp
from popclient.message import MessageView


class SimpleConsumer(BaseConsumer[SimpleConsumerCore]):
    """Receives messages of a consumer group, and settles them one by one.

    Safe in threads. If you receive full batches in quick succession, the consumer receives ahead: about as many
    messages as you processed in the last quarter of a second. Messages that you do not ask for within 1 s go back to
    the server, and their attempt does not count.

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

    __module__ = "popclient"

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
        self._bridge = LoopThread()
        options = SimpleOptions(group, as_topics(topics), self._defaults)
        self._core = SimpleConsumerCore(self._config, options, self._bridge)
        self._bridge.close_at_exit(self._core)

    def start(self) -> None:
        """Looks the topics up and opens the session, as the first call would; raises NotFound, Unreachable etc."""
        self._bridge.run(self._core.start)

    def receive(
        self,
        max_messages: int | None = None,
        invisible_duration: float | timedelta | None = None,
        await_duration: float | timedelta | None = None,
    ) -> list[MessageView]:
        """Returns messages of one topic, at most `max_messages` (and 128), and holds them for `invisible_duration`.
        `invisible_until` of a message says until when; one that was received ahead has been held for up to a second.

        Waits for the first one up to `await_duration`; then the list is empty. Takes several topics in turn, and does
        not wait for an empty one while another has messages. Raises a PopError.
        """
        wanted = asking(max_messages, invisible_duration, await_duration, self._defaults)
        return self._bridge.run(lambda: self._core.receive(wanted))

    def ack(self, messages: MessageView | Iterable[MessageView]) -> None:
        """Says that the message, or each of several, is done: it is never delivered again.

        Acking again is fine. Raises InvalidReceiptHandle when the hold is over; for several, MultipleResults with the
        messages that failed.
        """
        if isinstance(messages, MessageView):
            view = messages
            with acking(self._config, self.group, [view]) as work:
                outcome = self._bridge.ask(lambda reply: self._core.submit_ack(view, reply))
                work.settle([outcome])
            unwrap(outcome)
        else:
            views = as_views(messages)
            with acking(self._config, self.group, views) as work:
                outcomes = self._bridge.ask(lambda reply: self._core.submit_acks(views, reply))
                work.settle(outcomes)
            raise_for_acks(views, outcomes)

    def change_invisible_duration(self, message: MessageView, duration: float | timedelta) -> None:
        """Restarts the hold: it ends `duration` from now. The message gets its new handle; a failure keeps the old."""
        length = as_timedelta("duration", duration)
        self._bridge.run(lambda: self._core.change_invisible_duration(message, length))

    def forward_to_dead_letter_queue(self, message: MessageView, reason: str = "") -> None:
        """Gives the message up: it moves to the group's dead letter queue.

        reason: a line for those who look at dead letters; at most 256 characters, longer ones are cut.
        """
        self._bridge.run(lambda: self._core.forward_to_dead_letter_queue(message, reason))

    def give_back(self, messages: MessageView | Iterable[MessageView]) -> None:
        """Gives the message back unused, or each of several: they are delivered again at once, perhaps to another
        consumer, and the attempt does not count. What cannot be given back is delivered again when its hold ends."""
        views = [messages] if isinstance(messages, MessageView) else as_views(messages, "give_back")
        self._bridge.run(lambda: self._core.give_back(views))

    def __iter__(self) -> Iterator[MessageView]:
        """Long-polls until the consumer is closed; waits for a server that restarts.

        At least half of a message's hold is left when you get it. Ack it yourself: call `ack`. Several threads may
        iterate; they share the received messages.

        Receives up to `max_messages` at a time, and fewer where you work slowly. A message that waits for half of its
        hold without a turn goes back to the server; its attempt does not count.
        """
        while (view := self._core.take_ready() or self._bridge.run(self._core.next)) is not None:
            yield view

    def run(self, listener: Callable[[MessageView], object]) -> None:
        """Calls the listener with one message after the other, and acks each when the listener returns. Ends by
        SIGTERM, by Ctrl-C or by `stop`, after the message that is worked on, and closes the consumer.

        If the listener raises, or returns ConsumeResult.FAILURE, that is logged, and the message comes again when its
        hold ends. If it raises GiveUp, the message becomes a dead letter at once. A PushConsumer works on several
        messages at a time, and repeats by the group's intervals. Raises the PopError that ends an iteration, and
        TypeError for a listener of the wrong kind.
        """
        require_kind(listener, "SimpleConsumer", is_async=is_async(listener))
        try:
            with Signals(self.stop):
                for message in self:
                    try:
                        self._settle(message, listener)
                    except PopError as error:
                        log.warning("%s of group %s is delivered again: %s", message, self.group, error)
                    except Exception:  # noqa: BLE001  a listener may raise anything
                        log.exception("the listener of group %s failed for %s", self.group, message)
        finally:
            self.close()

    def _settle(self, message: MessageView, listener: Callable[[MessageView], object]) -> None:
        try:
            returned = listener(message)
        except GiveUp as reason:
            log.warning(
                "the listener of group %s gives %s up: it becomes a dead letter: %s", self.group, message, reason
            )
            self.forward_to_dead_letter_queue(message, str(reason))
            return
        if returned is ConsumeResult.FAILURE:
            log.warning("the listener of group %s returned FAILURE for %s", self.group, message)
            return
        self.ack(message)

    def stop(self) -> None:
        """Ends the iteration, and a `receive` that waits returns an empty list at once; the next one raises
        ClientClosed. Received messages that you have not seen go back to the server; those that you hold can be acked
        until `close`.

        May be called in any thread, and by a signal handler: `signal.signal(signal.SIGTERM, lambda *_:
        consumer.stop())`.
        """
        self._bridge.post(self._core.stop)

    @property
    def stopped(self) -> bool:
        """Was `stop` called? For loops around `receive`."""
        return self._core.stopped

    def close(self) -> None:
        """Stops polling, gives back received messages that you have not seen (their attempt does not count), finishes
        pending acks and ends the session, within `close_timeout`. Closing twice is fine."""
        self._bridge.close(self._core.close, self._core)
