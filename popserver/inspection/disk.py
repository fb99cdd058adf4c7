"""What readiness asks of the database, and of the disk below it."""

from __future__ import annotations

import shutil
from pathlib import Path

from sqlalchemy import Connection, text

FREE_BYTES_MIN = 512 * 1024 * 1024
WAL_BYTES_MAX = 512 * 1024 * 1024  # it is emptied at 16 MiB unless a reader holds it


def look(conn: Connection, file: Path | None) -> list[str]:
    """Make the database answer; return the warnings about the disk of its `file`, if it is one of SQLite.

    In a reader's thread, because both may take long.
    """
    conn.execute(text("SELECT 1"))
    return [] if file is None else disk_warnings(file)


def disk_warnings(file: Path) -> list[str]:
    """What is wrong with the space of a SQLite file."""
    found = []
    free = shutil.disk_usage(file.parent).free
    if free < FREE_BYTES_MIN:
        found.append(f"only {free >> 20} MiB are free on the disk of {file}; at 0 nothing can be stored: free some")
    wal = file.with_name(f"{file.name}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > WAL_BYTES_MAX:
        found.append(
            f"{wal} has {size >> 20} MiB, because a reader has not ended for long; end programs that read {file}"
        )
    return found
