"""Backup and restore: a SQLite database into a file while the server runs; Postgres by its own `pg_dump`.

Backups hold the secrets of users, so only their owner may read them. A new file gets its name only when it is complete
and on the disk.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from popserver.database import migrate
from popserver.database.check import check_unused
from popserver.database.database import Database, lock_file, parse_url, plain_errors
from popserver.database.schema import VIEWS, metadata
from popserver.model.errors import StoreUnavailable

PARTIAL = ".partial"


def backup(url: str, file: Path, *, replace: bool) -> dict[str, Any]:
    """Copy the database into a new file that only this user may read. Returns facts about it.

    For SQLite it is one consistent state, also while a server writes. Raises `StoreUnavailable`.
    """
    if file.exists() and not replace:
        raise StoreUnavailable(f"{file} exists already; choose another file, or replace it with --force")
    # The server of a replaced database would go on with the old file, and lose all at its end.
    if file.with_name(file.name + "-wal").exists():
        raise StoreUnavailable(
            f"{file} is a database in use, because it has a file {file.name}-wal; choose another file"
        )
    source = parse_url(url)
    if source.database and file.exists() and file.samefile(source.database):
        raise StoreUnavailable(f"{file} is the database itself; choose another file for its backup")
    with _new_file(file) as partial:
        if source.get_backend_name() == "sqlite":
            _copy_sqlite(_existing(Path(source.database or "")), partial)
            revision = _revision_of(partial)
        else:
            database = Database(url)
            try:
                migrate.check(database)
                revision = migrate.HEAD
                _run_tool(database, "pg_dump", [*_DUMP, f"--file={partial}"])
            finally:
                database.close()
    return {"backup": str(file), "schema": revision, "bytes": file.stat().st_size}


def restore(url: str, file: Path, *, replace: bool) -> dict[str, Any]:
    """Make the database what the backup has, while no server runs. An existing one is replaced only with `replace`.

    Raises `StoreUnavailable`.
    """
    if not file.is_file():
        raise StoreUnavailable(f"{file} is not a file; name a file that popmq backup has written")
    target = parse_url(url)
    if target.get_backend_name() == "sqlite":
        revision = _restore_sqlite(Path(target.database or "").resolve(), file, replace=replace)
    else:
        revision = _restore_postgres(url, file, replace=replace)
    return {"restored": str(file), "schema": revision}


def _restore_sqlite(target: Path, file: Path, *, replace: bool) -> str:
    revision = _revision_of(file)
    with lock_file(target):
        if target.exists() and target.stat().st_size and not replace:
            raise StoreUnavailable(f"{target} exists already; restore into another file, or replace it with --force")
        with _new_file(target) as partial:
            _copy_sqlite(file, partial)
            # What can fail comes first: from here on the replaced database is whole, or it is gone.
            _flush(partial)
            _move_wal_into(target)
            # Of the replaced database; with the new file they would damage it.
            for beside in ("-wal", "-shm", "-journal"):
                target.with_name(target.name + beside).unlink(missing_ok=True)
    return revision


def _restore_postgres(url: str, file: Path, *, replace: bool) -> str:
    database = Database(url)
    try:
        with plain_errors(database.name), database.writing.connect() as conn:
            check_unused(database, conn)
        # First, so that nothing is removed for a file that cannot be restored.
        _checked(file, _revision_of_dump(file))
        _said_by("pg_restore", ["--file=/dev/null", str(file)], str(file), {})  # reads all of it
        if (found := migrate.revision(database)) is not None:
            if not replace:
                raise StoreUnavailable(
                    f"{database.name} has PopMQ's tables already; restore into another database, or replace them with"
                    " --force"
                )
            migrate.check(database)
            migrate.downgrade(database, "base")
        if found is not None:
            with plain_errors(database.name), database.writing.connect() as conn:
                conn.exec_driver_sql("DROP TABLE alembic_version")
        _run_tool(database, "pg_restore", ["--no-owner", "--exit-on-error", "--single-transaction", str(file)])
        restored = migrate.revision(database) or ""
        if restored == migrate.HEAD:
            with plain_errors(database.name), database.writing.connect() as conn:
                migrate.functions_create(conn, migrate.script_location() / "functions.sql")
        return restored
    finally:
        database.close()


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise StoreUnavailable(f"{file} does not exist; name the database with --database-url sqlite:///FILE")
    return file


def _revision_of(file: Path) -> str:
    """The schema's revision in a SQLite file. Raises `StoreUnavailable` if it is no database of this PopMQ."""
    with _open(file) as conn:
        row = conn.execute("SELECT version_num FROM alembic_version").fetchone()
    return _checked(file, str(row[0]) if row else "")


def _revision_of_dump(file: Path) -> str:
    """The schema's revision in a file of `pg_dump`, without a database."""
    table = _said_by("pg_restore", ["--data-only", "--table=alembic_version", "--file=-", str(file)], str(file), {})
    lines = iter(table.splitlines())
    return next((next(lines, "") for line in lines if line.startswith("COPY ")), "")


def _checked(file: Path, revision: str) -> str:
    """The revision, if this PopMQ can use it."""
    if not revision:
        raise StoreUnavailable(f"{file} is no backup of PopMQ: it does not say which schema it has")
    if not migrate.FIRST <= revision <= migrate.HEAD:
        raise StoreUnavailable(
            f"{file} has schema '{revision}', this popmq uses {migrate.FIRST} to {migrate.HEAD}; use the popmq that"
            " made it"
        )
    return revision


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copy one consistent state. Readers and the server's writer go on meanwhile."""
    with _open(source) as conn:
        conn.execute("VACUUM INTO ?", (str(target),))
    with _open(target) as conn:
        (found,) = conn.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreUnavailable(f"{source} is damaged ({found}); its copy is not kept, see: popmq db check")


def _move_wal_into(file: Path) -> None:
    """Move the WAL of a database that no server uses into its file. A damaged one is left as it is."""
    if file.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection that only reads, with Python's SQLite: no other code of this process opens the file."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=5)) as conn:
            yield conn
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{file} cannot be read as a database of PopMQ ({error})") from None


@contextmanager
def _new_file(file: Path) -> Iterator[Path]:
    """An empty file that only this user may read; afterwards it is flushed to the disk and gets its name."""
    partial = file.with_name(file.name + PARTIAL)
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            yield partial
            _flush(partial)
            partial.replace(file)
            _flush(file.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{file} cannot be written ({error.strerror}); nothing is changed") from None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _run_tool(database: Database, tool: str, options: Sequence[str]) -> None:
    """Run a client program on the database. The password goes by the environment: others can see arguments."""
    url = database.url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    password = {"PGPASSWORD": str(database.url.password)} if database.url.password else {}
    _said_by(tool, [f"--dbname={url}", *options], database.name, password)


def _said_by(tool: str, options: Sequence[str], subject: str, environment: Mapping[str, str]) -> str:
    """What a client program of Postgres writes. `subject` is what it works on, for errors."""
    program = shutil.which(tool)
    if program is None:
        raise StoreUnavailable(
            f"{tool} is not installed; install the client programs of Postgres, of the server's version or newer, or"
            " back the database up in the way that your other databases are"
        )
    done = subprocess.run(  # noqa: S603 - the program is Postgres's own
        [program, *options],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()
        if "version mismatch" in done.stderr:
            said = [f"{said[-1]}; install the client programs of the server's version or newer, first in PATH"]
        raise StoreUnavailable(f"{tool} failed for {subject}: {said[-1] if said else done.returncode}")
    return done.stdout


# Only what belongs to PopMQ: users have their own tables in the same database.
_DUMP = [
    "--format=custom",
    "--no-owner",
    "--no-privileges",
    *(f"--table={name}" for name in ("alembic_version", *metadata.tables, *VIEWS)),
]
