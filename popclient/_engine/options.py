"""What a push consumer is told at its making."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from popclient._arguments import MILLISECOND, as_timedelta, require_whole, require_within
from popclient.listening import Interceptor
from popclient.message import FilterExpression

# Servers keep a push hold this long at most, whatever its client says (requirement L15): no listener has longer.
HOLD_MAX: Final = timedelta(hours=3)
RECEIVE_BATCH_MAX: Final = 32  # servers give no more at once
HOOKS: Final = tuple(name for name in vars(Interceptor) if not name.startswith("_"))


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Checked here, so that nothing starts which could not work (requirement N8).

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
