"""Which messages a batch takes, and which task reads them. Pure: the same offsets give the same plan everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from popclient.message import MessageQueue
from popclient.spark.queue.offsets import Range

# A task costs Spark some 30 ms, whatever it reads; a queue with fewer messages shares one with others.
MESSAGES_PER_PARTITION: Final = 25_000


def fair_shares(backlog: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """How many messages of each queue: one of each that has any, even beyond the limit, so that none waits for ever;
    the rest in proportion to what waits. They add up to the limit, or to the backlog where that is less.
    """
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    if sum(waiting.values()) <= limit:
        return waiting
    total = sum(waiting.values())
    shares = {queue: max(1, limit * count // total) for queue, count in waiting.items()}
    # By rounding the sum is off by less than there are queues; those with the largest shares make it good.
    off = limit - sum(shares.values())
    for queue in sorted(waiting, key=lambda each: (-waiting[each], each)):
        shares[queue], before = min(max(1, shares[queue] + off), waiting[queue]), shares[queue]
        off -= shares[queue] - before
    return shares


def partitioned(found: Sequence[Range], min_partitions: int) -> list[tuple[Range, ...]]:
    """The ranges, dealt out to tasks: few, unless more are asked for than there are queues; then large ones are split.

    Unless it is split a queue is read by one task, in its order.
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
    """Of equal size, as many as the range's share of what is wanted."""
    count = min(max(1, -(-wanted * whole.size // total)), whole.size)
    edges = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [Range(whole.queue, start, end) for start, end in pairwise(edges)]


def _dealt_out(pieces: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """The largest first, each to whoever has least."""
    count = min(count, len(pieces))
    hands: list[list[Range]] = [[] for _ in range(count)]
    sizes = [0] * count
    for piece in sorted(pieces, key=lambda each: (-each.size, each)):
        least = sizes.index(min(sizes))
        hands[least].append(piece)
        sizes[least] += piece.size
    return [tuple(sorted(hand)) for hand in hands]
