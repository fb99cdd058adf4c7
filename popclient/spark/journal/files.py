"""The files of a journal: segments, and the ids of messages of removed segments.

A segment is an Arrow file with some messages that is never changed. The file name has the segment's number, which is
the stream's offset, and the number of messages: `000000000042-250.arrow`. Files are written under another name and
renamed when they are durable, so they are always whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import pyarrow as pa

from popclient.offset_file import sync_folder

_NAME: Final = re.compile(r"(\d{12,})-(\d+)\.arrow")
_UNFINISHED: Final = ".tmp"


class Segment(NamedTuple):
    """seq: counts from 1 without gaps. bytes: the size of the file."""

    seq: int
    messages: int
    bytes: int
    path: Path


def name_of(seq: int, messages: int) -> str:
    return f"{seq:012d}-{messages}.arrow"


def segment_at(path: Path) -> Segment | None:
    """The segment in a file; None if it is another file, or an unfinished segment."""
    named = _NAME.fullmatch(path.name)
    return Segment(int(named[1]), int(named[2]), path.stat().st_size, path) if named else None


def write(folder: Path, seq: int, messages: pa.Table) -> Segment:
    """Writes a segment, durable on return; raises OSError."""
    path = folder / name_of(seq, messages.num_rows)
    write_durably(path, lambda file: _write_arrow(file, messages))
    return Segment(seq, messages.num_rows, path.stat().st_size, path)


def _write_arrow(file: IO[bytes], messages: pa.Table) -> None:
    with pa.ipc.new_stream(file, messages.schema) as writer:
        writer.write_table(messages)


def open_chunk(path: str) -> pa.Buffer:
    """The Arrow IPC stream of a segment, unread. Raises OSError."""
    with pa.memory_map(path) as file:
        return file.read_buffer()


def read_columns(path: Path, names: Sequence[str]) -> pa.Table:
    """Reads only these columns. Raises OSError, ArrowException."""
    chunk = open_chunk(str(path))
    schema = pa.ipc.open_stream(chunk).schema
    chosen = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
    return pa.ipc.open_stream(chunk, options=chosen).read_all()


# ---- Durable files ----


def write_durably(path: Path, write_to: Callable[[IO[bytes]], object]) -> None:
    """Writes a file that is durable on return; it exists whole or not at all. Raises OSError."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            write_to(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)  # the disk may be full
        raise
    sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Removes files that a crash has left unfinished."""
    for torn in folder.glob(f"*{_UNFINISHED}"):
        torn.unlink()


def make_folder(folder: Path) -> None:
    """Creates the folder and its missing parents, durable on return; raises OSError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)


# ---- Ids ----

# The ids of removed segments are in files, one for each removal, named after its newest segment: `000000000042.ids`, a
# JSON list. The newest of these files always stays, because its number is the last one of an empty journal.

_IDS_NAME: Final = re.compile(r"(\d{12,})\.ids")


class SeenIds:
    """The ids of the newest segments, of `window` messages or up to a segment more; with 0 it keeps none.

    It drops the ids of old segments even if Spark has not read them yet.
    """

    def __init__(self, folder: Path, window: int) -> None:
        self._folder = folder
        self.window = window
        self._by_seq: dict[int, list[str]] = {}
        self._known: set[str] = set()
        self._files: list[int] = []

    def load(self) -> None:
        """Reads the ids of removed segments."""
        self._files = sorted(
            int(named[1]) for path in self._folder.iterdir() if (named := _IDS_NAME.fullmatch(path.name))
        )
        for seq in self._files:
            self.add(seq, json.loads(self._path(seq).read_bytes()))

    @property
    def last_removed(self) -> int:
        """The newest removed segment; 0 if there is none."""
        return self._files[-1] if self._files else 0

    def __contains__(self, message: str) -> bool:
        return message in self._known

    def add(self, seq: int, messages: Iterable[str]) -> None:
        """Adds the messages of a segment, each by its `identity`."""
        if self.window:
            ids = self._by_seq[seq] = list(messages)
            self._known.update(ids)
            self._forget_oldest()

    def keep(self, first: int, last: int) -> None:
        """Writes the ids of segments that will be removed next; raises OSError."""
        ids = [identity for seq in range(first, last + 1) for identity in self._by_seq.get(seq, ())]
        write_durably(self._path(last), lambda file: file.write(json.dumps(ids).encode()))
        self._files.append(last)
        oldest_known = next(iter(self._by_seq), last + 1)
        while len(self._files) > 1 and self._files[0] < oldest_known:
            self._path(self._files.pop(0)).unlink()

    def _forget_oldest(self) -> None:
        """Drops the oldest segments that the window does not need."""
        while len(self._known) - len(self._by_seq[oldest := next(iter(self._by_seq))]) >= self.window:
            self._known.difference_update(self._by_seq.pop(oldest))

    def _path(self, seq: int) -> Path:
        return self._folder / f"{seq:012d}.ids"


def identity(topic: str, message_id: str) -> str:
    """Unique for a message, because names of topics have no slash."""
    return f"{topic}/{message_id}"
