"""Offsets of many queues, as they stand in Spark's checkpoint:
`{"v": 1, "q": {"orders/0": 12}, "created": {"orders": 1360281600000}}`.

The number of a queue is the next offset to read; the one of a topic tells it from another of its name. What an offset
says besides is nobody's but this version's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from popclient.message import MessageQueue
from popclient.spark.checkpoint import VERSION, refusal

Offsets = Mapping[MessageQueue, int]
NONE: Final[Offsets] = MappingProxyType({})


class QueueOffsets(NamedTuple):
    """Where a stream stands. begun: where the batch that ends here begins in queues which it did not simply go on with:
    those that are new, or have lost what was next. created: when the topics were, in epoch milliseconds, as far as the
    server tells: offsets of a topic that was made anew are others."""

    offsets: Offsets
    begun: Offsets = NONE
    created: Mapping[str, int] = MappingProxyType({})

    def leads_to(self, end: QueueOffsets) -> bool:
        """Does `end` say anything that this does not?"""
        return (self.offsets, self.created) != (end.offsets, end.created)


class Range(NamedTuple):
    """The messages of a queue from `start` up to, not including, `end`."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def written(place: QueueOffsets) -> dict[str, Any]:
    """As Spark keeps it."""
    offset: dict[str, Any] = {"v": VERSION, "q": _named(place.offsets)}
    if place.begun:
        offset["begun"] = _named(place.begun)
    if place.created:
        offset["created"] = dict(sorted(place.created.items()))
    return offset


def read(offset: Mapping[str, Any]) -> QueueOffsets:
    """From what Spark has kept; raises `ValueError` for what another source has written."""
    try:
        if offset["v"] != VERSION:
            raise ValueError(f"version {offset['v']}")
        created = {topic: int(time_ms) for topic, time_ms in offset.get("created", {}).items()}
        return QueueOffsets(_queues(offset["q"]), _queues(offset.get("begun", {})), created)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refusal(offset, "queues", {"q": {"orders/0": 12}}) from None


def ranges(start: QueueOffsets, end: QueueOffsets) -> list[Range]:
    """What is between two offsets, the queues that hold nothing left out, in order."""
    found = []
    for queue, end_offset in sorted(end.offsets.items()):
        start_offset = end.begun.get(queue, start.offsets.get(queue, 0))
        if start_offset < end_offset:
            found.append(Range(queue, start_offset, end_offset))
    return found


def _named(offsets: Offsets) -> dict[str, int]:
    return {f"{queue.topic}/{queue.queue_id}": offset for queue, offset in sorted(offsets.items())}


def _queues(named: Mapping[str, int]) -> dict[MessageQueue, int]:
    found = {}
    for name, offset in named.items():
        topic, _, number = name.rpartition("/")
        found[MessageQueue(topic, int(number))] = int(offset)
    return found
