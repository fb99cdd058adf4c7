"""The share of retries among a group's deliveries (requirement L16).

Retries are for rare failures of single messages. A group that fails many messages uses retries as a throttle, and each
attempt has a cost. The counts are of this server and of the last 30 to 60 minutes; a restart resets them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from popserver.engine.meters import Delivered, Tallies
from popserver.model.message import Delivery, HeldMessage
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS

SPAN_MS = 30 * MINUTE_MS
# With fewer deliveries the share is not significant.
DELIVERIES_MIN = 20
RATIO_MAX = 0.1

_Counts = dict[int, list[int]]


class Share(NamedTuple):
    """Of the `deliveries` in the last `over_ms`, `retries` were a second or later attempt."""

    deliveries: int
    retries: int
    over_ms: int

    @property
    def ratio(self) -> float:
        return self.retries / self.deliveries if self.deliveries else 0.0

    @property
    def is_high(self) -> bool:
        return self.deliveries >= DELIVERIES_MIN and self.ratio > RATIO_MAX


class Redeliveries:
    """Counts per group, in two spans of 30 minutes: the current one and the one before."""

    def __init__(self, now_ms: int, delivered: Tallies[tuple[int, int], Delivered]) -> None:
        """`delivered`: the server's counts by group id and topic id, which this adds to."""
        self._since_ms = self._before_ms = now_ms
        self._running: _Counts = {}
        self._before: _Counts = {}
        self._delivered = delivered

    def count(self, group_id: int, topic_id: int, deliveries: Sequence[Delivery], now_ms: int) -> None:
        """Count deliveries whose messages are in the answer."""
        if now_ms - self._since_ms >= SPAN_MS:
            self._move_on(now_ms)
        counts = self._running.get(group_id)
        if counts is None:
            counts = self._running[group_id] = [0, 0]
        counts[0] += len(deliveries)
        counted = self._delivered[group_id, topic_id]
        counted.holds += len(deliveries)
        delays, limits = counted.delays.counts, counted.delays.limits
        for each in deliveries:
            stored = each.stored
            if each.attempt > 1:
                counts[1] += 1
                counted.retries += 1
                counted.retry_bytes += len(stored.message.body)
            else:
                delay_ms = now_ms - stored.stored_at_ms
                delays[bisect_left(limits, delay_ms)] += 1
                counted.delays.total += delay_ms
                counted.bytes += len(stored.message.body)

    def count_held(self, group_id: int, topic_id: int, held: Sequence[HeldMessage], now_ms: int) -> None:
        """Count messages that are granted now, and whose bodies are read later (`count_bytes`)."""
        if now_ms - self._since_ms >= SPAN_MS:
            self._move_on(now_ms)
        retries = sum(each.attempt > 1 for each in held)
        counts = self._running.setdefault(group_id, [0, 0])
        counts[0] += len(held)
        counts[1] += retries
        counted = self._delivered[group_id, topic_id]
        counted.holds += len(held)
        counted.held += len(held) - retries
        counted.retries += retries

    def count_bytes(self, group_id: int, topic_id: int, attempts: Iterable[int], sizes: Iterable[int]) -> None:
        """Count the bodies of messages that `count_held` has counted; each has an attempt and a size."""
        counted = self._delivered[group_id, topic_id]
        for attempt, size in zip(attempts, sizes, strict=True):
            if attempt > 1:
                counted.retry_bytes += size
            else:
                counted.bytes += size

    def count_pulled(self, group_id: int, topic_id: int, messages: int, size: int) -> None:
        """Count messages of a bulk pull that are sent now. Which of them are retries is unknown."""
        counted = self._delivered[group_id, topic_id]
        counted.held += messages
        counted.bytes += size

    def share(self, group_id: int, now_ms: int) -> Share:
        self._move_on(now_ms)
        nothing = [0, 0]
        running, before = self._running.get(group_id, nothing), self._before.get(group_id, nothing)
        return Share(running[0] + before[0], running[1] + before[1], now_ms - self._before_ms)

    def high(self, now_ms: int) -> list[int]:
        """The ids of the groups whose share of retries is too high."""
        groups = {*self._running, *self._before}
        return sorted(each for each in groups if self.share(each, now_ms).is_high)

    def _move_on(self, now_ms: int) -> None:
        passed = (now_ms - self._since_ms) // SPAN_MS
        if passed < 1:
            return
        self._before = self._running if passed == 1 else {}
        self._before_ms = self._since_ms if passed == 1 else now_ms
        self._since_ms = now_ms
        self._running = {}


def hint(group: Resource, share: Share) -> str:
    """The hint for an operator about the share; empty if it is not too high."""
    if not share.is_high:
        return ""
    return (
        f"{share.retries} of the last {share.deliveries} deliveries to group '{group}' ({share.ratio:.0%}) were"
        " retries; retries are for rare failures of single messages, not a throttle: fix what fails, or receive fewer"
        " messages at a time"
    )
