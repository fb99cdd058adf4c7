"""How a synchronous client calls its user's functions: plain functions, in threads."""

from __future__ import annotations

from functools import partial

from popclient._arguments import require_function
from popclient._engine.runner import MakeRunner, ThreadRunner
from popclient._loop import LoopThread
from popclient._producer.transactions import Decide, in_a_thread
from popclient.listening import Checker


def checker_of(checker: Checker | None) -> Decide | None:
    """What the producer's core calls for each check."""
    require_function("checker", checker)
    return None if checker is None else in_a_thread(checker)


def require_kind(listener: object, consumer: str, *, is_async: bool) -> None:
    """Raises TypeError for a listener that belongs to `popclient.aio.<consumer>`."""
    if is_async:
        raise TypeError(f"listener {listener!r} is a coroutine function; use popclient.aio.{consumer}")


def runner_of(bridge: LoopThread) -> MakeRunner:
    """What runs the calls of a listener."""
    return partial(ThreadRunner, post=bridge.post)
