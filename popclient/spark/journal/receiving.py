"""Fills the journal: the listener of a push consumer appends messages, so only durable messages are acked.

If the journal is full or cannot be written, the consumer is closed: it gives back the messages that the listener has
not begun, so no attempt is counted while the journal is full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from popclient._sync.push_consumer import PushConsumer
from popclient.listening import ConsumeResult
from popclient.message import MessageView
from popclient.spark.journal.folder import Journal, JournalFailed
from popclient.spark.journal.options import JournalOptions
from popclient.spark.message_columns import KEPT, KEPT_COLUMNS, MessageColumns

# Listeners that wait for the same fsync.
CONCURRENCY: Final = 32
BATCH_MESSAGES: Final = 1_000
CACHED_MESSAGES: Final = 4_000
DRAIN_S: Final = 10.0
# A restart of the server takes less than this.
AWAY_S: Final = 60.0
# A segment has all columns, because a later query may ask for others.
ALL_COLUMNS: Final = pa.schema([(name, source.type) for name, source in KEPT.items()])


class JournalWriter:
    """Receives into a journal, from the first `tend` on."""

    def __init__(self, options: JournalOptions, journal: Journal) -> None:
        self._options = options
        self._journal = journal
        self._columns = MessageColumns(from_arrow_schema(ALL_COLUMNS), KEPT_COLUMNS)
        self._committed = 0
        self._consumer: PushConsumer | None = None
        self._full = threading.Event()
        self._stored_until_ms: int | None = None
        self._busy_at = time.monotonic()
        self._healthy_at = time.monotonic()

    def tend(self, committed: int) -> None:
        """Receives if there is room; Spark has committed the segments up to this one.

        Raises JournalFailed, and PopError if the server refuses: the first receive, or one later.
        """
        self._committed = committed
        if self._consumer is not None:
            self._consumer.raise_refusal()
        if self._journal.failure is not None:
            self.close()
            raise self._journal.failure
        if self._consumer is not None and self._full.is_set() and self._has_room:
            self.close()
        if self._consumer is None and self._has_room:
            self._open()

    def close(self) -> None:
        """Gives back messages that are not in the journal, and waits for the acks of the others."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # ---- The end of an availableNow query ----

    def stop_after(self, stored_until_ms: int) -> None:
        """Messages stored later than this, epoch milliseconds, do not keep it from being quiet."""
        self._stored_until_ms = stored_until_ms
        self._busy_at = time.monotonic()

    @property
    def is_quiet(self) -> bool:
        """Has no message from before the query's start come for a while? Raises ConnectionError without a server."""
        now = time.monotonic()
        if self._consumer is None or self._full.is_set():
            self._busy_at = self._healthy_at = now
        elif self._consumer.healthy:
            self._healthy_at = now
        else:
            self._busy_at = now
        if now - self._healthy_at > AWAY_S:
            raise ConnectionError(
                f"no server at {self._options.server.endpoints} for {AWAY_S:.0f} s; what was received is in the"
                f" journal at {self._journal.path}: start the query again when the server is back"
            )
        return now - self._busy_at > self._options.quiet_ms / 1_000

    # ---- The consumer ----

    @property
    def _has_room(self) -> bool:
        return self._journal.bytes_after(self._committed) < self._options.max_bytes

    def _open(self) -> None:
        self._full.clear()
        self._consumer = PushConsumer(
            self._options.server,
            self._options.group,
            dict(self._options.topics),
            self._listen,
            batch_size=BATCH_MESSAGES,
            concurrency=CONCURRENCY,
            max_cached_messages=CACHED_MESSAGES,
            drain_timeout=DRAIN_S,
        )
        self._consumer.start()
        self._busy_at = self._healthy_at = time.monotonic()

    def _listen(self, messages: Sequence[MessageView]) -> ConsumeResult:
        self._note(messages)
        try:
            for batch in self._columns.of_messages(messages):  # one by one, because decompressed bodies may be large
                self._journal.append([batch])
        except JournalFailed:
            self._end_consumer()
            return ConsumeResult.FAILURE
        except Exception as error:  # noqa: BLE001  it ends the query; in a listener it would only use up attempts
            self._journal.fail(error)
            self._end_consumer()
            return ConsumeResult.FAILURE
        if not self._has_room:
            self._end_consumer()
        return ConsumeResult.SUCCESS

    def _end_consumer(self) -> None:
        """Called in the listener: the consumer ends when the listener has returned; `tend` waits for that."""
        self._full.set()
        if (consumer := self._consumer) is not None:
            consumer.close()

    def _note(self, messages: Sequence[MessageView]) -> None:
        until_ms = self._stored_until_ms
        stored = (message.store_timestamp for message in messages)
        if until_ms is None or any(at is None or at.timestamp() * 1_000 <= until_ms for at in stored):
            self._busy_at = time.monotonic()
