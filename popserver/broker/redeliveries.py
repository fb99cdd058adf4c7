"""How much of what a group is given it was given before (requirement L16).

Retries are for rare failures of single messages. A group that fails much of what it gets uses them as a throttle, and
pays for each attempt. The counts are of this server and of the last half-hour to hour; a restart forgets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from popserver.domain.bulk import Held
from popserver.domain.message import Delivery
from popserver.domain.names import Resource
from popserver.domain.retry import MINUTE_MS

SPAN_MS = 30 * MINUTE_MS
# Fewer deliveries say nothing.
DELIVERIES_MIN = 20
RATIO_MAX = 0.1

_Counts = dict[int, list[int]]


class Share(NamedTuple):
    """Of `deliveries` handed out in the last `over_ms`, `retries` were a message's second or a later attempt."""

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
    """Counts per group, in two spans of half an hour: the running one and the one before."""

    def __init__(self, now_ms: int) -> None:
        self._since_ms = self._before_ms = now_ms
        self._running: _Counts = {}
        self._before: _Counts = {}

    def count(self, group_id: int, deliveries: Sequence[Delivery | Held], now_ms: int) -> None:
        """These were handed out now."""
        self._move_on(now_ms)
        counts = self._running.get(group_id)
        if counts is None:
            counts = self._running[group_id] = [0, 0]
        counts[0] += len(deliveries)
        for each in deliveries:
            if each.attempt > 1:
                counts[1] += 1

    def share(self, group_id: int, now_ms: int) -> Share:
        self._move_on(now_ms)
        nothing = [0, 0]
        running, before = self._running.get(group_id, nothing), self._before.get(group_id, nothing)
        return Share(running[0] + before[0], running[1] + before[1], now_ms - self._before_ms)

    def high(self, now_ms: int) -> list[int]:
        """The groups whose share deserves a look."""
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
    """What an operator should know of the share; empty where it is as it should be."""
    if not share.is_high:
        return ""
    return (
        f"{share.retries} of the last {share.deliveries} deliveries to group '{group}' ({share.ratio:.0%}) were"
        " retries; they are for rare failures of single messages, not a throttle: mend what fails, or receive less at"
        " a time"
    )
