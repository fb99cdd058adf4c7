"""What queue consumers have done lately, by topic, and by topic and group for a whole process (requirement B20)."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple
from weakref import WeakSet

from popclient._engine.clock import Clock

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


class Sum(NamedTuple):
    """The sum of the amounts of the last 60 seconds, and their number."""

    total: float
    times: int

    @property
    def per_second(self) -> float:
        return self.total / WINDOW

    @property
    def average(self) -> float:
        return self.total / self.times if self.times else 0.0


class Series:
    """Amounts of the last 60 seconds, added up for each second."""

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

    def sum(self, now: float) -> Sum:
        self._forget(now)
        return Sum(sum(total for _, total, _ in self._seconds), sum(times for _, _, times in self._seconds))

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

    def sums(self, now: float) -> list[Sum]:
        """Pulls' milliseconds, messages pulled, calls' milliseconds, messages done, messages failed, failed ever."""
        series = (self.pull_rt, self.pulled, self.consume_rt, self.consumed_ok, self.consumed_failed)
        return [*(each.sum(now) for each in series), Sum(self.failed_msgs, 0)]


def _together(group: str, topic: str, several: Iterable[list[Sum]]) -> TopicStatistics:
    pull_rt, pulled, consume_rt, consumed_ok, consumed_failed, failed = (
        Sum(sum(each.total for each in kind), sum(each.times for each in kind)) for kind in zip(*several, strict=True)
    )
    return TopicStatistics(
        group,
        topic,
        pull_rt=pull_rt.average,
        pull_tps=pulled.per_second,
        consume_rt=consume_rt.average,
        consume_ok_tps=consumed_ok.per_second,
        consume_failed_tps=consumed_failed.per_second,
        consume_failed_msgs=int(failed.total),
    )


_of_process: WeakSet[Statistics] = WeakSet()
_of_process_mutex = threading.Lock()


def consumer_statistics() -> dict[str, TopicStatistics]:
    """What QueuePushConsumers, and PullConsumers with a listener, of this process have done: by "topic@group"."""
    with _of_process_mutex:
        consumers = list(_of_process)
    by_key: defaultdict[tuple[str, str], list[list[Sum]]] = defaultdict(list)
    for consumer in consumers:
        for topic, sums in consumer.sums().items():
            by_key[topic, consumer.group].append(sums)
    return {f"{topic}@{group}": _together(group, topic, several) for (topic, group), several in sorted(by_key.items())}


class Statistics:
    """What one consumer has done. Safe in threads."""

    def __init__(self, group: str, clock: Clock) -> None:
        self.group = group
        self._clock = clock
        self._mutex = threading.Lock()
        self._topics: defaultdict[str, _OfTopic] = defaultdict(_OfTopic)
        with _of_process_mutex:
            _of_process.add(self)

    def pulled(self, topic: str, seconds: float, messages: int) -> None:
        """Counts a pull that was answered."""
        now = self._clock.now()
        with self._mutex:
            self._topics[topic].pull_rt.add(now, seconds * 1_000)
            self._topics[topic].pulled.add(now, messages)

    def consumed(self, topic: str, seconds: float, ok: int, failed: int) -> None:
        """Counts a call of the listener that has ended."""
        now = self._clock.now()
        with self._mutex:
            self._topics[topic].consume_rt.add(now, seconds * 1_000)
            self._topics[topic].consumed_ok.add(now, ok)
            self._topics[topic].consumed_failed.add(now, failed)
            self._topics[topic].failed_msgs += failed

    def sums(self) -> dict[str, list[Sum]]:
        """By topic."""
        now = self._clock.now()
        with self._mutex:
            return {topic: of.sums(now) for topic, of in sorted(self._topics.items())}

    def by_topic(self) -> dict[str, TopicStatistics]:
        return {topic: _together(self.group, topic, [sums]) for topic, sums in self.sums().items()}
