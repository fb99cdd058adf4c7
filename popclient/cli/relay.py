"""`popmq relay`"""

from __future__ import annotations

import signal
import sys
import threading
from argparse import Namespace
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from popclient._sync.producer import Producer
from popclient._urls import readable, to_primary
from popclient.cli import OK
from popclient.cli.arguments import UsageError, client_config
from popclient.cli.output import report
from popclient.errors import PopError
from popclient.sql import Relay
from popclient.sql.relay import and_refused
from popclient.sql.tables import outbox

_SYNC = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
_MAKE = "popclient.sql.metadata.create_all(engine)"


def relay(arguments: Namespace) -> int:
    """Send messages until SIGINT or SIGTERM, or with `--once` until the outbox is empty."""
    engine = _engine(arguments.database_url)
    try:
        # Now, because waiting does not help if the table is missing.
        _check_outbox(engine)
        config = client_config(arguments)
        with Producer(config) as producer:
            relay = Relay(engine, producer)
            moved = relay.run_once() if arguments.once else 0
            waiting, refused = relay.waiting(), relay.refused()
            left = {"waiting": waiting, "refused": refused}
            if arguments.once:
                line = f"moved {moved} messages, {waiting} wait{and_refused(refused)}"
                return report(arguments, {"moved": moved} | left, [line])
            stop = _stopped()
            line = f"relaying to {config.endpoints}, {waiting} messages wait{and_refused(refused)}"
            report(arguments, left, [line])
            sys.stdout.flush()
            relay.run(stop)
    except SQLAlchemyError as error:
        raise PopError(f"the outbox of {engine.url!r} cannot be read: {_first_line(error)}") from error
    finally:
        engine.dispose()
    return OK


def _engine(url: str) -> Engine:
    try:
        parsed = to_primary(make_url(readable(url)))
        named = _by_sync_driver(parsed)
        _check_file(named)
        return create_engine(named)
    except (ArgumentError, NoSuchModuleError) as error:
        raise UsageError(f"--database-url: {_first_line(error)}") from None
    except ModuleNotFoundError as missing:
        if missing.name == "psycopg":  # an extra of ours
            raise
        raise UsageError(f"--database-url: '{parsed.drivername}' needs the module {missing.name}; install it") from None


def _by_sync_driver(url: URL) -> URL:
    """An application of asyncio has the URL of an asyncio driver: its database, by a driver that this command can use.

    Postgres by the driver that PopMQ itself uses, unless another one is named.
    """
    if url.drivername != "postgresql" and not url.get_dialect().is_async:
        return url
    if (kind := url.get_backend_name()) not in _SYNC:
        raise UsageError(f"--database-url: '{url.drivername}' is a driver of asyncio; name another one of {kind}")
    return url.set(drivername=_SYNC[kind])


def _check_file(url: URL) -> None:
    """Raises for a missing file: SQLite would create it."""
    is_file = url.get_backend_name() == "sqlite" and url.database not in {None, "", ":memory:"}
    file = Path(url.database or "").absolute()
    if is_file and "uri" not in url.query and not file.exists():
        raise PopError(
            f"{file} does not exist; name the database of your application, and create the outbox in it: {_MAKE}"
        )


def _check_outbox(engine: Engine) -> None:
    if not inspect(engine).has_table(outbox.name):
        raise PopError(f"{engine.url!r} has no table {outbox.name}; create it with: {_MAKE}")


def _stopped() -> threading.Event:
    """An event that SIGINT and SIGTERM set: the command finishes its current step and ends."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _first_line(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
