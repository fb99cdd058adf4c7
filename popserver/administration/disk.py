"""What readiness asks of the database, and of the disk below it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, text

FREE_BYTES_MIN = 512 * 1024 * 1024
WAL_BYTES_MAX = 512 * 1024 * 1024  # it is emptied at 16 MiB unless a reader holds it


class DiskSpace(NamedTuple):
    """Bytes of a SQLite file, of its WAL, and of their disk; None for what the system does not report."""

    file: int | None
    wal: int | None
    free: int | None
    disk: int | None


def check(conn: Connection, file: Path | None) -> DiskSpace | None:
    """Make the database answer; return the space of its `file`, if it is one of SQLite.

    Call it in a reader's thread, because both may take long.
    """
    conn.execute(text("SELECT 1"))
    return None if file is None else space_of(file)


def space_of(file: Path) -> DiskSpace:
    """The space of a SQLite file. It costs three questions to the system, however large the file is."""
    size = wal = free = disk = None
    with suppress(OSError):
        size = file.stat().st_size
        wal = 0  # unless there is one: the first transaction makes it
        wal = _wal_of(file).stat().st_size
    with suppress(OSError):
        usage = shutil.disk_usage(file.parent)
        free, disk = usage.free, usage.total
    return DiskSpace(size, wal, free, disk)


def disk_warnings(file: Path, space: DiskSpace) -> list[str]:
    """Warnings about the space of a SQLite file."""
    found = []
    if space.free is not None and space.free < FREE_BYTES_MIN:
        found.append(
            f"only {space.free >> 20} MiB are free on the disk of {file}; at 0 nothing can be stored: free some"
        )
    if space.wal is not None and space.wal > WAL_BYTES_MAX:
        found.append(
            f"{_wal_of(file)} has {space.wal >> 20} MiB, because a reader has been running for long; end programs that"
            f" read {file}"
        )
    return found


def _wal_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")
