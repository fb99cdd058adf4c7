"""How an asyncio client calls its user's functions: coroutine functions, in tasks of its event loop."""

from __future__ import annotations

from popclient._engine.runner import MakeRunner, TaskRunner
from popclient._loop import Here
from popclient._producer.transactions import Decide
from popclient.listening import AsyncChecker


def checker_of(checker: AsyncChecker | None) -> Decide | None:
    """What the producer's core calls for each check."""
    return checker


def require_kind(listener: object, consumer: str, *, is_async: bool) -> None:
    """Raises TypeError for a listener that belongs to `popclient.<consumer>`."""
    if not is_async:
        raise TypeError(
            f"listener {listener!r} is no coroutine function; write it with `async def`, or use popclient.{consumer}"
        )


def runner_of(_bridge: Here) -> MakeRunner:
    """What runs the calls of a listener."""
    return TaskRunner
