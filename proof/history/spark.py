"""A Spark query and its sink, which knows its batches: the sink has each message once, also after kills."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator

from proof.history.events import SinkRow, SparkBatch, SparkEnded, SunkBatch
from tests.support.checker import Final, History, Violation

# The group of the query. Its source acks or commits unseen by the history.
GROUP = "spark"
# The mode that reads each queue from offset to offset; the others get messages in the order in which they are ready.
ORDERED = "queue"


def of_others(final: Final) -> Final:
    """Without the states of the query's own group."""
    return dataclasses.replace(
        final,
        states=[row for row in final.states if row.group != GROUP],
        lag=[row for row in final.lag if row.group != GROUP],
    )


def each_once(history: History, final: Final) -> Iterator[Violation]:
    """The sink has what is stored, as it is stored, and nothing else (I1, I2, I5)."""
    stored = {row.message_id: SinkRow(row.queue, row.offset, row.message_id, row.digest) for row in final.stored}
    rows = [row for batch in _in_sink(history) for row in batch.rows]
    times = Counter(row.message_id for row in rows)
    for message_id in stored:
        if not times[message_id]:
            yield Violation("I1", f"{message_id} is stored and not in the sink")
        elif times[message_id] > 1:
            yield Violation("I5", f"{message_id} is {times[message_id]} times in the sink")
    for row in rows:
        if row.message_id not in stored:
            yield Violation("I2", f"the sink has {row.message_id}, which is not stored")
        elif row != stored[row.message_id]:
            yield Violation("I2", f"the sink has {row.message_id} with another place or content than is stored")


def same_again(history: History, _final: Final) -> Iterator[Violation]:
    """A batch that is repeated has the same messages, and the sink has one of those batches (I12)."""
    first: dict[tuple[str, int], Counter[SinkRow]] = {}
    for batch in [each for each in history.calls if type(each) is SparkBatch]:
        rows = Counter(batch.rows)
        if first.setdefault((batch.query, batch.number), rows) != rows:
            yield Violation("I12", f"batch {batch.number} of the query had other messages when it was repeated")
    for batch in _in_sink(history):
        if first.get((batch.query, batch.number)) != Counter(batch.rows):
            yield Violation("I12", f"batch {batch.number} in the sink has other messages than the query gave to it")


def in_order(history: History, final: Final) -> Iterator[Violation]:
    """Batch by batch, the query has each queue from its first offset on, and leaves none out (I12)."""
    begins: dict[int, int] = {}
    for stored in final.stored:
        begins.setdefault(stored.queue, stored.offset)
    came: dict[tuple[str, int], list[int]] = defaultdict(list)
    for batch in sorted(_in_sink(history), key=lambda each: each.number):
        for row in batch.rows if batch.mode == ORDERED else ():
            came[batch.query, row.queue].append(row.offset)
    for (_, queue), offsets in came.items():
        begin = begins.get(queue, 0)
        for wanted, offset in enumerate(offsets, begin):
            if offset != wanted:
                yield Violation("I12", f"the sink has offset {offset} of queue {queue} where {wanted} belongs")
                break


def lives_on(history: History, _final: Final) -> Iterator[Violation]:
    """A query outlives servers and databases that are killed (I14)."""
    for call in history.calls:
        if isinstance(call, SparkEnded):
            yield Violation("I14", f"the query ended without a kill: {call.why}")


def _in_sink(history: History) -> list[SunkBatch]:
    return [call for call in history.calls if isinstance(call, SunkBatch)]
