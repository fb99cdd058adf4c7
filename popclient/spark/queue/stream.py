"""A stream of messages by offsets. Spark's checkpoint is where it stands; nothing but the two offsets of a batch is
needed to read it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from popclient.message import MessageQueue
from popclient.spark.queue import offsets
from popclient.spark.queue.offsets import Offsets, QueueOffsets
from popclient.spark.queue.options import QueueReadOptions
from popclient.spark.queue.places import Ends, QueueEnds, created
from popclient.spark.queue.planning import fair_shares, partitioned
from popclient.spark.queue.progress import ProgressReporter
from popclient.spark.queue.reading import RangeReader, Ranges, report_loss

# Without a trigger of its own Spark asks some ninety times a second whether there is something new.
LOOK_AGAIN_S: Final = (0.05, 1.0)  # the first pause, and the longest that it grows to
TOPICS_AGAIN_S: Final = 5.0  # between two looks for new topics of a pattern


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Holds no connection: the processes that plan and read open their own."""

    def __init__(
        self,
        options: QueueReadOptions,
        schema: StructType,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        options.refuse_in_a_stream()
        self._options = options
        self._reader = RangeReader(options, schema)
        self._places = QueueEnds(options)
        self._mirror = ProgressReporter(options)
        self._now = now
        self._sleep = sleep
        self._initial: QueueOffsets | None = None
        self._topics: _Topics | None = None
        self._target: Mapping[MessageQueue, Ends] | None = None  # where a query of what is available now ends
        self._looked: _Looked | None = None

    # ---- Where it stands ----

    def initialOffset(self) -> dict[str, Any]:
        """Where the options say. Spark asks twice, and must hear the same."""
        if self._initial is None:
            ends = self._present_ends()
            self._initial = QueueOffsets(self._places.at(self._options.starting, ends), created=created(ends))
        return offsets.written(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself while there is nothing new. What is before `start` stands in
        Spark's commit log, so the group is told of it."""
        place = offsets.read(start)
        self._pause(place.offsets)
        ends = self._present_ends()
        self._check_there(place, ends)
        self._mirror.tell({queue: offset for queue, offset in place.offsets.items() if _is_there(place, queue, ends)})
        end = self._next(place, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        is_idle = not place.leads_to(end)
        pause = self._looked.pause if self._looked is not None and self._looked.is_idle_at(place.offsets) else None
        self._looked = _Looked(place.offsets, end.offsets, ends, self._now(), _next_pause(pause) if is_idle else None)
        return start if is_idle else offsets.written(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the queues end, for the query's progress, and `lag`: how many messages there are beyond the batch."""
        if self._looked is None:
            return None
        there, planned = self._looked.ends, self._looked.planned
        lag = sum(ends.max_offset - max(planned.get(queue, 0), ends.min_offset) for queue, ends in there.items())
        latest = QueueOffsets({queue: ends.max_offset for queue, ends in there.items()})
        return {**offsets.written(latest), "lag": lag}

    # ---- A batch ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """From the two offsets alone; a first batch may be empty."""
        found = offsets.ranges(offsets.read(start), offsets.read(end))
        return [Ranges(each) for each in partitioned(found, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark tells of a batch here when it plans the next one, and never of the last."""

    # ---- Planning ----

    def _present_ends(self) -> Mapping[MessageQueue, Ends]:
        return self._ends() if self._target is None else self._target

    def _ends(self) -> dict[MessageQueue, Ends]:
        now = self._now()
        if self._topics is None or now - self._topics.at >= TOPICS_AGAIN_S:
            self._topics = _Topics(self._places.topics(), now)
        return self._places.ends(self._topics.names)

    def _next(self, start: QueueOffsets, ends: Mapping[MessageQueue, Ends], limit: int | None) -> QueueOffsets:
        """A queue that was not there before, or has lost what was next, is read from its beginning."""
        begun = {
            queue: there.min_offset
            for queue, there in ends.items()
            if not (_is_there(start, queue, ends) and there.min_offset <= start.offsets[queue])
        }
        froms = {queue: begun.get(queue, start.offsets.get(queue, 0)) for queue in ends}
        waiting = {queue: there.max_offset - froms[queue] for queue, there in ends.items()}
        shares = waiting if limit is None else fair_shares(waiting, limit)
        # Whoever loses the rights of an administrator still knows which topics these were.
        known = {queue.topic: start.created[queue.topic] for queue in ends if queue.topic in start.created}
        return QueueOffsets(
            {queue: froms[queue] + shares.get(queue, 0) for queue in ends}, begun, known | created(ends)
        )

    def _check_there(self, start: QueueOffsets, ends: Mapping[MessageQueue, Ends]) -> None:
        """Before it is planned: what is not there any more fails the query, or is warned of."""
        for queue, offset in sorted(start.offsets.items()):
            named, there = f"of topic {queue.topic}, queue {queue.queue_id}", ends.get(queue)
            if there is None:
                self._lost(f"{named}: it is gone, and offset {offset} was next")
            elif _is_another(start, queue.topic, there):
                self._lost(f"{named}: offset {offset} was next, and the topic was made anew")
            elif offset < there.min_offset:
                self._lost(f"{named}: offsets {offset} to {there.min_offset - 1} were removed before they were read")
            elif offset > there.max_offset:
                self._lost(f"{named}: it ends at {there.max_offset}, and offset {offset} was next: it was made anew")

    def _lost(self, sentence: str) -> None:
        report_loss(sentence, fail=self._options.fail_on_data_loss)

    def _pause(self, start: Offsets) -> None:
        """Where the last look from here has found nothing: longer each time."""
        looked = self._looked
        if looked is not None and looked.pause is not None and looked.is_idle_at(start) and self._target is None:
            self._sleep(max(0.0, looked.at + looked.pause - self._now()))


def _is_there(start: QueueOffsets, queue: MessageQueue, ends: Mapping[MessageQueue, Ends]) -> bool:
    """Is the next offset one of the queue that there is now?"""
    there, offset = ends.get(queue), start.offsets.get(queue)
    if there is None or offset is None:
        return False
    return offset <= there.max_offset and not _is_another(start, queue.topic, there)


def _is_another(start: QueueOffsets, topic: str, there: Ends) -> bool:
    """A topic of the same name, made after the one that was read."""
    before, now = start.created.get(topic), there.created_at_ms
    return before is not None and now is not None and before != now


class _Topics(NamedTuple):
    names: tuple[str, ...]
    at: float


class _Looked(NamedTuple):
    """A look from `start` at where the queues end. pause: until the next one, if it has found nothing."""

    start: Offsets
    planned: Offsets
    ends: Mapping[MessageQueue, Ends]
    at: float
    pause: float | None

    def is_idle_at(self, start: Offsets) -> bool:
        return self.pause is not None and self.start == start


def _next_pause(pause: float | None) -> float:
    first, longest = LOOK_AGAIN_S
    return first if pause is None else min(pause * 2, longest)
