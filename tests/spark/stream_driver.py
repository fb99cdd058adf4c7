"""A driver that reads a topic into a table, in one of the modes `lease` and `journal`, and dies on its way:

    python -m tests.spark.stream_driver MODE ENDPOINT TOPIC FOLDER POINT [POINT …]

It dies once at each point, one run after the other, with everything it has started; its process must lead a group of
its own. The table FOLDER/rows.db gets a batch's rows and its number in one transaction, and so has it once.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popclient.spark import session
from popclient.spark.bulk import HeldMessages
from popclient.spark.journal.folder import Journal
from popclient.spark.journal.source import JournalStream
from popclient.spark.lease.holding import LeaseCalls, LeaseKeeper
from popclient.spark.lease.source import LeaseStream
from pyspark_popmq import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

MESSAGES_PER_BATCH = 100


def die(point: str) -> None:
    """With the group of the driver, from whichever process of it; once."""
    marker = Path(os.environ["DYING_FOLDER"]) / f"died at {point}"
    if point in os.environ["DYING_POINTS"].split() and not marker.exists():
        marker.touch()
        os.killpg(int(os.environ["DYING_GROUP"]), signal.SIGKILL)


class _Dying:
    """The calls that both kinds of readers get from Spark."""

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        offset: dict[str, Any] = super().latestOffset(start, limit)
        if offset != start:
            die("before-wal")
        return offset

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found: Sequence[InputPartition] = super().partitions(start, end)
        if found:
            die("planned")
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch.slice(0, 10)
            die("read")
            yield batch.slice(10)


class DyingJournal(Journal):
    def append(self, messages: Sequence[pa.RecordBatch]) -> None:
        die("before-journal")
        super().append(messages)
        die("before-ack")

    def remove(self, end: int) -> None:
        super().remove(end)
        if end:
            die("removed")


class DyingJournalStream(_Dying, JournalStream):
    def _opened(self) -> Journal:
        if self._journal is None:
            super()._opened().__class__ = DyingJournal
        return super()._opened()


class DyingHolds(LeaseCalls):
    def receive(self, attempt_id: str, max_messages: int) -> HeldMessages:
        held = super().receive(attempt_id, max_messages)
        if held.messages:
            die("received")
        return held

    def ack(self, attempt_id: str) -> None:
        die("before-ack")
        super().ack(attempt_id)
        die("acked")


class DyingLeaseStream(_Dying, LeaseStream):
    def _held(self) -> LeaseKeeper:
        if self._keeper is None:
            super()._held()._holds.__class__ = DyingHolds
        return super()._held()


class DyingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        reader = super().streamReader(schema)
        kind = DyingJournalStream if isinstance(reader, JournalStream) else DyingLeaseStream
        dying = kind.__new__(kind)
        vars(dying).update(vars(reader))
        return dying


def store(folder: Path, frame: DataFrame, batch_id: int) -> None:
    """The rows and the number of their batch, in one transaction; a batch that is there stays as it is."""
    rows = [(row.message_id, bytes(row.body).decode()) for row in frame.select("message_id", "body").collect()]
    with sqlite3.connect(folder / "rows.db") as table:
        table.execute("CREATE TABLE IF NOT EXISTS batch (number PRIMARY KEY)")
        table.execute("CREATE TABLE IF NOT EXISTS row (message_id, body)")
        if table.execute("INSERT OR IGNORE INTO batch VALUES (?)", [batch_id]).rowcount:
            table.executemany("INSERT INTO row VALUES (?, ?)", rows)
    table.close()
    if rows:
        die("sunk")


def main(mode: str, endpoint: str, topic: str, folder: Path) -> None:
    spark = session("dying", memory="512m")
    spark.dataSource.register(DyingSource)
    options = {
        "mode": mode,
        "endpoints": endpoint,
        "topic": topic,
        "consumerGroup": "g",
        "maxMessagesPerTrigger": str(MESSAGES_PER_BATCH),
        **(
            {"leaseOwner": "dying"}
            if mode == "lease"
            else {"journalPath": str(folder / "journal"), "quietPeriod": "1s"}
        ),
    }
    frame = spark.readStream.format("dying").options(**options).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, number: store(folder, batch, number))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    given_mode, given_endpoint, given_topic, given_folder, *points = sys.argv[1:]
    os.environ.update(DYING_FOLDER=given_folder, DYING_POINTS=" ".join(points), DYING_GROUP=str(os.getpgrp()))
    from tests.spark import stream_driver  # the classes must have a name that workers can import

    stream_driver.main(given_mode, given_endpoint, given_topic, Path(given_folder))
