"""Messages by offsets, as a batch and as a stream. Spark's checkpoint keeps the progress of a stream; a batch can be
read again from its two offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from popclient.message import MessageQueue
from popclient.spark.checkpoint import IdlePauses
from popclient.spark.queue import offsets
from popclient.spark.queue.ends import Ends, QueueEnds, created
from popclient.spark.queue.offsets import Offsets, QueueOffsets, fair_shares, partitioned, ranges
from popclient.spark.queue.options import QueueReadOptions
from popclient.spark.queue.progress import ProgressReporter
from popclient.spark.queue.reading import RangeReader, Ranges, report_loss
from popclient.spark.streams import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

TOPICS_AGAIN_S: Final = 5.0  # between two searches for new topics of a pattern


class QueueReader(DataSourceReader):
    """A batch. Holds no connection: Spark pickles it and sends it to its workers. It changes no group's progress."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        options.refuse_in_a_batch()
        self._options = options
        self._reader = RangeReader(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The messages between the bounds that are stored now; later ones belong to the next data frame."""
        queue_ends = QueueEnds(self._options)
        ends = queue_ends.ends(queue_ends.topics())
        starting, ending = queue_ends.at(self._options.starting, ends), queue_ends.at(self._options.ending, ends)
        found = ranges(QueueOffsets(starting), QueueOffsets(ending))
        return [Ranges(each) for each in partitioned(found, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Holds no connection: the processes that plan and read open their own."""

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
        self._queue_ends = QueueEnds(options)
        self._progress = ProgressReporter(options)
        self._now = now
        self._pauses = IdlePauses(now, sleep)
        self._initial: QueueOffsets | None = None
        self._topics: _Topics | None = None
        self._target: Mapping[MessageQueue, Ends] | None = None  # the end of an availableNow query
        self._last_plan: _LastPlan | None = None
        self._replayed: Offsets = offsets.NONE  # the end of a batch that is repeated, before the first search

    # ---- Offsets ----

    def initialOffset(self) -> dict[str, Any]:
        """As the options say. Spark asks twice and needs the same answer."""
        if self._initial is None:
            ends = self._present_ends()
            self._initial = QueueOffsets(self._queue_ends.at(self._options.starting, ends), created=created(ends))
        return offsets.written(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself while there is nothing new. Spark has committed all before `start`,
        so this is shown as the group's progress."""
        position = offsets.read(start)
        if self._target is None:
            self._pauses.wait(position.offsets)
        ends = self._present_ends()
        self._check_positions(position, ends)
        self._progress.report(
            {queue: offset for queue, offset in position.offsets.items() if _has_next_offset(position, queue, ends)}
        )
        end = self._next(position, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        is_idle = not position.leads_to(end)
        self._pauses.note(position.offsets, is_idle=is_idle)
        self._last_plan = _LastPlan(end.offsets, ends)
        return start if is_idle else offsets.written(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The ends of the queues, for the query's progress; the group; and `lag`: the messages beyond the batch."""
        there = self._ends() if self._last_plan is None else self._last_plan.ends
        planned = self._replayed if self._last_plan is None else self._last_plan.planned
        lag = sum(
            max(0, ends.max_offset - max(planned.get(queue, 0), ends.min_offset)) for queue, ends in there.items()
        )
        latest = QueueOffsets({queue: ends.max_offset for queue, ends in there.items()})
        return {**offsets.written(latest), "group": self._options.group, "lag": lag}

    # ---- A batch ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """By the two offsets; a first batch may be empty."""
        self._replayed = offsets.read(end).offsets
        found = offsets.ranges(offsets.read(start), offsets.read(end))
        return [Ranges(each) for each in partitioned(found, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark calls it for a batch when it plans the next one, so never for the last batch."""

    # ---- Planning ----

    def _present_ends(self) -> Mapping[MessageQueue, Ends]:
        return self._ends() if self._target is None else self._target

    def _ends(self) -> dict[MessageQueue, Ends]:
        now = self._now()
        if self._topics is None or now - self._topics.at >= TOPICS_AGAIN_S:
            self._topics = _Topics(self._queue_ends.topics(), now)
        return self._queue_ends.ends(self._topics.names)

    def _next(self, start: QueueOffsets, ends: Mapping[MessageQueue, Ends], limit: int | None) -> QueueOffsets:
        """The next offsets. A queue that is new, or has lost its next message, is read from its beginning."""
        begun = {
            queue: there.min_offset
            for queue, there in ends.items()
            if not (_has_next_offset(start, queue, ends) and there.min_offset <= start.offsets[queue])
        }
        froms = {queue: begun.get(queue, start.offsets.get(queue, 0)) for queue in ends}
        waiting = {queue: there.max_offset - froms[queue] for queue, there in ends.items()}
        shares = waiting if limit is None else fair_shares(waiting, limit)
        # Kept from the last offset, because a user who has lost the rights of an administrator cannot ask again.
        known = {queue.topic: start.created[queue.topic] for queue in ends if queue.topic in start.created}
        return QueueOffsets(
            {queue: froms[queue] + shares.get(queue, 0) for queue in ends}, begun, known | created(ends)
        )

    def _check_positions(self, start: QueueOffsets, ends: Mapping[MessageQueue, Ends]) -> None:
        """Fails the query, or logs a warning, if messages are gone that were next to be read."""
        for queue, offset in sorted(start.offsets.items()):
            named, there = f"of topic {queue.topic}, queue {queue.queue_id}", ends.get(queue)
            if there is None:
                self._lost(f"{named}: it is gone, and offset {offset} was next")
            elif _is_another(start, queue.topic, there):
                self._lost(f"{named}: offset {offset} was next, and the topic was recreated")
            elif offset < there.min_offset:
                self._lost(f"{named}: offsets {offset} to {there.min_offset - 1} were removed before they were read")
            elif offset > there.max_offset:
                self._lost(
                    f"{named}: it ends at {there.max_offset}, and offset {offset} was next: the topic was recreated"
                )

    def _lost(self, sentence: str) -> None:
        report_loss(sentence, fail=self._options.fail_on_data_loss)


def _has_next_offset(start: QueueOffsets, queue: MessageQueue, ends: Mapping[MessageQueue, Ends]) -> bool:
    """Does the queue still have the next offset?"""
    there, offset = ends.get(queue), start.offsets.get(queue)
    if there is None or offset is None:
        return False
    return offset <= there.max_offset and not _is_another(start, queue.topic, there)


def _is_another(start: QueueOffsets, topic: str, there: Ends) -> bool:
    """Is this another topic of the same name, made after the one that was read?"""
    before, now = start.created.get(topic), there.created_at_ms
    return before is not None and now is not None and before != now


class _Topics(NamedTuple):
    names: tuple[str, ...]
    at: float


class _LastPlan(NamedTuple):
    """The ends of the queues as they were seen last, and the end of the batch that was planned by them."""

    planned: Offsets
    ends: Mapping[MessageQueue, Ends]
