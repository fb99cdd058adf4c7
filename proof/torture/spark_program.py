"""A Spark query that can be killed: python -m proof.torture.spark_program MODE ENDPOINTS TOPIC FOLDER.

It reads the topic into the table FOLDER/sink.db without end, and goes on where its checkpoint in FOLDER is. A batch's
rows and its number are stored in one transaction, so the table has each batch once. A JSON line on stdout says what a
batch has before it is stored, another one that it is. All of it ends with its stdin.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proof.history.spark import GROUP
from tests.support.workload import digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("queue_id", "queue_offset", "message_id", "body", "properties")
MESSAGES_PER_BATCH = 500
# What each mode needs. The lease outlasts every round, because messages of a lease that ended come to anybody.
NEEDS: dict[str, dict[str, str]] = {
    "queue": {"maxOffsetsPerTrigger": str(MESSAGES_PER_BATCH)},
    "lease": {"maxMessagesPerTrigger": str(MESSAGES_PER_BATCH), "leaseOwner": "torture", "invisibleDuration": "1h"},
    "journal": {"maxMessagesPerTrigger": str(MESSAGES_PER_BATCH)},
}
MODES = ("queue", "queue", "lease", "journal")  # as often as each is chosen
SINK = "sink.db"
_TABLES = """
CREATE TABLE IF NOT EXISTS batch (query TEXT, number INTEGER, PRIMARY KEY (query, number));
CREATE TABLE IF NOT EXISTS row (query TEXT, number INTEGER, queue INTEGER, "offset" INTEGER, message_id TEXT,
                                digest TEXT);
"""

Row = tuple[int, int, str, str]  # queue, offset, message id, digest


def main() -> None:
    mode, endpoints, topic, folder = sys.argv[1:]
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    read_on(mode, endpoints, topic, Path(folder))


def read_on(mode: str, endpoints: str, topic: str, folder: Path) -> None:
    """Until the process is killed; raises where the query fails."""
    from popclient.spark import session

    folder.mkdir(exist_ok=True)
    server = {"mode": mode, "endpoints": endpoints, "topic": topic, "consumerGroup": GROUP}
    needs = NEEDS[mode] | ({"journalPath": str(folder / "journal")} if mode == "journal" else {})
    frame = session("torture", memory="512m").readStream.format("popmq").options(**server, **needs).load()
    query = (
        frame.select(*COLUMNS)
        .writeStream.foreachBatch(lambda rows, number: sink(folder / SINK, rows, number))
        .option("checkpointLocation", checkpoint_in(folder))
        .start()
    )
    query.awaitTermination()


def checkpoint_in(folder: Path) -> str:
    return str(folder / "checkpoint")


def sink(file: Path, frame: DataFrame, number: int) -> None:
    query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
    rows = [
        (row.queue_id, row.queue_offset, row.message_id, digest(bytes(row.body), dict(row.properties)))
        for row in frame.collect()
    ]
    if rows:
        say(query=query, number=number, rows=rows)
        store(file, query, number, rows)
        say(query=query, number=number)


def store(file: Path, query: str, number: int, rows: list[Row]) -> None:
    """In one transaction; a batch that is there stays as it is."""
    with closing(sqlite3.connect(file)) as table, table:
        table.executescript(_TABLES)
        table.execute("BEGIN IMMEDIATE")
        if is_new(table, query, number):
            table.executemany("INSERT INTO row VALUES (?, ?, ?, ?, ?, ?)", [(query, number, *row) for row in rows])


def is_new(table: sqlite3.Connection, query: str, number: int) -> bool:
    """Whether the sink does not have the batch; from now on it does."""
    return table.execute("INSERT OR IGNORE INTO batch VALUES (?, ?)", (query, number)).rowcount == 1


def stored_in(file: Path) -> dict[tuple[str, int], list[Row]]:
    """The rows of each batch, by query and number, in the order in which they were stored; none before the first."""
    if not file.exists():
        return {}
    found: dict[tuple[str, int], list[Row]] = {}
    with closing(sqlite3.connect(file)) as table:
        table.executescript(_TABLES)
        for query, number, *row in table.execute("SELECT * FROM row ORDER BY rowid"):
            found.setdefault((query, number), []).append((row[0], row[1], row[2], row[3]))
    return found


def say(**line: Any) -> None:
    """A line for whoever has started this."""
    sys.stdout.write(json.dumps({**line, "at_ms": time.monotonic() * 1_000}) + "\n")
    sys.stdout.flush()


def _end_with_stdin() -> None:
    """Whoever has started this is gone, and could not kill it."""
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
