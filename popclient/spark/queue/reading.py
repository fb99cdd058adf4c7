"""Reads ranges of queues by bulk pulls, or message by message, and detects messages that were removed.

Retention may remove messages from the beginning of a queue while it is read. If messages of the batch are gone, the
query fails, or it logs a warning: see the option failOnDataLoss.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from popclient._queues.pull import Pulled
from popclient._queues.pull import pull as pull_once
from popclient._session.session import Session
from popclient.errors import NotFound, UnexpectedAnswer, UnsupportedByServer
from popclient.message import MessageQueue, MessageView
from popclient.spark import bulk
from popclient.spark.link import ServerLink, link_to
from popclient.spark.message_columns import MessageColumns
from popclient.spark.queue.offsets import Range
from popclient.spark.queue.options import QueueReadOptions
from popproto.v2 import definition_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger("popclient.spark")

PULL_MAX: Final = 160  # servers give no more messages in one pull
# Offsets of one bulk pull. If a filter matches nothing, the server reads all of them before it answers.
BULK_MAX: Final = 50_000
_AT_ONCE: Final = timedelta(0)


class DataLoss(RuntimeError):
    """Messages were removed before they were read."""


class Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


class RangeReader:
    """Reads ranges into Arrow batches. Holds no connection: Spark pickles it and sends it to its workers."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = MessageColumns(schema, options.columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Ranges):  # Spark's placeholder if there are no partitions
            return
        link = link_to(self._options.server, self._options.group)
        for each in partition.ranges:
            yield from self._read_range(link, each)

    def _read_range(self, link: ServerLink, wanted: Range) -> Iterator[pa.RecordBatch]:
        position = Position(wanted, self._options.fail_on_data_loss)
        try:
            if link.offers(bulk.BULK):
                # The server may have been replaced by an older one.
                with contextlib.suppress(UnsupportedByServer):
                    yield from self._in_bulk(link, position)
            yield from self._columns.of_messages(self._message_by_message(link, position))
        except NotFound as gone:
            if gone.code != pb.TOPIC_NOT_FOUND:
                raise
            position.topic_is_gone(gone)

    def _in_bulk(self, link: ServerLink, position: Position) -> Iterator[pa.RecordBatch]:
        while not position.is_done:
            came_from = position.offset
            for chunk in bulk.pull(
                link,
                position.queue,
                position.offset,
                min(position.offset + BULK_MAX, position.end),
                expression=self._options.expression,
                columns=self._columns.sources,
            ):
                if chunk.next_offset is None:
                    position.check_ends(chunk.min_offset, chunk.max_offset)
                else:
                    if chunk.arrow:
                        yield from self._columns.of_chunk(chunk.arrow)
                    position.advance(chunk.next_offset)
            position.require_advance(came_from)

    def _message_by_message(self, link: ServerLink, position: Position) -> Iterator[MessageView]:
        while not position.is_done:
            came_from = position.offset
            pulled = link.ask(lambda session: self._pull(session, position))
            if pulled.code == pb.ILLEGAL_OFFSET and pulled.next_offset > position.offset:
                position.queue_begins_at(pulled.next_offset)
            elif pulled.code == pb.ILLEGAL_OFFSET or pulled.next_offset == position.offset:
                position.queue_ends_at(pulled.next_offset)
            else:
                yield from (each for each in pulled.messages if each.queue_offset < position.end)
                position.advance(pulled.next_offset)
            position.require_advance(came_from)

    async def _pull(self, session: Session, position: Position) -> Pulled:
        return await pull_once(
            session,
            self._options.group,
            position.queue,
            position.offset,
            batch_size=min(PULL_MAX, position.end - position.offset),
            expression=self._options.expression,
            hold=_AT_ONCE,
        )


class Position:
    """How far a range has been read. Raises `DataLoss`, or warns, for messages that are gone."""

    def __init__(self, wanted: Range, fail_on_data_loss: bool) -> None:
        self.queue: MessageQueue = wanted.queue
        self.offset = wanted.start
        self.end = wanted.end
        self._fail_on_data_loss = fail_on_data_loss

    @property
    def is_done(self) -> bool:
        return self.offset >= self.end

    def advance(self, offset: int) -> None:
        self.offset = max(self.offset, offset)

    def require_advance(self, came_from: int) -> None:
        if self.offset == came_from and not self.is_done:
            raise UnexpectedAnswer(f"a pull of queue {self.queue} at offset {came_from} has made no progress")

    def check_ends(self, min_offset: int, max_offset: int) -> None:
        if min_offset > self.offset:
            self.queue_begins_at(min_offset)
        if max_offset < self.end:
            self.queue_ends_at(max_offset)

    def queue_begins_at(self, min_offset: int) -> None:
        """The queue begins at this offset."""
        gone = min(min_offset, self.end) - 1
        self._lost(f"offsets {self.offset} to {gone} were removed, and the queue begins at {min_offset}")
        self.advance(min_offset)

    def queue_ends_at(self, max_offset: int) -> None:
        """The queue ends at this offset, before the planned end: the topic was recreated."""
        self._lost(f"it ends at {max_offset}, before offset {self.end - 1}: the topic was recreated")
        self.end = max(max_offset, 0)

    def topic_is_gone(self, gone: NotFound) -> None:
        self._lost(f"offsets {self.offset} to {self.end - 1} are gone with their topic ({gone.sentence})")

    def _lost(self, what: str) -> None:
        sentence = f"of topic {self.queue.topic}, queue {self.queue.queue_id}: {what}"
        report_loss(sentence, fail=self._fail_on_data_loss)


def report_loss(sentence: str, *, fail: bool) -> None:
    """Raises DataLoss, or logs a warning."""
    if fail:
        raise DataLoss(f"{sentence}; set option failOnDataLoss=false to continue without them")
    log.warning("%s; failOnDataLoss is false, so the query continues without them", sentence)
