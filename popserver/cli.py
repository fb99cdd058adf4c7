"""`popmq serve`, `popmq db` and `popmq size`: the commands that need the server's code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from popserver.serve import copying
from popserver.serve.options import add_database_url, add_options
from popserver.serve.process import begin, run_alone
from popserver.serve.settings import OK, REFUSED, USAGE, read_config
from popserver.sizing import command as size


def add_commands(commands: Any) -> None:
    """Add the server's commands to the `popmq` command line."""
    serving = commands.add_parser("serve", help="run a broker", description=_SERVE)
    add_options(serving)
    serving.set_defaults(run=_serve)
    _add_backup(commands.add_parser("backup", help="copy the database into a file"))
    _add_restore(commands.add_parser("restore", help="restore the database from a backup, while no server runs"))
    _add_db(commands.add_parser("db", help="check, upgrade, compact or copy the database"))
    sizing = commands.add_parser("size", help="what a load needs: disk, memory, processors, servers", description=_SIZE)
    size.add_options(sizing)


_SERVE = (
    "Run a broker: one port, and one process unless --workers asks for more. Every option can also be set as"
    " POPMQ_<OPTION> in the environment (POPMQ_DATABASE_URL) or as a key in ./popmq.toml (database_url)."
)

_COPY = (
    "Copy a database into an empty one: SQLite to Postgres, and back. No server may use them meanwhile. Repeated after"
    " an interruption, the command continues. Each row is read back and compared before a server can use the copy."
)

_SIZE = (
    "Compute what a load needs, and which limit it reaches first when it grows. No server is needed: the figures are"
    " those of the benchmark, whose machine the answer names."
)


def _add_db(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    upgrade = actions.add_parser("upgrade", help="upgrade the schema to this version of popmq")
    check = actions.add_parser("check", help="check the schema's version, and the database for damage")
    for action, run in ((upgrade, _upgrade), (check, _check)):
        add_database_url(action)
        action.set_defaults(run=run)
    clock = actions.add_parser("clock", help="show how far the server's time is ahead, while no server runs")
    add_database_url(clock)
    clock.add_argument(
        "--reset", action="store_true", help="set the server's time to the system clock, if it is ahead of it"
    )
    clock.add_argument("--yes", action="store_true", help="do not ask")
    clock.set_defaults(run=_clock)
    compact = actions.add_parser("compact", help="return the free space of a SQLite file, while no server runs")
    add_database_url(compact)
    compact.set_defaults(run=_compact)
    copying.add_options(
        actions.add_parser("copy", help="copy the database into another one, while no server runs", description=_COPY)
    )


def _add_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the new file; only this user may read it")
    parser.add_argument("--yes", "--force", action="store_true", help="replace the file if it exists; do not ask")
    add_database_url(parser)
    parser.set_defaults(run=_backup)


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file that popmq backup has written")
    parser.add_argument("--yes", "--force", action="store_true", help="replace the database if it exists; do not ask")
    add_database_url(parser)
    parser.set_defaults(run=_restore)


def _serve(arguments: argparse.Namespace) -> int:
    """One server in this process, or several workers that it watches."""
    started = begin()
    config = read_config(arguments)
    if config is None:
        return USAGE
    as_json = arguments.json or config.log_format == "json"
    if config.workers == 1:
        return run_alone(config, started, as_json=as_json)
    # Loaded here, because a server in one process does not need it.
    from popserver.serve.supervisor import supervise

    return supervise(config, arguments, started, as_json=as_json)


def _upgrade(arguments: argparse.Namespace) -> int:
    from popserver.database import migrate
    from popserver.database.database import Database

    def upgrade(database: Database) -> dict[str, Any]:
        before = migrate.upgrade(database)
        return {"store": database.name, "from": before, "schema": migrate.HEAD}

    return _with_database(arguments, upgrade)


def _check(arguments: argparse.Namespace) -> int:
    from popserver.database import migrate
    from popserver.database.check import check_integrity
    from popserver.database.database import Database

    def check(database: Database) -> dict[str, Any]:
        migrate.check(database)
        with database.read() as conn:
            check_integrity(conn)
        return {"store": database.name, "schema": migrate.HEAD, "sound": True}

    return _with_database(arguments, check, must_exist=True)


def _compact(arguments: argparse.Namespace) -> int:
    from popserver.database import migrate
    from popserver.database.check import compact
    from popserver.database.database import Database

    def work(database: Database) -> dict[str, Any]:
        migrate.check(database)
        before, after = compact(database)
        return {"store": database.name, "bytes_before": before, "bytes": after}

    return _with_database(arguments, work, must_exist=True)


def _backup(arguments: argparse.Namespace) -> int:
    from popserver.database import backup

    return _replacing(arguments, backup.backup)


def _restore(arguments: argparse.Namespace) -> int:
    from popserver.database import backup

    return _replacing(arguments, backup.restore)


def _replacing(arguments: argparse.Namespace, work: Callable[..., dict[str, Any]]) -> int:
    """Back up or restore; asks first if that replaces a file or a database."""
    from popserver.database.backup import WouldReplace

    try:
        return _with_url(arguments, lambda url: work(url, Path(arguments.file), replace=arguments.yes))
    except WouldReplace as asked:
        if not arguments.confirm(arguments, asked.what):
            return REFUSED
    return _with_url(arguments, lambda url: work(url, Path(arguments.file), replace=True))


def _clock(arguments: argparse.Namespace) -> int:
    from popserver.cluster.sql import clock_ms
    from popserver.database import migrate
    from popserver.database.database import Database
    from popserver.engine.clock import wall_ms
    from popserver.maintenance import clock_reset
    from popserver.model.times import span, utc

    def report(database: Database) -> dict[str, Any]:
        migrate.check(database)
        with database.connect_writer() as conn:
            system_ms = int(clock_ms(conn) if database.is_shared else wall_ms())
            found = clock_reset.clock_state(conn, system_ms)
            facts = {"system_clock": utc(found.system_ms), "server_time_ahead": span(found.ahead_ms)}
            back = f"sets the server's time back by {span(found.ahead_ms)}"
            if arguments.reset and found.ahead_ms and arguments.confirm(arguments, back):
                facts["messages_stored_now"] = str(clock_reset.reset(database, conn, found))
                facts["server_time_ahead"] = span(0)
        return {"store": database.name, **facts}

    return _with_database(arguments, report, must_exist=True)


def _with_database(arguments: argparse.Namespace, work: Any, *, must_exist: bool = False) -> int:
    from popserver.database.database import Database

    def with_it(url: str) -> dict[str, Any]:
        database = Database(url, must_exist=must_exist, own_process=True)
        try:
            facts: dict[str, Any] = work(database)
            return facts
        finally:
            database.close()

    return _with_url(arguments, with_it)


def _with_url(arguments: argparse.Namespace, work: Callable[[str], dict[str, Any]]) -> int:
    """Do the work on the database of the settings, and print the facts that it returns."""
    from popserver.model.errors import PopError

    config = read_config(arguments)
    if config is None:
        return USAGE
    try:
        facts = work(config.database_url)
    except PopError as error:
        print(f"popmq: {error.sentence}", file=sys.stderr)
        return REFUSED
    print(json.dumps(facts) if arguments.json else "  ".join(f"{name}={value}" for name, value in facts.items()))
    return OK
