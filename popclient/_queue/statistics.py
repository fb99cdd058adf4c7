"""What a queue consumer has done lately, by topic (mission row B20)."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import Final, NamedTuple

from popclient._queue.clock import Clock

WINDOW: Final = 60  # seconds that a rate looks back


class TopicStatistics(NamedTuple):
    """One topic of one group, over the last 60 seconds.

    pull_rt, consume_rt: milliseconds of a pull, held ones included, and of a call of the listener; 0 without any.
    pull_tps, consume_ok_tps, consume_failed_tps: messages per second.
    consume_failed_msgs: messages that have failed since the start.
    """

    group: str
    topic: str
    pull_rt: float
    pull_tps: float
    consume_rt: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_failed_msgs: int


class Series:
    """Amounts of the last 60 seconds, kept by the second."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, float, int]] = deque()  # second, sum of amounts, how many

    def add(self, now: float, amount: float) -> None:
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            _, total, times = self._seconds.pop()
        else:
            total, times = 0.0, 0
        self._seconds.append((second, total + amount, times + 1))
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        return sum(total for _, total, _ in self._seconds) / WINDOW

    def average(self, now: float) -> float:
        self._forget(now)
        times = sum(times for _, _, times in self._seconds)
        return sum(total for _, total, _ in self._seconds) / times if times else 0.0

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= now - WINDOW:
            self._seconds.popleft()


class _OfTopic:
    def __init__(self) -> None:
        self.pull_rt = Series()
        self.pulled = Series()
        self.consume_rt = Series()
        self.consumed_ok = Series()
        self.consumed_failed = Series()
        self.failed_msgs = 0


class Statistics:
    """Of one consumer. Safe in threads."""

    def __init__(self, group: str, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._mutex = threading.Lock()
        self._topics: defaultdict[str, _OfTopic] = defaultdict(_OfTopic)

    def pulled(self, topic: str, seconds: float, messages: int) -> None:
        """A pull was answered."""
        now = self._clock.now()
        with self._mutex:
            self._topics[topic].pull_rt.add(now, seconds * 1_000)
            self._topics[topic].pulled.add(now, messages)

    def consumed(self, topic: str, seconds: float, ok: int, failed: int) -> None:
        """A call of the listener has ended."""
        now = self._clock.now()
        with self._mutex:
            self._topics[topic].consume_rt.add(now, seconds * 1_000)
            self._topics[topic].consumed_ok.add(now, ok)
            self._topics[topic].consumed_failed.add(now, failed)
            self._topics[topic].failed_msgs += failed

    def by_topic(self) -> dict[str, TopicStatistics]:
        now = self._clock.now()
        with self._mutex:
            return {
                topic: TopicStatistics(
                    self._group,
                    topic,
                    pull_rt=of.pull_rt.average(now),
                    pull_tps=of.pulled.per_second(now),
                    consume_rt=of.consume_rt.average(now),
                    consume_ok_tps=of.consumed_ok.per_second(now),
                    consume_failed_tps=of.consumed_failed.per_second(now),
                    consume_failed_msgs=of.failed_msgs,
                )
                for topic, of in sorted(self._topics.items())
            }
