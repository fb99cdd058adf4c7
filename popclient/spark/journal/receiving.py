"""Fills the journal: a push consumer whose listener appends, and so acks what is durable and nothing else.

When the journal has as much as it may, or cannot be written, the consumer is closed: it gives back what the listener
has not begun, and no attempt is burnt for the time that the journal is full.
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
from popclient.spark.message_columns import SOURCES, MessageColumns

# Listeners that wait for the same fsync. A message group is consumed by one of them at a time.
CONCURRENCY: Final = 32
BATCH_MESSAGES: Final = 1_000
CACHED_MESSAGES: Final = 4_000
DRAIN_S: Final = 10.0
# A server that is away for longer than this is more than restarted.
AWAY_S: Final = 60.0
# A segment has them all, whatever the query asks for today.
ALL_COLUMNS: Final = pa.schema([(name, source.type) for name, source in SOURCES.items()])


class JournalWriter:
    """Receives into a journal, from the first `tend` on."""

    def __init__(self, options: JournalOptions, journal: Journal) -> None:
        self._options = options
        self._journal = journal
        self._columns = MessageColumns(from_arrow_schema(ALL_COLUMNS))
        self._committed = 0
        self._consumer: PushConsumer | None = None
        self._full = threading.Event()
        self._stored_until_ms: int | None = None
        self._busy_at = time.monotonic()
        self._healthy_at = time.monotonic()

    def tend(self, committed: int) -> None:
        """Receives if there is room; Spark has committed the segments up to this one.

        Raises JournalFailed, and PopError where the server refuses.
        """
        self._committed = committed
        if self._journal.failure is not None:
            self.close()
            raise self._journal.failure
        if self._consumer is not None and self._full.is_set() and self._has_room:
            self.close()
        if self._consumer is None and self._has_room:
            self._open()

    def close(self) -> None:
        """Gives back what is not in the journal, and waits until the acks of what is are heard."""
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
        """Has nothing come for a while that was stored in time? Raises ConnectionError when the server stays away."""
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
            for batch in self._columns.of_messages(messages):  # one by one: together they may unpack to a lot
                self._journal.append([batch])
        except JournalFailed:
            self._end_consumer()
            return ConsumeResult.FAILURE
        except Exception as error:  # noqa: BLE001  it ends the query: as a failed listener it would only burn attempts, unseen
            self._journal.fail(error)
            self._end_consumer()
            return ConsumeResult.FAILURE
        if not self._has_room:
            self._end_consumer()
        return ConsumeResult.SUCCESS

    def _end_consumer(self) -> None:
        """From within the listener: it ends once this has returned; `tend` waits for that."""
        self._full.set()
        if (consumer := self._consumer) is not None:
            consumer.close()

    def _note(self, messages: Sequence[MessageView]) -> None:
        until_ms = self._stored_until_ms
        stored = (message.store_timestamp for message in messages)
        if until_ms is None or any(at is None or at.timestamp() * 1_000 <= until_ms for at in stored):
            self._busy_at = time.monotonic()
