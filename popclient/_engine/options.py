"""The options of a simple and of a push consumer, and the checks of the arguments of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from popclient._arguments import (
    MILLISECOND,
    Check,
    Options,
    as_timedelta,
    group_name,
    option,
    require_text,
    require_whole,
    seconds,
    whole,
)
from popclient._engine.receive import ONE_FRAME_MAX
from popclient.listening import Interceptor
from popclient.message import FilterExpression, MessageView

Topics = str | Iterable[str] | Mapping[str, str | FilterExpression]

# The server's limit for a hold of a push consumer (requirement L15), and so for its listener.
HOLD_MAX: Final = timedelta(hours=3)
MEBIBYTE: Final = 1024 * 1024
SHOWN_MAX: Final = 80  # characters of a wrong argument, in its error
HOOKS: Final = tuple(name for name in vars(Interceptor) if not name.startswith("_"))


class Asking(NamedTuple):
    """What a receive asks for."""

    max_messages: int
    invisible: timedelta
    await_duration: timedelta


def as_topics(given: Topics) -> dict[str, FilterExpression]:
    """Topics in any of the accepted forms, each with its filter."""
    names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not names:
        raise ValueError("a consumer needs at least one topic")
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"topics is {given!r}; give the name of a topic, several, or a mapping of names to filters")
    for name in names:
        require_text("a topic", name)
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

    def __post_init__(self) -> None:
        group_name("a simple consumer")("group", self.group)


def asking(
    max_messages: int | None,
    invisible_duration: float | timedelta | None,
    await_duration: float | timedelta | None,
    default: Asking | None = None,
) -> Asking:
    """The parameters of a receive, checked. None means the default."""
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


def as_views(given: Iterable[MessageView], taker: str = "ack") -> list[MessageView]:
    """The messages to settle. Raises TypeError for anything else, such as a receipt handle."""
    views = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for view in views:
        if not isinstance(view, MessageView):
            raise TypeError(f"{taker} takes messages as they were received, one or several, not {_named(view)}")
    return views


def _named(given: object) -> str:
    text = repr(given)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


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


def topic_filters(consumer: str) -> Check:
    """Topics in any of the accepted forms; becomes a filter for each. consumer: with its article, for the error."""

    def check(_: str, given: Topics) -> Mapping[str, FilterExpression]:
        topics = as_topics(given)
        if not all(topics):
            raise ValueError(f"topics are {list(topics)}; {consumer} needs a name for each, and at least one")
        return topics

    return check


def _listener(name: str, given: object) -> object:
    if not callable(given):
        raise TypeError(f"{name} is {given!r}; give a function that takes a message and returns a ConsumeResult")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions(Options):
    """The options of a push consumer, checked when it is made (requirement N8).

    batch_size: None where the listener takes single messages. receive_batch_size: messages that one receive asks for;
    None: it depends on the pace of the listener.
    consumption_timeout, drain_timeout: seconds.
    """

    group: str = option(group_name("a push consumer"))
    topics: Mapping[str, FilterExpression] = option(topic_filters("a push consumer"))
    listener: Callable[..., Any] = option(_listener)
    batch_size: int | None = option(lambda name, given: None if given is None else whole()(name, given))
    concurrency: int = option(whole())
    receive_batch_size: int | None = option(
        lambda name, given: None if given is None else whole(1, ONE_FRAME_MAX)(name, given)
    )
    max_cached_messages: int = option(whole())
    max_cached_bytes: int = option(whole())
    consumption_timeout: float = option(seconds(MILLISECOND, HOLD_MAX))
    drain_timeout: float = option(seconds())
    interceptors: Sequence[Interceptor] = option(lambda _, given: as_interceptors(given))

    def _check_together(self) -> None:
        if self.max_cached_messages < len(self.topics):
            raise ValueError(
                f"max_cached_messages is {self.max_cached_messages} for {len(self.topics)} topics; it must be at least"
                " 1 for each, because the poll of each may bring one"
            )
