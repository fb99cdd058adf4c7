"""Calls the interceptors of a consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from popclient._version import log
from popclient.errors import PopError
from popclient.listening import Consumption, Interceptor
from popclient.message import MessageView


class InterceptorChain:
    """All interceptors of one consumer. The methods `after_…` are called in reverse order."""

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._forth = tuple(interceptors)
        self._back = tuple(reversed(self._forth))

    def before_receive(self, topic: str) -> None:
        for each in self._forth:
            _call(each.before_receive, topic)

    def after_receive(self, topic: str, messages: Sequence[MessageView], error: PopError | None) -> None:
        for each in self._back:
            _call(each.after_receive, topic, messages, error)

    def before_consume(self, messages: Sequence[MessageView]) -> None:
        for each in self._forth:
            _call(each.before_consume, messages)

    def after_consume(self, messages: Sequence[MessageView], consumption: Consumption) -> None:
        for each in self._back:
            _call(each.after_consume, messages, consumption)

    def before_ack(self, message: MessageView) -> None:
        for each in self._forth:
            _call(each.before_ack, message)

    def after_ack(self, message: MessageView, error: PopError | None) -> None:
        for each in self._back:
            _call(each.after_ack, message, error)


def _call(hook: Callable[..., None], *given: Any) -> None:
    try:
        hook(*given)
    except Exception:  # noqa: BLE001  an interceptor must not do harm
        log.exception("the interceptor's %s failed", hook.__qualname__)
