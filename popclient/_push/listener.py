"""Calls the listener of a push consumer."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from popclient._engine.interceptors import InterceptorChain
from popclient._push.backlog import Batch
from popclient._version import log
from popclient.listening import ConsumeResult, ConsumeStatus, Consumption


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
    """One call of the listener, with a batch. on_end: called in the event loop with the batch and its result."""

    __slots__ = ("_began", "_consumption", "_listener", "_on_end", "batch")
    _began: float

    def __init__(self, listener: PushListener, batch: Batch, on_end: Callable[[Batch, Consumption], None]) -> None:
        self.batch = batch
        self._listener = listener
        self._on_end = on_end
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
        self._on_end(self.batch, self._consumption)


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
