"""A segment: some messages in an Arrow file that is never changed.

The file name has the segment's number, which is the stream's offset, and the number of messages:
`000000000042-250.arrow`. The file is written under another name and renamed when it is durable, so it is always whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
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
