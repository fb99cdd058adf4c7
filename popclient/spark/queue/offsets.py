"""Offsets of many queues, and their division into tasks. In Spark's checkpoint they look like this:
`{"v": 1, "q": {"orders/0": 12}, "created": {"orders": 1360281600000}}`.

The number of a queue is the next offset to read. The number of a topic is its time of creation, which differs from that
of another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from popclient.message import MessageQueue
from popclient.spark.checkpoint import VERSION, refusal

Offsets = Mapping[MessageQueue, int]
NONE: Final[Offsets] = MappingProxyType({})


class QueueOffsets(NamedTuple):
    """The progress of a stream.

    begun: where the batch that ends here begins in queues that are new, or have lost their next message. created: when
    the topics were created, epoch milliseconds, if the server tells; offsets of a recreated topic mean others.
    """

    offsets: Offsets
    begun: Offsets = NONE
    created: Mapping[str, int] = MappingProxyType({})

    def leads_to(self, end: QueueOffsets) -> bool:
        """Does `end` differ from these offsets?"""
        return (self.offsets, self.created) != (end.offsets, end.created)


class Range(NamedTuple):
    """The messages of a queue from `start` up to, not including, `end`."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def written(position: QueueOffsets) -> dict[str, Any]:
    """For Spark's checkpoint."""
    offset: dict[str, Any] = {"v": VERSION, "q": _named(position.offsets)}
    if position.begun:
        offset["begun"] = _named(position.begun)
    if position.created:
        offset["created"] = dict(sorted(position.created.items()))
    return offset


def read(offset: Mapping[str, Any]) -> QueueOffsets:
    """From Spark's checkpoint; raises `ValueError` for an offset of another source."""
    try:
        if offset["v"] != VERSION:
            raise ValueError(f"version {offset['v']}")
        created = {topic: int(time_ms) for topic, time_ms in offset.get("created", {}).items()}
        return QueueOffsets(_queues(offset["q"]), _queues(offset.get("begun", {})), created)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise refusal(offset, "queues", {"q": {"orders/0": 12}}) from None


def ranges(start: QueueOffsets, end: QueueOffsets) -> list[Range]:
    """The messages between two offsets, in the order of queues; without empty ranges."""
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


# A task costs Spark about 30 ms; a queue with fewer messages shares a task with others.
MESSAGES_PER_PARTITION: Final = 25_000


def fair_shares(backlog: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """The number of messages of each queue: at least one, even beyond the limit, so that no queue starves; the rest in
    proportion to the backlog. The sum is the limit, or the backlog if that is less.
    """
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    if sum(waiting.values()) <= limit:
        return waiting
    total = sum(waiting.values())
    shares = {queue: max(1, limit * count // total) for queue, count in waiting.items()}
    # The rounding error of the sum is less than the number of queues; the largest shares are corrected by it.
    off = limit - sum(shares.values())
    for queue in sorted(waiting, key=lambda each: (-waiting[each], each)):
        shares[queue], before = min(max(1, shares[queue] + off), waiting[queue]), shares[queue]
        off -= shares[queue] - before
    return shares


def partitioned(found: Sequence[Range], min_partitions: int) -> list[tuple[Range, ...]]:
    """The ranges of each task. Splits large ranges only if more partitions are asked for than there are queues; else
    one task reads a queue, in its order.
    """
    total = sum(each.size for each in found)
    if not total:
        return []
    by_size = min(len(found), -(-total // MESSAGES_PER_PARTITION))
    wanted = max(by_size, min(min_partitions, total))
    if wanted <= len(found):
        return _dealt_out(found, wanted)
    return _dealt_out([piece for each in found for piece in _pieces(each, wanted, total)], wanted)


def _pieces(whole: Range, wanted: int, total: int) -> list[Range]:
    """Pieces of equal size; their number is the range's share of the wanted ones."""
    count = min(max(1, -(-wanted * whole.size // total)), whole.size)
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [Range(whole.queue, start, end) for start, end in pairwise(edges)]


def _dealt_out(pieces: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Gives the largest piece first, each to the task with the fewest messages."""
    count = min(count, len(pieces))
    hands: list[list[Range]] = [[] for _ in range(count)]
    sizes = [0] * count
    for piece in sorted(pieces, key=lambda each: (-each.size, each)):
        least = sizes.index(min(sizes))
        hands[least].append(piece)
        sizes[least] += piece.size
    return [tuple(sorted(hand)) for hand in hands]
