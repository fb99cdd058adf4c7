"""The file of a SQLite database: one server uses it, and only its owner can read it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from popserver.model.errors import StoreUnavailable


def check_one_name(database: Path) -> None:
    """Raise `StoreUnavailable` for a file with hard links.

    The lock file and the WAL belong to a name, so two servers with different names of the file would both write to it.
    """
    try:
        names = database.stat().st_nlink
    except OSError:
        return  # it does not exist yet, or opening it reports the problem
    if names > 1 and database.is_file():
        raise StoreUnavailable(
            f"{database} has {names} names (hard links), and servers at two of them would destroy it; remove the other"
            f" names, which 'find FOLDER -samefile {database}' lists, or copy the file"
        )


@contextmanager
def lock_file(database: Path) -> Iterator[None]:
    """Keep servers away from a SQLite file that need not exist. Raises `StoreUnavailable` while a server has it."""
    check_one_name(database)
    descriptor = lock(database)
    try:
        yield
    finally:
        os.close(descriptor)


def lock(database: Path) -> int:
    """Lock `<database>.lock` while this process lives, so that no second server writes to the file."""
    path = database.with_name(database.name + ".lock")
    try:
        with suppress(FileExistsError):
            os.close(_create(path, beside=database))
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise StoreUnavailable(f"{database} cannot be opened ({error.strerror}); choose a writable folder") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreUnavailable(
            f"{database} is in use by another popmq server; stop that server, or use another file for this one"
        ) from None
    return descriptor


def make(file: Path) -> None:
    """Create an empty file that only its owner can read, unless it exists.

    SQLite itself would use the umask. It gives the file's mode and owner to its `-wal` and `-shm` files too.
    """
    # If this fails, SQLite reports the problem when it opens the file.
    with suppress(OSError):
        os.close(_create(file, beside=file))


def _create(file: Path, *, beside: Path) -> int:
    """The descriptor of a new file that only its owner can read. Raises `FileExistsError`."""
    owner = owner_of(beside)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    give(descriptor, owner)
    return descriptor


def owner_of(file: Path) -> os.stat_result:
    """The owner of a file, or of its folder if it does not exist yet. Raises `OSError`."""
    return (file if file.exists() else file.parent).stat()


def give(descriptor: int, owner: os.stat_result) -> None:
    """If root runs: give a new file to this owner. A server that runs as another user could not open root's file."""
    if os.geteuid() == 0:
        # In some containers, and on some network disks, root may not change the owner.
        with suppress(PermissionError):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
