"""The options of a simple and of a push consumer, and the arguments of their calls, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from popclient._arguments import MILLISECOND, as_timedelta, require_whole, require_within
from popclient._engine.polls import Asking
from popclient.listening import Interceptor
from popclient.message import FilterExpression, MessageView

Topics = str | Iterable[str] | Mapping[str, str | FilterExpression]

# Servers keep a push hold this long at most, whatever its client says (requirement L15): no listener has longer.
HOLD_MAX: Final = timedelta(hours=3)
MEBIBYTE: Final = 1024 * 1024
RECEIVE_BATCH_MAX: Final = 32  # servers give no more at once
HOOKS: Final = tuple(name for name in vars(Interceptor) if not name.startswith("_"))


def as_topics(given: Topics) -> dict[str, FilterExpression]:
    """Topics in any of the accepted forms, each with its filter."""
    names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not names:
        raise ValueError("a consumer needs at least one topic")
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"topics is {given!r}; give the name of a topic, several, or a mapping of names to filters")
    filters = given if isinstance(given, Mapping) else dict.fromkeys(names, "*")
    return {name: _filter_of(name, filters[name]) for name in names}


def _filter_of(topic: str, given: str | FilterExpression) -> FilterExpression:
    if not isinstance(given, str | FilterExpression):
        raise TypeError(
            f"topics[{topic!r}] is {given!r}; give a tag expression such as 'a || b', or a FilterExpression"
        )
    return FilterExpression.of(given)


@dataclass(frozen=True, slots=True)
class SimpleOptions:
    """defaults: of each receive, unless the call says otherwise."""

    group: str
    topics: Mapping[str, FilterExpression]
    defaults: Asking


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
    """The messages to ack. Raises TypeError for anything else, such as a receipt handle."""
    views = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for view in views:
        if not isinstance(view, MessageView):
            raise TypeError(f"ack takes messages as they were received, one or several, not {view!r}")
    return views


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Checked here: a consumer that could not work does not start (requirement N8).

    batch_size: None where the listener takes single messages. receive_batch_size: messages that one receive asks for.
    consumption_timeout, drain_timeout: seconds.
    """

    group: str
    topics: Mapping[str, FilterExpression]
    listener: Callable[..., Any]
    batch_size: int | None
    concurrency: int
    max_cached_messages: int
    max_cached_bytes: int
    consumption_timeout: float
    drain_timeout: float
    interceptors: Sequence[Interceptor]
    receive_batch_size: int = RECEIVE_BATCH_MAX

    def __post_init__(self) -> None:
        if not isinstance(self.group, str) or not self.group:
            raise ValueError(f"group is {self.group!r}; a push consumer needs the name of its consumer group")
        if not self.topics or not all(self.topics):
            raise ValueError(f"topics are {list(self.topics)}; a push consumer needs a name for each, and at least one")
        if not callable(self.listener):
            raise TypeError(
                f"listener is {self.listener!r}; give a function that takes a message and returns a ConsumeResult"
            )
        if self.batch_size is not None:
            require_whole("batch_size", self.batch_size)
        require_within("receive_batch_size", self.receive_batch_size, 1, RECEIVE_BATCH_MAX)
        require_whole("concurrency", self.concurrency)
        require_whole("max_cached_bytes", self.max_cached_bytes)
        require_whole("max_cached_messages", self.max_cached_messages)
        if self.max_cached_messages < len(self.topics):
            raise ValueError(
                f"max_cached_messages is {self.max_cached_messages} for {len(self.topics)} topics; it must be at least"
                " 1 for each, because the poll of each may bring one"
            )


def consumption_seconds(timeout: float | timedelta) -> float:
    return as_timedelta("consumption_timeout", timeout, MILLISECOND, HOLD_MAX).total_seconds()


def as_interceptors(given: Iterable[Interceptor]) -> tuple[Interceptor, ...]:
    """Raises TypeError for what could not look on."""
    if not isinstance(given, Iterable):
        raise TypeError(f"interceptors is {given!r}; give a list of Interceptors")
    found = tuple(given)
    for each in found:
        if isinstance(each, type):
            raise TypeError(f"interceptor {each!r} is a class; give an instance of it")
        if missing := [hook for hook in HOOKS if not callable(getattr(each, hook, None))]:
            raise TypeError(
                f"interceptor {each!r} has no {', '.join(missing)}; derive it from popclient.Interceptor, and override"
                " what you need"
            )
    return found
