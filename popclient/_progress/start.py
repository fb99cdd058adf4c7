"""Where a queue begins (requirements I1 to I7).

A group with stored progress in the queue continues there. The setting `consume_from` counts only without progress. The
age of a topic, or what a server has in memory, does not change it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import Final

from popclient._progress.store import NO_OFFSET
from popclient._queues.subscription import is_retry_topic

TIMESTAMP_FORMAT: Final = "%Y%m%d%H%M%S"
TIMESTAMP_DIGITS: Final = 14
DEFAULT_LOOKBACK: Final = timedelta(minutes=30)


class ConsumeFromWhere(StrEnum):
    """LAST: only what comes from now on. FIRST: all there is. TIMESTAMP: what was stored at that time or later."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"

    @classmethod
    def of(cls, given: str) -> ConsumeFromWhere:
        """The value with this name, which may be a deprecated one. Raises ValueError for an unknown name."""
        if given in _OLD_NAMES:
            return cls.CONSUME_FROM_LAST_OFFSET
        try:
            return cls(given)
        except ValueError:
            raise ValueError(f"consume_from is {given!r}; it must be one of {', '.join(cls)}") from None


# Long deprecated; all three mean LAST, although their names say otherwise.
_OLD_NAMES: Final = frozenset(
    {"CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET"}
)


class StartQuery(Enum):
    """The server knows the offset: QueryOffset with the policy of that name."""

    END = "END"
    TIMESTAMP = "TIMESTAMP"


def start_of(consume_from: ConsumeFromWhere, topic: str, stored: int) -> int | StartQuery | None:
    """Where to begin a queue of the topic: an offset, or what to ask the server for.

    stored: as `OffsetStore.read_offset` says it. None: the progress is not known, so the queue is not taken now but at
    a later rebalance (requirement I6); a guess would skip or repeat messages.
    """
    if stored >= 0:
        return stored
    if stored != NO_OFFSET:
        return None
    if is_retry_topic(topic):  # it has only messages that this group has handed back, so the group wants all of them
        return StartQuery.END if consume_from is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP else 0
    match consume_from:
        case ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET:
            return StartQuery.END
        case ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return 0  # if the queue begins later, the answer to the first pull corrects the offset
        case ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return StartQuery.TIMESTAMP


def consume_timestamp_of(given: str | datetime | None, now: datetime) -> datetime:
    """The time that CONSUME_FROM_TIMESTAMP means, aware.

    given: fourteen digits yyyyMMddHHmmss in this machine's local time, or an aware datetime; None: half an hour before
    `now`. Raises ValueError for anything else.
    """
    if given is None:
        return now - DEFAULT_LOOKBACK
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise ValueError(f"consume_timestamp {given} has no time zone; use an aware datetime")
        return given
    if not isinstance(given, str):
        raise TypeError(f"consume_timestamp is {given!r}; it must be yyyyMMddHHmmss or an aware datetime")
    try:
        if len(given) != TIMESTAMP_DIGITS or not (given.isascii() and given.isdigit()):
            raise ValueError
        return datetime.strptime(given, TIMESTAMP_FORMAT).astimezone()
    except ValueError:
        raise ValueError(
            f"consume_timestamp is {given!r}; it must be yyyyMMddHHmmss, such as 20131223171201, or an aware datetime"
        ) from None


class Generations:
    """What one consumer knows of its topics. Belongs to one event loop.

    A topic can be deleted and made again under the same name (requirement B9). Then it has another generation, a number
    that the server gives it; 0 if the server gives none.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._missing: set[str] = set()
        self._came_later: set[str] = set()

    def missing(self, topic: str) -> bool:
        """Notes that the server has no such topic now. Returns whether that is new."""
        is_new = topic not in self._missing
        self._missing.add(topic)
        self._came_later.add(topic)
        return is_new

    def met(self, topic: str, generation: int) -> bool:
        """Notes the generation that the server gave. Returns whether it is another one than before."""
        self._missing.discard(topic)
        before = self._known.get(topic, 0)
        if not generation or generation == before:
            return False
        self._known[topic] = generation
        if before:
            self._came_later.add(topic)
        return before > 0

    def has_topic(self, topic: str) -> bool:
        return topic in self._known

    def wants_all(self, topic: str) -> bool:
        """Whether the topic was made after this consumer started: then the consumer wants all of its messages."""
        return topic in self._came_later

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)
        self._missing.discard(topic)
        self._came_later.discard(topic)
