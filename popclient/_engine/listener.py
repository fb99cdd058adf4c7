"""Calls a push consumer's listener and interceptors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from popclient._engine.backlog import Batch
from popclient._version import log
from popclient.errors import PopError
from popclient.listening import ConsumeResult, ConsumeStatus, Consumption, Interceptor
from popclient.message import MessageView


class InterceptorChain:
    """All interceptors of one consumer. The methods `after_…` are called in reverse order."""

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._forth = tuple(interceptors)
        self._back = tuple(reversed(self._forth))

    def before_receive(self, topic: str) -> None:
        for each in self._forth:
            _tell(each.before_receive, topic)

    def after_receive(self, topic: str, messages: Sequence[MessageView], error: PopError | None) -> None:
        for each in self._back:
            _tell(each.after_receive, topic, messages, error)

    def before_consume(self, messages: Sequence[MessageView]) -> None:
        for each in self._forth:
            _tell(each.before_consume, messages)

    def after_consume(self, messages: Sequence[MessageView], consumption: Consumption) -> None:
        for each in self._back:
            _tell(each.after_consume, messages, consumption)

    def before_ack(self, message: MessageView) -> None:
        for each in self._forth:
            _tell(each.before_ack, message)

    def after_ack(self, message: MessageView, error: PopError | None) -> None:
        for each in self._back:
            _tell(each.after_ack, message, error)


def _tell(hook: Callable[..., None], *given: Any) -> None:
    try:
        hook(*given)
    except Exception:  # noqa: BLE001  an interceptor must not do harm
        log.exception("the interceptor's %s failed", hook.__qualname__)


class PushListener:
    """The listener of one consumer.

    consume: the user's function. single: whether it takes one message, not a sequence.
    """

    __slots__ = ("consume", "interceptors", "single")

    def __init__(self, consume: Callable[..., Any], interceptors: InterceptorChain, *, single: bool) -> None:
        self.consume = consume
        self.interceptors = interceptors
        self.single = single


class BatchCall:
    """One call of the listener, with a batch. tell: called in the event loop with the batch and the end of the call."""

    __slots__ = ("_began", "_consumption", "_listener", "_tell", "batch")
    _began: float

    def __init__(self, listener: PushListener, batch: Batch, tell: Callable[[Batch, Consumption], None]) -> None:
        self.batch = batch
        self._listener = listener
        self._tell = tell
        self._consumption: Consumption | None = None

    def begin(self) -> bool:
        self._listener.interceptors.before_consume(self.batch.views)
        self._began = perf_counter()
        return True

    def listen(self) -> Any:
        views = self.batch.views
        return self._listener.consume(views[0] if self._listener.single else views)

    def end(self, returned: Any, error: BaseException | None, /) -> None:
        seconds = perf_counter() - self._began
        status = _judge(returned) if error is None else ConsumeStatus.EXCEPTION
        if self.batch.timed_out:
            status = ConsumeStatus.TIMEOUT
        self._consumption = Consumption(status, seconds, error)
        self._listener.interceptors.after_consume(self.batch.views, self._consumption)

    def ended(self, error: BaseException | None, /) -> None:
        if self._consumption is None:
            status = ConsumeStatus.TIMEOUT if self.batch.timed_out else ConsumeStatus.EXCEPTION
            self._consumption = Consumption(status, 0.0, error)
        self._tell(self.batch, self._consumption)


def _judge(returned: Any) -> ConsumeStatus:
    if returned is ConsumeResult.SUCCESS:
        return ConsumeStatus.SUCCESS
    if returned is None:
        log.error(
            "the listener returned nothing, which counts as a failure; return ConsumeResult.SUCCESS when it is done"
        )
        return ConsumeStatus.RETURNNULL
    if returned is not ConsumeResult.FAILURE:
        log.error("the listener returned %r, which counts as a failure; return a ConsumeResult", returned)
    return ConsumeStatus.FAILED
