"""`popmq serve` and `popmq db`: the commands that need the server's code."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OK, REFUSED, USAGE = 0, 1, 2


def add_commands(commands: Any) -> None:
    """Add the server's commands to the `popmq` command line."""
    _add_serve(commands.add_parser("serve", help="run a broker", description=_SERVE))
    _add_backup(commands.add_parser("backup", help="copy the database into a file"))
    _add_restore(commands.add_parser("restore", help="make the database what a backup has, while no server runs"))
    _add_db(commands.add_parser("db", help="check, upgrade or compact the database"))


_SERVE = (
    "Run a broker: one process, one port. Every option can also be set as POPMQ_<OPTION> in the environment"
    " (POPMQ_DATABASE_URL) or as a key in ./popmq.toml (database_url)."
)


def _mib(written: str) -> int:
    """Parse a number of MiB. Raises `argparse.ArgumentTypeError`."""
    if not written.strip().isdecimal():
        raise argparse.ArgumentTypeError(f"'{written}' is not a whole number of MiB; write 64 for 64 MiB")
    return int(written)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (8081); 0: any free port")
    parser.add_argument(
        "--advertise", metavar="HOST:PORT", help="this server's address for clients of other servers on its Postgres"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help="address of metrics, health and console (127.0.0.1:8082); off: none"
    )
    parser.add_argument(
        "--admin", metavar="HOST:PORT", help="address of the administration, which --port then does not serve"
    )
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        help="a name of the HTTP port besides localhost, such as that of a proxy; may be repeated",
    )
    _add_database_url(parser)
    parser.add_argument(
        "--durability", choices=("full", "relaxed"), help="full: a message is on the disk before its OK (full)"
    )
    parser.add_argument(
        "--auto-create",
        action=argparse.BooleanOptionalAction,
        help="create missing topics and groups on first use (on a loopback address only)",
    )
    parser.add_argument("--min-invisible", metavar="DURATION", help="shortest invisible duration allowed (10s)")
    parser.add_argument("--retention", metavar="DURATION", help="how long messages are stored (72h); 0s: no limit")
    parser.add_argument(
        "--max-clock-jump",
        metavar="DURATION",
        help="after a longer clock jump or stop, keep old messages for another hour (1h); 0s: no limit",
    )
    parser.add_argument("--max-delay", metavar="DURATION", help="longest delay of a message (40d); 0s: no limit")
    _add_transactions(parser)
    parser.add_argument(
        "--idempotency-window", metavar="DURATION", help="how long idempotency keys are stored (24h); 0s: ignore them"
    )
    parser.add_argument("--drain-timeout", metavar="DURATION", help="at shutdown, how long calls may still run (30s)")
    _add_tls(parser)
    _add_auth(parser)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", choices=("console", "json"))
    parser.set_defaults(run=_serve)


def _add_transactions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transaction-timeout", metavar="DURATION", help="time until the first check of an open transaction (6s)"
    )
    parser.add_argument("--transaction-check-interval", metavar="DURATION", help="time between two checks (30s)")
    parser.add_argument(
        "--transaction-checks", metavar="NUMBER", type=int, help="discard the message after this many checks (15)"
    )


def _add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls",
        choices=("permissive", "plaintext", "tls"),
        help="permissive: TLS and plaintext on one port (permissive)",
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM (a self-signed certificate)")
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's key, PEM")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="accept only clients with a certificate of this CA, PEM"
    )
    parser.add_argument(
        "--tls-dir", metavar="FOLDER", help="folder for the self-signed certificate (that of the SQLite file)"
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
        "--auth-max-age", metavar="DURATION", help="refuse older signatures; only if all clients sign UTC (0s: accept)"
    )
    parser.add_argument(
        "--max-send-rate", type=int, metavar="N", help="messages per second that a user may send; 0: no limit (0)"
    )
    parser.add_argument(
        "--max-request-rate", type=int, metavar="N", help="requests per second that a user may make; 0: no limit (0)"
    )
    parser.add_argument(
        "--max-incoming", type=_mib, metavar="MIB", help="memory for requests that arrive or are not answered yet (80)"
    )
    parser.add_argument(
        "--max-watches", type=int, metavar="N", help="health watches at one time, and as many reflection streams (1000)"
    )
    parser.add_argument("--max-connections", type=int, metavar="N", help="connections at one time (10000)")
    parser.add_argument(
        "--max-connections-per-address",
        type=int,
        metavar="N",
        help="connections from one address at one time; 0: half of --max-connections (0)",
    )
    parser.add_argument("--max-http-connections", type=int, metavar="N", help="HTTP connections at one time (256)")
    parser.add_argument("--max-admin-connections", type=int, metavar="N", help="connections to --admin (256)")
    parser.add_argument("--max-metric-series", type=int, metavar="N", help="samples of one scrape of /metrics (50000)")
    parser.add_argument(
        "--client-metrics",
        action=argparse.BooleanOptionalAction,
        help="ask clients for their own metrics, and export them too (no)",
    )
    parser.add_argument(
        "--max-client-metric-series", type=int, metavar="N", help="series kept of all clients' metrics (20000)"
    )
    parser.add_argument(
        "--otlp-endpoint", metavar="URL", help="collector that metrics are pushed to, such as http://127.0.0.1:4317"
    )
    parser.add_argument("--otlp-period", metavar="DURATION", help="time between two pushes (60s)")
    parser.add_argument(
        "--metric-unit-suffix",
        action=argparse.BooleanOptionalAction,
        help="names of metrics end with their units, as some exporters write them (no)",
    )
    parser.add_argument("--send-backlog", type=_mib, metavar="MIB", help="memory for messages not yet stored (128)")
    parser.add_argument(
        "--max-undelivered", type=_mib, metavar="MIB", help="memory for answers that clients have not read yet (96)"
    )
    parser.add_argument("--max-filter-memory", type=_mib, metavar="MIB", help="memory for filters of receives (64)")
    parser.add_argument("--max-lite-subscriptions", type=int, metavar="N", help="lite topics of all clients (250000)")


def _add_db(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    upgrade = actions.add_parser("upgrade", help="upgrade the schema to this version of popmq")
    check = actions.add_parser("check", help="check the schema's version, and the database for damage")
    for action, run in ((upgrade, _upgrade), (check, _check)):
        _add_database_url(action)
        action.set_defaults(run=run)
    clock = actions.add_parser("clock", help="show how far the server's time is ahead, while no server runs")
    _add_database_url(clock)
    clock.add_argument(
        "--reset", action="store_true", help="set the server's time to the system clock, if it is ahead of it"
    )
    clock.set_defaults(run=_clock)
    compact = actions.add_parser("compact", help="return the free space of a SQLite file, while no server runs")
    _add_database_url(compact)
    compact.set_defaults(run=_compact)


def _add_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the new file; only this user may read it")
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    _add_database_url(parser)
    parser.set_defaults(run=_backup)


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file that popmq backup has written")
    parser.add_argument("--force", action="store_true", help="replace the database if it exists")
    _add_database_url(parser)
    parser.set_defaults(run=_restore)


def _add_database_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--database-url", metavar="URL", help="sqlite:///FILE or postgresql://… (sqlite:///popmq.db)")


def _serve(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    # Before the imports: imported objects stay, so collecting them only takes time.
    _tune_garbage_collector()
    from popserver import app
    from popserver.front import sockets

    config = _config(arguments)
    if config is None:
        return USAGE
    app.configure(config.log_level, config.log_format)
    sockets.raise_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_server(config, started, as_json=arguments.json or config.log_format == "json"))


async def _run_server(config: Any, started: float, *, as_json: bool) -> int:
    from popserver.app import App
    from popserver.database.migrate import HEAD
    from popserver.front.sockets import tell_supervisor
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
        "http": app.http_endpoint or "off",
        **({"admin": app.admin_endpoint} if config.admin else {}),
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
    tell_supervisor(f"READY=1\nSTATUS={words}")
    await stopping.wait()
    tell_supervisor("STOPPING=1")
    print('{"event": "draining"}' if as_json else "popserver draining", file=sys.stderr, flush=True)
    await app.stop()
    return OK


def _tune_garbage_collector() -> None:
    """Collect less often: a batch makes thousands of short-lived objects."""
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


def _backup(arguments: argparse.Namespace) -> int:
    from popserver.database import backup

    return _with_url(arguments, lambda url: backup.backup(url, Path(arguments.file), replace=arguments.force))


def _restore(arguments: argparse.Namespace) -> int:
    from popserver.database import backup

    return _with_url(arguments, lambda url: backup.restore(url, Path(arguments.file), replace=arguments.force))


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

    config = _config(arguments)
    if config is None:
        return USAGE
    try:
        facts = work(config.database_url)
    except PopError as error:
        print(f"popmq: {error.sentence}", file=sys.stderr)
        return REFUSED
    print(json.dumps(facts) if arguments.json else "  ".join(f"{name}={value}" for name, value in facts.items()))
    return OK


def _config(arguments: argparse.Namespace) -> Any:
    """The settings from command line, environment and file. If some are wrong, print a sentence for each; None."""
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
            # Sentences about several settings name them. Values of settings that may have secrets are not shown.
            shows = name in Config.model_fields and name not in SECRET
            where = f"{name}={mistake['input']!r}: " if shows else f"{name}: " if name else ""
            print(f"popmq: {where}{mistake['msg'].removeprefix('Value error, ')}", file=sys.stderr)
        return None
    except (ValueError, OSError) as error:
        print(f"popmq: {FILE} cannot be read ({error}); correct it, or remove it", file=sys.stderr)
        return None


def _loop_factory() -> Any:
    """uvloop if it is installed, because it is faster. The `server` extra installs it where there are wheels."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
