"""What the calls of a pull consumer take, checked. A refusal names what was given and what would be taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from popclient._arguments import require_whole
from popclient._queues.message_queue import MessageQueue

Wanted = str | MessageQueue | Iterable[str | MessageQueue]


def as_wanted(given: Wanted) -> list[str | MessageQueue]:
    """Topics and queues, one or several."""
    several = [given] if isinstance(given, str | MessageQueue) or not isinstance(given, Iterable) else list(given)
    for each in several:
        if isinstance(each, MessageQueue):
            require_queue(each)
        elif not isinstance(each, str) or not each:
            raise TypeError(f"assign takes topics and queues, such as MessageQueue('flights', 0), not {each!r}")
    return several


def as_topic_names(given: str | Iterable[str]) -> list[str]:
    """One or several."""
    several = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not several or not all(isinstance(each, str) and each for each in several):
        raise TypeError(f"subscribe takes the name of a topic, or several, not {given!r}; to read queues, assign them")
    return several


def as_offsets(given: Mapping[MessageQueue, int] | None) -> Mapping[MessageQueue, int] | None:
    """Offsets by queue; None stands for all that was polled."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"commit takes offsets by queue, such as {{MessageQueue('flights', 0): 42}}, not {given!r}")
    for mq, offset in given.items():
        require_queue(mq)
        require_whole(f"the offset of {mq}", offset, 0)
    return dict(given)


def require_queue(given: MessageQueue) -> None:
    """Raises unless it is a queue that may be."""
    if not isinstance(given, MessageQueue) or not isinstance(given.topic, str):
        raise TypeError(f"a queue is a MessageQueue, such as MessageQueue('flights', 0), not {given!r}")
    require_whole("queue_id", given.queue_id, 0)


def require_aware(name: str, given: datetime) -> None:
    if not isinstance(given, datetime):
        raise TypeError(f"{name} is {given!r}; it must be an aware datetime")
    if given.tzinfo is None:
        raise ValueError(f"{name} {given} has no time zone; use an aware datetime")
