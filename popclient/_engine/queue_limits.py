"""When a queue is not pulled for now: too much of it is in this client's hands (requirements C1 to C5).

Looked at before each pull, so what is cached may pass a limit by one pull's batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from popclient._arguments import require_within
from popclient._queues.message_queue import MessageQueue
from popclient._queues.process_queue import Cached

MIB: Final = 1024 * 1024
OFF: Final = -1
FLOW_CONTROL_PAUSE: Final = 0.05  # seconds until the next look
WARN_EACH: Final = 1_000
COUNT_MAX: Final = 65_535
COUNT_OF_TOPIC_MAX: Final = 6_553_500
SIZE_MAX: Final = 1_024
SIZE_OF_TOPIC_MAX: Final = 102_400


class Exceeded(StrEnum):
    """Which limit holds the queue back."""

    COUNT = "COUNT"
    SIZE = "SIZE"
    SPAN = "SPAN"


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """What may be cached of one queue; sizes are in MiB, as the field counts them.

    The topic's thresholds, unless -1, take the place of the queue's: they are divided among the queues that are owned.
    consume_concurrently_max_span: between the first and the last offset; without a meaning in order.
    """

    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_queue: int = 100
    pull_threshold_for_topic: int = OFF
    pull_threshold_size_for_topic: int = OFF
    consume_concurrently_max_span: int = 2_000

    def __post_init__(self) -> None:
        require_within("pull_threshold_for_queue", self.pull_threshold_for_queue, 1, COUNT_MAX)
        require_within("pull_threshold_size_for_queue", self.pull_threshold_size_for_queue, 1, SIZE_MAX)
        require_within("consume_concurrently_max_span", self.consume_concurrently_max_span, 1, COUNT_MAX)
        _require_for_topic("pull_threshold_for_topic", self.pull_threshold_for_topic, COUNT_OF_TOPIC_MAX)
        _require_for_topic("pull_threshold_size_for_topic", self.pull_threshold_size_for_topic, SIZE_OF_TOPIC_MAX)

    def of_queue(self, owned_queues: int) -> FlowLimits:
        """These limits, with those of the topic divided among so many queues of it; at least 1 is left to each."""
        if owned_queues < 1:
            return self
        return replace(
            self,
            pull_threshold_for_queue=min(
                _share(self.pull_threshold_for_topic, owned_queues, self.pull_threshold_for_queue), COUNT_MAX
            ),
            pull_threshold_size_for_queue=min(
                _share(self.pull_threshold_size_for_topic, owned_queues, self.pull_threshold_size_for_queue), SIZE_MAX
            ),
        )

    def exceeded(self, cached: Cached, *, orderly: bool) -> Exceeded | None:
        """What keeps the queue from being pulled; None if it may be."""
        if cached.messages > self.pull_threshold_for_queue:
            return Exceeded.COUNT
        if cached.bytes > self.pull_threshold_size_for_queue * MIB:
            return Exceeded.SIZE
        if not orderly and cached.span > self.consume_concurrently_max_span:
            return Exceeded.SPAN
        return None

    def sentence(self, mq: MessageQueue, cached: Cached, exceeded: Exceeded, times: int) -> str:
        """For the log: what is cached, which limit it passes, and how often so far."""
        limits: Mapping[Exceeded, str] = {
            Exceeded.COUNT: f"pull_threshold_for_queue {self.pull_threshold_for_queue}",
            Exceeded.SIZE: f"pull_threshold_size_for_queue {self.pull_threshold_size_for_queue} MiB",
            Exceeded.SPAN: f"consume_concurrently_max_span {self.consume_concurrently_max_span}",
        }
        return (
            f"{mq} is not pulled for now: {cached.messages} messages, {cached.bytes} bytes, offsets"
            f" {cached.first_offset} to {cached.last_offset} are cached, beyond {limits[exceeded]};"
            f" {times} times so far; the listener is slower than the queue fills"
        )


class FlowTimes:
    """How often each limit was passed; which of these times are worth a line in the log (requirement C4)."""

    def __init__(self) -> None:
        self._times = dict.fromkeys(Exceeded, 0)

    def hit(self, exceeded: Exceeded) -> bool:
        """Counts one more. True for the 1st, the 1001st, the 2001st and so on."""
        self._times[exceeded] += 1
        return self._times[exceeded] % WARN_EACH == 1

    def times(self, exceeded: Exceeded) -> int:
        return self._times[exceeded]


def _share(threshold: int, queues: int, otherwise: int) -> int:
    return otherwise if threshold == OFF else max(1, threshold // queues)


def _require_for_topic(name: str, given: int, most: int) -> None:
    if given != OFF:
        require_within(name, given, 1, most)
