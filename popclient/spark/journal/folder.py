"""The journal: a folder of segments that one query writes and reads.

`append` returns when its messages are durable. Calls that come while a segment is being written share the next segment,
and so one fsync.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from popclient.spark.journal import files
from popclient.spark.journal.files import SeenIds, Segment, identity

# After a query is stopped, its process has the lock for a moment.
LOCK_PATIENCE_S: Final = 3.0
SEGMENT_MESSAGES: Final = 10_000
_ANOTHER_JOURNAL: Final = (
    "it belongs to another journal, or files were removed; give that journal's path, or start with a new checkpoint"
)
_IDENTIFYING: Final = ("topic", "message_id")


class JournalFailed(RuntimeError):
    """The journal cannot be read or written; the error has its path and what to do."""


class Journal:
    """The journal at a path; `open` locks it for this process.

    dedupe_messages: the number of newest messages whose ids are kept. segment_messages: the limit of a segment.
    """

    def __init__(self, path: Path, dedupe_messages: int, segment_messages: int = SEGMENT_MESSAGES) -> None:
        self.path = path
        self.failure: JournalFailed | None = None
        self._segment_messages = segment_messages
        self._seen = SeenIds(path, dedupe_messages)
        self._segments: dict[int, Segment] = {}
        self._changed = threading.Condition()
        self._waiting: list[_Appended] = []
        self._writing = threading.Lock()
        self._lock = -1

    # ---- Opening ----

    def open(self, patience_s: float = LOCK_PATIENCE_S) -> None:
        """Raises JournalFailed if the folder cannot be used, or another query uses it."""
        try:
            files.make_folder(self.path)
            self._take_lock(patience_s)
            files.remove_unfinished(self.path)
            self._seen.load()
            self._load()
        except JournalFailed:
            self.close()
            raise
        except (OSError, ValueError, pa.ArrowException) as error:
            self.close()
            raise self._failed(f"cannot be opened: {error}; give a folder that the driver may write to") from error

    def _take_lock(self, patience_s: float) -> None:
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + patience_s
        while not self._try_lock():
            if time.monotonic() > deadline:
                holder = os.pread(self._lock, 64, 0).decode() or "another one"
                raise self._failed(f"is in use by process {holder}; give each query a journalPath of its own")
            time.sleep(0.1)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _load(self) -> None:
        found = sorted(filter(None, map(files.segment_at, self.path.iterdir())))
        present = [each for each in found if each.seq > self._seen.last_removed]
        for number, each in enumerate(present):
            if each.seq != present[0].seq + number:
                raise self._failed(f"has no segment {present[0].seq + number} of {each.seq}: its file was removed")
            self._segments[each.seq] = each
            self._seen.add(each.seq, _identities(files.read_columns(each.path, _IDENTIFYING)))
        for each in found[: len(found) - len(present)]:  # a crash came after its ids were written
            each.path.unlink()

    def close(self) -> None:
        """Releases the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- Writing ----

    def append(self, messages: Sequence[pa.RecordBatch]) -> None:
        """Returns when the messages are durable; drops those whose ids are known.

        Safe in threads. Raises JournalFailed, and after a failure always: the messages must not be acked.
        """
        mine = _Appended(messages)
        with self._changed:
            self._waiting.append(mine)
        with self._writing:
            if not mine.is_durable:
                self._write_all_that_waits()

    def _write_all_that_waits(self) -> None:
        if self.failure is not None:
            raise self.failure
        with self._changed:
            taken, self._waiting = self._waiting, []
        self._guarded(lambda: self._write([batch for each in taken for batch in each.messages]))
        for each in taken:
            each.is_durable = True

    def _write(self, batches: Sequence[pa.RecordBatch]) -> None:
        fresh = self._without_known(batches)
        for first in range(0, fresh.num_rows, self._segment_messages):
            part = fresh.slice(first, self._segment_messages)
            written = files.write(self.path, self.last + 1, part)
            self._seen.add(written.seq, _identities(part))
            with self._changed:
                self._segments[written.seq] = written
                self._changed.notify_all()

    def _without_known(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        table = pa.Table.from_batches(batches)
        if not self._seen.window:
            return table
        here: set[str] = set()
        is_fresh = []
        for each in _identities(table):
            is_fresh.append(each not in self._seen and each not in here)
            here.add(each)
        # Not `take`: it would join all bodies in one array, whose size is limited.
        return table if all(is_fresh) else table.filter(pa.array(is_fresh, pa.bool_()))

    # ---- Reading ----

    @property
    def last(self) -> int:
        """The number of the newest segment, removed or not; 0 in a new journal."""
        with self._changed:
            return next(reversed(self._segments), self._seen.last_removed)

    @property
    def first(self) -> int:
        """The number of the oldest segment that exists; without segments, `last` + 1."""
        with self._changed:
            return next(iter(self._segments), self._seen.last_removed + 1)

    def require(self, seq: int) -> None:
        """Raises JournalFailed unless a stream can continue after this segment."""
        if seq > self.last:
            raise self._failed(
                f"ends at segment {self.last}, and the checkpoint has read up to {seq}: {_ANOTHER_JOURNAL}"
            )
        self.between(seq, self.last)

    def between(self, start: int, end: int) -> list[Segment]:
        """The segments after `start` up to `end`; raises JournalFailed if one of them is gone."""
        with self._changed:
            missing = next((seq for seq in range(start + 1, end + 1) if seq not in self._segments), None)
            if missing is None:
                return [self._segments[seq] for seq in range(start + 1, end + 1)]
        raise self._failed(
            f"has segments {self.first} to {self.last}, and the checkpoint asks for {missing}: {_ANOTHER_JOURNAL}"
        )

    def messages_after(self, seq: int) -> int:
        return sum(each.messages for each in self.between(seq, self.last))

    def bytes_after(self, seq: int) -> int:
        return sum(each.bytes for each in self.between(seq, self.last))

    def wait_beyond(self, seq: int, timeout_s: float) -> bool:
        """Waits for a segment after this one; is there one?"""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or self.last > seq, timeout_s)
            return self.last > seq

    # ---- Removing ----

    def remove(self, end: int) -> None:
        """Removes segments up to `end`; keeps their ids."""
        first = self.first
        if end < first:
            return
        with self._writing:  # it guards the ids too
            self._guarded(lambda: self._remove(first, end))

    def _remove(self, first: int, end: int) -> None:
        self._seen.keep(first, end)
        with self._changed:
            gone = [self._segments.pop(seq) for seq in range(first, end + 1)]
        for each in gone:
            each.path.unlink(missing_ok=True)

    # ---- Failures ----

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # any: other threads wait for the same segment
            raise self.fail(error) from error

    def fail(self, error: Exception) -> JournalFailed:
        """Stops all appending, and wakes the threads that wait for a segment. Returns the failure."""
        why = error if isinstance(error, (OSError, pa.ArrowException)) else repr(error)
        self.failure = self._failed(
            f"cannot be written: {why}; messages that it does not have are not acked, and are delivered again; free"
            " disk space, or let the driver write there, and start the query again"
        )
        with self._changed:
            self._changed.notify_all()
        return self.failure

    def _failed(self, sentence: str) -> JournalFailed:
        return JournalFailed(f"the journal at journalPath='{self.path}' {sentence}")


class _Appended:
    """The messages of one call of `append`."""

    __slots__ = ("is_durable", "messages")

    def __init__(self, messages: Sequence[pa.RecordBatch]) -> None:
        self.messages = messages
        self.is_durable = False


def _identities(messages: pa.Table) -> list[str]:
    topics, message_ids = (messages.column(name).to_pylist() for name in _IDENTIFYING)
    return [identity(topic, message_id) for topic, message_id in zip(topics, message_ids, strict=True)]
