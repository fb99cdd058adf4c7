"""Sends the rows of a write, or of each batch of a query: `df.write.format("popmq")` and `df.writeStream`.

If Spark repeats a task, it sends the same messages under the same ids, and the server stores each once. So `commit` and
`abort` have nothing to do.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from popclient._producer.core import BODIES_PER_REQUEST, MESSAGES_PER_REQUEST
from popclient._sync.producer import Producer
from popclient.admin import Admin
from popclient.config import ClientConfig
from popclient.errors import BadRequest, Forbidden, PopError, Unauthorized, UnsupportedByServer
from popclient.spark.options import SERVER, OptionReader, OptionTable, text
from popclient.spark.sink.rows import Part, Row, Rows, check, in_arrow
from popclient.spark.versions import has_admission_control

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

if TYPE_CHECKING or has_admission_control():
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter

log = logging.getLogger("popclient.spark")

# What the producer gets at once; it makes several requests of it.
ROWS_AT_ONCE: Final = 1_024
BYTES_AT_ONCE: Final = 8 * 1024 * 1024

TABLE: Final = OptionTable(
    {"server": SERVER, "topic": text("topic"), "write_id": text("writeId")},
    elsewhere=(),
    of_spark=("checkpointLocation", "queryName"),
)


class SinkOptions(NamedTuple):
    """topic: for rows without a topic. write_id: the name of a write, with which it can be repeated."""

    server: ClientConfig
    topic: str | None
    write_id: str | None


def writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceArrowWriter:
    """For `df.write`. Raises `ValueError` with the option or the column, its value and what is allowed."""
    return Writer(_parse(options, overwrite), schema)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamArrowWriter:
    """For `df.writeStream`. Raises as `writer` does."""
    given = OptionReader(options)
    if "writeId" in given:
        raise given.refuse("writeId", "it is for df.write; a query has the name of its checkpoint: leave it out")
    return StreamWriter(_parse(options, overwrite), schema)


def _parse(options: Mapping[str, str], overwrite: bool) -> SinkOptions:
    if overwrite:
        raise ValueError('a topic can only be appended to; use mode("append"), or outputMode("append") of a query')
    given = OptionReader(options)
    if "url" in given:
        raise given.refuse("url", "a database can only be read; give endpoints, the server's host:port")
    return SinkOptions(**TABLE.read(options))


class NotStored(RuntimeError):
    """The server did not store a row; the error names the row and the reason."""


@dataclass
class Stored(WriterCommitMessage):
    """Messages that one task has sent, and the bytes of their bodies."""

    messages: int
    body_bytes: int


class Writer(DataSourceArrowWriter):
    """Writes one `df.write`. Holds no connection: Spark pickles it and sends it to its workers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check(schema, options.topic)
        self._options = options
        self._write_id = options.write_id or str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        return send(iterator, self._options, Part(self._write_id, 0, _task().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _report(f"write {self._write_id}", messages, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a query; Spark makes an instance for each batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check(schema, options.topic)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Spark 4.0 and 4.1 give rows."""
        task = _task()
        query, batch_id = map(task.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or batch_id is None:
            raise RuntimeError("Spark has not set the query and the batch of this task, so its messages have no ids")
        batches = iterator if has_admission_control() else in_arrow(iterator, self._schema)
        return send(batches, self._options, Part(query, int(batch_id), task.partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        _report(f"batch {batchId}", messages, self._options)


def send(batches: Iterable[pa.RecordBatch], options: SinkOptions, part: Part) -> Stored:
    """Returns when the server has stored all rows; raises `NotStored`, or `ValueError` for a row that is no message."""
    rows = Rows(options.topic, part)
    stored = Stored(0, 0)
    with Producer(options.server) as producer:
        for piece in _pieces(row for batch in batches for row in rows.of(batch)):
            results = producer.send_many(row.message for row in piece)
            for row, result in zip(piece, results, strict=True):
                if isinstance(result, PopError):
                    raise NotStored(f"{rows.name(row.number)} was not stored: {result}")
                stored.messages += 1
                stored.body_bytes += len(row.message.body)
    return stored


def _pieces(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """The rows to send together. With message groups these are one request, and the next one waits until it is stored.
    So if a request fails, later messages of a group are not stored before its messages."""
    piece: list[Row] = []
    size, in_order = 0, False
    for row in rows:
        size += len(row.message.body)
        in_order = in_order or _is_in_order(row)
        rows_max, bytes_max = (MESSAGES_PER_REQUEST, BODIES_PER_REQUEST) if in_order else (ROWS_AT_ONCE, BYTES_AT_ONCE)
        if piece and (len(piece) >= rows_max or size > bytes_max):
            yield piece
            piece, size, in_order = [], len(row.message.body), _is_in_order(row)
        piece.append(row)
    if piece:
        yield piece


def _make_topic(server: ClientConfig, topic: str) -> None:
    """If it is missing, and the user may. Raises `NotFound` if the server makes none by itself."""
    with Producer(server, topics=topic):  # looks it up
        pass
    with suppress(UnsupportedByServer, Forbidden, Unauthorized, BadRequest), Admin(server) as admin:
        admin.create_topic(topic, accept_message_types=("NORMAL", "FIFO", "DELAY", "TRANSACTION"))


def _is_in_order(row: Row) -> bool:
    return row.message.message_group is not None or row.message.lite_topic is not None


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "only Spark's workers write rows"
    return task


def _report(what: str, messages: Iterable[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Logs what was stored. If it was nothing, the topic is made, as by a write of one row."""
    tasks = [each for each in messages if isinstance(each, Stored)]
    if options.topic is not None and not any(each.messages for each in tasks):
        _make_topic(options.server, options.topic)
    log.info(
        "%s: %d messages, %d bytes, by %d tasks",
        what,
        sum(each.messages for each in tasks),
        sum(each.body_bytes for each in tasks),
        len(tasks),
    )
