"""`popmq serve` and `popmq db`: the commands that need the server's own code."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
import time
from typing import Any

OK, REFUSED, USAGE = 0, 1, 2


def add_commands(commands: Any) -> None:
    """Add this room's commands to the `popmq` command line."""
    _add_serve(commands.add_parser("serve", help="run a broker", description=_SERVE))
    _add_db(commands.add_parser("db", help="look after the database"))


_SERVE = (
    "Run a broker: one process, one port. Every option can also be set as POPMQ_<OPTION> in the environment"
    " (POPMQ_DATABASE_URL) or as a key in ./popmq.toml (database_url)."
)


def _mib(written: str) -> int:
    """A number of MiB."""
    if not written.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"'{written}' is not a whole number of MiB; write 64 for 64 MiB")
    return int(written)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8081); 0 takes a free one")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="where clients of other servers on the same Postgres reach this one"
    )
    _add_database_url(parser)
    parser.add_argument("--durability", choices=("full", "relaxed"), help="full: an OK is on the disk (full)")
    parser.add_argument(
        "--auto-create",
        action=argparse.BooleanOptionalAction,
        help="create missing topics and groups on first use (on a loopback address only)",
    )
    parser.add_argument("--min-invisible", metavar="DURATION", help="shortest invisible duration let in (10s)")
    parser.add_argument("--retention", metavar="DURATION", help="how long messages are kept (72h); 0s: for ever")
    parser.add_argument(
        "--max-clock-jump",
        metavar="DURATION",
        help="after a longer jump of the system clock, or a longer stop, old messages stay for an hour (1h); 0s: any",
    )
    parser.add_argument("--max-delay", metavar="DURATION", help="how far ahead a message may be due (40d); 0s: any")
    _add_transactions(parser)
    parser.add_argument(
        "--idempotency-window", metavar="DURATION", help="how long a repeated idempotency key is known (24h); 0s: never"
    )
    parser.add_argument("--drain-timeout", metavar="DURATION", help="how long calls may finish at the end (30s)")
    _add_tls(parser)
    _add_auth(parser)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", choices=("console", "json"))
    parser.set_defaults(run=_serve)


def _add_transactions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transaction-timeout", metavar="DURATION", help="after this producers are asked about a half message (6s)"
    )
    parser.add_argument("--transaction-check-interval", metavar="DURATION", help="between two such checks (30s)")
    parser.add_argument("--transaction-checks", metavar="NUMBER", type=int, help="after so many it is discarded (15)")


def _add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls",
        choices=("permissive", "plaintext", "tls"),
        help="permissive: TLS and plaintext on one port (permissive)",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM (the server makes its own)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key, PEM")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="let in only clients with a certificate of this CA, PEM"
    )
    parser.add_argument(
        "--tls-dir", metavar="FOLDER", help="where the server's own certificate is kept (beside a SQLite file)"
    )
    parser.add_argument(
        "--insecure", action="store_true", default=None, help="listen on a public address without authentication"
    )


def _add_auth(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--auth",
        action=argparse.BooleanOptionalAction,
        help="callers must sign, and may do what policies allow; see popmq acl (no)",
    )
    parser.add_argument(
        "--auth-max-age", metavar="DURATION", help="refuse signatures older than this; for clients that sign UTC (0s)"
    )
    parser.add_argument(
        "--max-send-rate", type=int, metavar="N", help="messages a user may send per second; 0: any number (0)"
    )
    parser.add_argument("--max-request-rate", type=int, metavar="N", help="requests a user may make per second (0)")
    parser.add_argument(
        "--max-incoming", type=_mib, metavar="MIB", help="how much may be on its way in, or not answered yet (80)"
    )
    parser.add_argument(
        "--max-watches", type=int, metavar="N", help="health watches at a time, and as many reflection streams (1000)"
    )
    parser.add_argument("--max-connections", type=int, metavar="N", help="connections at a time (10000)")
    parser.add_argument(
        "--max-connections-per-address", type=int, metavar="N", help="of them, from one address; 0: half of all (0)"
    )
    parser.add_argument("--send-backlog", type=_mib, metavar="MIB", help="how much may wait to be stored (128)")
    parser.add_argument(
        "--max-undelivered", type=_mib, metavar="MIB", help="bodies of answers that clients have not taken (96)"
    )
    parser.add_argument(
        "--max-filter-memory", type=_mib, metavar="MIB", help="what filters of receives under way may take (64)"
    )


def _add_db(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    upgrade = actions.add_parser("upgrade", help="bring the schema to this version's")
    check = actions.add_parser("check", help="say whether the schema fits, and whether the database is sound")
    for action, run in ((upgrade, _upgrade), (check, _check)):
        _add_database_url(action)
        action.set_defaults(run=run)
    clock = actions.add_parser("clock", help="say where the clocks stand, while no server runs")
    _add_database_url(clock)
    clock.add_argument(
        "--reset", action="store_true", help="let the server's time, if it is ahead, begin at the system's clock"
    )
    clock.set_defaults(run=_clock)
    compact = actions.add_parser("compact", help="give the free space of a SQLite file back, while no server runs")
    _add_database_url(compact)
    compact.set_defaults(run=_compact)


def _add_database_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database-url", metavar="URL", help="sqlite:///FILE or postgresql://… (sqlite:///popmq.db)")


def _serve(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    # Before the server's rooms are read: what is loaded stays, so looking through it only takes time.
    _calm_garbage_collector()
    from popserver import app
    from popserver.front import inner

    config = _config(arguments)
    if config is None:
        return USAGE
    app.configure(config.log_level, config.log_format)
    inner.raise_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_server(config, started, as_json=arguments.json))


async def _run_server(config: Any, started: float, *, as_json: bool) -> int:
    from popserver.app import App
    from popserver.database.migrate import HEAD
    from popserver.model.errors import PopError

    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    app = App(config, own_process=True)
    try:
        await app.start()
    except PopError as error:
        print(f"popmq: {error.sentence}", file=sys.stderr)
        return REFUSED
    assert app.database is not None
    facts = {
        "grpc": app.endpoint,
        "tls": config.tls,
        "store": app.database.name,
        "durability": config.durability,
        "schema": HEAD,
        "ready_after_ms": round((time.monotonic() - started) * 1_000),
    }
    words = "popserver ready  " + "  ".join(f"{name}={value}" for name, value in facts.items())
    gc.collect()
    gc.freeze()
    print(json.dumps(facts) if as_json else f"{words}  (RocketMQ 5 protocol)", flush=True)
    await stopping.wait()
    print("popserver draining", file=sys.stderr, flush=True)
    await app.stop()
    return OK


def _calm_garbage_collector() -> None:
    """A batch makes thousands of objects that die young: look less often."""
    gc.set_threshold(50_000, 20, 100)


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


def _clock(arguments: argparse.Namespace) -> int:
    from popserver.cluster.sql import clock_ms
    from popserver.database import migrate
    from popserver.database.database import Database
    from popserver.engine.clock import wall_ms
    from popserver.maintenance import clock_reset
    from popserver.model.times import span, utc

    def look(database: Database) -> dict[str, Any]:
        migrate.check(database)
        with database.connect_writer() as conn:
            system_ms = int(clock_ms(conn) if database.is_shared else wall_ms())
            found = clock_reset.clock_state(conn, system_ms)
            facts = {"system_clock": utc(found.system_ms), "server_time_ahead": span(found.ahead_ms)}
            if arguments.reset and found.ahead_ms:
                facts["messages_stored_now"] = str(clock_reset.reset(database, conn, found))
                facts["server_time_ahead"] = span(0)
        return {"store": database.name, **facts}

    return _with_database(arguments, look, must_exist=True)


def _with_database(arguments: argparse.Namespace, work: Any, *, must_exist: bool = False) -> int:
    from popserver.database.database import Database
    from popserver.model.errors import PopError

    config = _config(arguments)
    if config is None:
        return USAGE
    try:
        database = Database(config.database_url, must_exist=must_exist, own_process=True)
        try:
            facts = work(database)
        finally:
            database.close()
    except PopError as error:
        print(f"popmq: {error.sentence}", file=sys.stderr)
        return REFUSED
    print(json.dumps(facts) if arguments.json else "  ".join(f"{name}={value}" for name, value in facts.items()))
    return OK


def _config(arguments: argparse.Namespace) -> Any:
    """The settings from command line, environment and file; None, and one sentence each, where they are wrong."""
    from pydantic import ValidationError

    from popserver.config import FILE, SECRET, Config

    given = {
        name: value for name, value in vars(arguments).items() if name in Config.model_fields and value is not None
    }
    try:
        return Config(**given)
    except ValidationError as error:
        for mistake in error.errors():
            name = ".".join(map(str, mistake["loc"]))
            # What concerns several settings at once names them itself. Where a secret may stand, no value is shown.
            shows = name in Config.model_fields and name not in SECRET
            where = f"{name}={mistake['input']!r}: " if shows else f"{name}: " if name else ""
            print(f"popmq: {where}{mistake['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return None
    except (ValueError, OSError) as error:
        print(f"popmq: {FILE} cannot be read ({error}); correct it, or move it away", file=sys.stderr)
        return None


def _loop_factory() -> Any:
    """The faster event loop, where it is installed: the `server` extra has it where there are wheels."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
