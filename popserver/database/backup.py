"""Backup and restore: a SQLite database into a file while the server runs; Postgres by its own `pg_dump`.

Backups hold the secrets of users, so only their owner may read them. A new file gets its name only when it is complete
and on the disk.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from sqlalchemy import text
from sqlalchemy.engine import URL

from popserver.database import migrate
from popserver.database.check import CONTENTS, check_kind, check_unused, in_words
from popserver.database.database import Database, parse_url, plain_errors
from popserver.database.schema import metadata
from popserver.database.views import VIEWS
from popserver.model.errors import StoreUnavailable
from popserver.postgres import sessions
from popserver.postgres.urls import TARGET
from popserver.sqlite.files import give, lock_file, owner_of

PARTIAL = ".partial"


class WouldReplace(Exception):
    """The file or the database exists already; `what` names the data that would be lost."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(f"this {what}; {way_out}, or replace it with --yes")
        self.what = what


def backup(url: str, file: Path, *, replace: bool) -> dict[str, Any]:
    """Copy the database into a new file that only this user may read. Returns facts about it.

    For SQLite it is one consistent state, also while a server writes. Raises `StoreUnavailable`.
    """
    _check_free(file, replace=replace)
    # A server that uses the replaced file would keep writing to the old file, and lose it all when it stops.
    if file.with_name(file.name + "-wal").exists():
        raise StoreUnavailable(
            f"{file} is a database in use, because it has a file {file.name}-wal; choose another file"
        )
    source = parse_url(url)
    if source.database and file.exists() and file.samefile(source.database):
        raise StoreUnavailable(f"{file} is the database itself; choose another file for its backup")
    with _new_file(file, replace=replace) as partial:
        if source.get_backend_name() == "sqlite":
            _copy_sqlite(_existing(Path(source.database or "")), partial)
            revision = _revision_of(partial)
        else:
            database = Database(url, only_reads=True)
            try:
                migrate.check(database)
                revision = migrate.HEAD
                url, password = _address(database)
                options = [f"--dbname={url}", *_DUMP, *_tables(database), f"--file={partial}"]
                _output_of("pg_dump", options, database.name, password)
            finally:
                database.close()
    return {"backup": str(file), "schema": revision, "bytes": file.stat().st_size}


def restore(url: str, file: Path, *, replace: bool) -> dict[str, Any]:
    """Restore the database from a backup, while no server runs. An existing database is replaced only with `replace`.

    Raises `StoreUnavailable`.
    """
    if not file.is_file():
        raise StoreUnavailable(f"{file} is not a file; name a file that popmq backup has written")
    target = parse_url(url)
    check_kind(file, "sqlite" if target.get_backend_name() == "sqlite" else "postgresql")
    if target.get_backend_name() == "sqlite":
        revision = _restore_sqlite(Path(target.database or "").resolve(), file, replace=replace)
    else:
        revision = _restore_postgres(url, file, replace=replace)
    return {"restored": str(file), "schema": revision}


def _restore_sqlite(target: Path, file: Path, *, replace: bool) -> str:
    revision = _revision_of(file)
    with lock_file(target):
        if target.exists() and target.stat().st_size and not replace:
            raise WouldReplace(f"replaces {target} with {_contents_of(target)}", "restore into another file")
        with _new_file(target, replace=True) as partial:
            _copy_sqlite(file, partial)
            # The steps that can fail come first. After them the replaced database is either complete or removed.
            _flush(partial)
            _move_wal_into(target)
            # These files belong to the replaced database. SQLite would apply them to the new file and damage it.
            for beside in ("-wal", "-shm", "-journal"):
                target.with_name(target.name + beside).unlink(missing_ok=True)
    return revision


def _restore_postgres(url: str, file: Path, *, replace: bool) -> str:
    with closing(Database(url)) as database:
        _check_unused(database)
        # First, because reading the whole file takes long, and the database is locked while it is restored.
        revision = _checked(file, _revision_of_dump(file))
        _output_of("pg_restore", ["--file=/dev/null", str(file)], str(file), {})
        _check_unused(database)  # again: a server may have started while the file was read
        found = migrate.revision(database)
        if found is not None:
            if not replace:
                with database.read() as conn:
                    contents = in_words(*conn.execute(text(CONTENTS)).one())
                raise WouldReplace(
                    f"replaces the tables in {database.name} with {contents}", "restore into another one"
                )
            migrate.check(database)
        # Without PopMQ's schema, tables with these names belong to another program: they stay, and the restore fails.
        before = "" if found is None else _drops()
        _replay(database, file, before=before, after=_functions(database, revision))
        return revision


def _check_unused(database: Database) -> None:
    with plain_errors(database.name), database.writing.connect() as conn:
        check_unused(database, conn)


def _drops() -> str:
    """SQL that drops PopMQ's functions, views and tables, if they exist. It fails if a user's own view uses them."""
    tables = ", ".join((*metadata.tables, "alembic_version"))
    return (
        f"DROP FUNCTION IF EXISTS {', '.join(migrate.NAMES)};\n"
        f"DROP VIEW IF EXISTS {', '.join(VIEWS)};\n"
        f"DROP TABLE IF EXISTS {tables};\n"
    )


def _tables(database: Database) -> list[str]:
    """Options of `pg_dump` for only PopMQ's tables and views: users have their own tables in the same database."""
    with database.read() as conn:
        schema = migrate.schema_of(conn)
    return [f"--table={schema}.{name}" for name in ("alembic_version", *metadata.tables, *VIEWS)]


def _functions(database: Database, revision: str) -> str:
    """SQL of the functions, which a dump does not have. The upgrade of an older schema creates them."""
    if revision != migrate.HEAD:
        return ""
    with plain_errors(database.name), database.reading.connect() as conn:
        return migrate.functions_text(conn, migrate.script_location() / "functions.sql")


def _replay(database: Database, file: Path, *, before: str, after: str) -> None:
    """Run the statements of a dump between two texts of SQL, in one transaction.

    If this process, `pg_restore`, `psql` or Postgres dies, the COMMIT is missing and the database stays as it was.
    """
    url, password = _address(database)
    options = [
        "--no-psqlrc",
        "--quiet",
        "--output=/dev/null",
        "--set=ON_ERROR_STOP=1",
        f"--dbname={url}",
    ]
    with (
        tempfile.TemporaryFile("w+") as dump_errors,
        tempfile.TemporaryFile("w+") as errors,
        _start("psql", options, errors, password, stdin=subprocess.PIPE) as psql,
        _start("pg_restore", ["--no-owner", "--file=-", str(file)], dump_errors, {}) as dump,
    ):
        assert psql.stdin is not None
        assert dump.stdout is not None
        with suppress(BrokenPipeError), psql.stdin as script:  # psql ends at the first error, and reports it
            script.write(f"{sessions.BEGIN};\n{database.begin_statement};\n{migrate.LOCK};\n{before}".encode())
            shutil.copyfileobj(dump.stdout, script)
            if dump.wait() == 0:
                script.write(f"{after}\nCOMMIT;\n".encode())
        dump.stdout.close()
        psql.wait()
        _check_ended("psql", psql.returncode, errors, database.name)
        _check_ended("pg_restore", dump.wait(), dump_errors, str(file))


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
    table = _output_of("pg_restore", ["--data-only", "--table=alembic_version", "--file=-", str(file)], str(file), {})
    lines = iter(table.splitlines())
    return next((next(lines, "") for line in lines if line.startswith("COPY ")), "")


def _checked(file: Path, revision: str) -> str:
    """The revision, if this PopMQ can use it."""
    if not revision:
        raise StoreUnavailable(f"{file} is no backup of PopMQ: it has no number of its schema; name another file")
    if not migrate.FIRST <= revision <= migrate.HEAD:
        raise StoreUnavailable(
            f"{file} has schema '{revision}', this popmq uses {migrate.FIRST} to {migrate.HEAD}; use the popmq that"
            " made it"
        )
    return revision


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copy one consistent state. Readers and the server's writer continue meanwhile."""
    with _open(source) as conn:
        (page,) = conn.execute("PRAGMA page_size").fetchone()
        if source.stat().st_size % page:  # SQLite would read zeros for the missing part, without an error
            raise StoreUnavailable(f"{source} ends in the middle of a page, so it is incomplete; copy the file again")
        conn.execute("VACUUM INTO ?", (str(target),))
    with _open(target) as conn:
        (found,) = conn.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreUnavailable(f"{source} is damaged ({found}); its copy is not kept, see: popmq db check")


def _move_wal_into(file: Path) -> None:
    """Move the WAL of a database that no server uses into its file. A damaged database stays as it is."""
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
def _new_file(file: Path, *, replace: bool) -> Iterator[Path]:
    """An empty file that only its owner may read; afterwards it is flushed to the disk and gets its name.

    Until then it has a name of its own, so that two backups into one file do not write to the same one.
    """
    try:
        descriptor, name = tempfile.mkstemp(PARTIAL, f"{file.name}.", file.parent)
        partial = Path(name)
        try:
            give(descriptor, owner_of(file))
            os.close(descriptor)
            yield partial
            _flush(partial)
            _check_free(file, replace=replace)
            partial.replace(file)
            _flush(file.parent)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{file} cannot be written ({error.strerror}); nothing is changed") from None


def _contents_of(file: Path) -> str:
    """The contents of a SQLite database of PopMQ in words; of any other file its size."""
    try:
        with _open(file) as conn:
            return in_words(*conn.execute(CONTENTS).fetchone())
    except (sqlite3.Error, StoreUnavailable):
        return f"{file.stat().st_size:,} bytes"


def _check_free(file: Path, *, replace: bool) -> None:
    if file.exists() and not replace:
        raise WouldReplace(f"replaces {file} of {file.stat().st_size:,} bytes", "choose another file")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _address(database: Database) -> tuple[str, dict[str, str]]:
    """The database's URL for client programs, and their environment with the password: others can see arguments."""
    if _KEY_PASSWORD in database.url.query:
        raise StoreUnavailable(
            f"{database.name} has the option {_KEY_PASSWORD}, which client programs of Postgres take only as an"
            " argument, and others can see arguments; put it into a connection service file (PGSERVICEFILE), and give"
            " the URL ?service=NAME"
        )
    arguments = database.connections.arguments
    password = arguments.get("password")
    open_part = URL.create(
        "postgresql",
        username=database.url.username,
        host=database.url.host,
        port=database.url.port,
        database=database.url.database,
        query=database.url.difference_update_query(["password"]).query | {TARGET: arguments[TARGET]},
    )
    return open_part.render_as_string(hide_password=False), {"PGPASSWORD": str(password)} if password else {}


def _output_of(tool: str, options: Sequence[str], subject: str, environment: Mapping[str, str]) -> str:
    """The output of a client program of Postgres. `subject`: what it works on, for errors."""
    with tempfile.TemporaryFile("w+") as errors, _start(tool, options, errors, environment) as process:
        output, _ = process.communicate()
        _check_ended(tool, process.returncode, errors, subject)
    return output.decode(errors="replace")


def _start(
    tool: str,
    options: Sequence[str],
    errors: IO[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a client program of Postgres. It writes errors into a file, so that it never waits for a reader."""
    program = shutil.which(tool)
    if program is None:
        raise StoreUnavailable(
            f"{tool} is not installed; install the client programs of Postgres, of the server's version or newer, or"
            " back the database up in the way that your other databases are"
        )
    return subprocess.Popen(  # noqa: S603 - the program is Postgres's own
        [program, *options],
        env={**os.environ, **environment},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=errors,
    )


def _check_ended(tool: str, code: int, errors: IO[str], subject: str) -> None:
    """Raise `StoreUnavailable` with the error that a program reported, unless it succeeded."""
    if code == 0:
        return
    errors.seek(0)
    # The hint of Postgres would be DROP … CASCADE, which destroys what users have made.
    lines = [line for line in errors.read().splitlines() if line and not line.startswith("HINT:")] or [str(code)]
    first = next((number for number, line in enumerate(lines) if "ERROR:" in line), -1)
    way_out = ""
    if any("version mismatch" in line for line in lines):
        way_out = "; install the client programs of the server's version or newer, first in PATH"
    raise StoreUnavailable(f"{tool} failed for {subject}: {' '.join(lines[first:])}{way_out}")


_KEY_PASSWORD = "sslpassword"  # noqa: S105 - a name; libpq has no environment variable for it
_DUMP = ["--format=custom", "--no-owner", "--no-privileges"]
