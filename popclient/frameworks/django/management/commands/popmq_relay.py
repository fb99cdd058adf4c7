"""`manage.py popmq_relay`"""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from popclient import PopError, Producer
from popclient.frameworks.django.apps import config
from popclient.sql import Relay
from popclient.sql.relay import and_refused

_DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+mysqldb"}  # by Django's vendor


class RelayCommand(BaseCommand):
    """Sends the messages of the outbox until SIGTERM or Ctrl-C. Several may run at once."""

    help = "Send the messages of the outbox to PopMQ."

    def add_arguments(self, parser: CommandParser) -> None:
        """The alias of the database, and whether to end when nothing is left."""
        parser.add_argument("--database", default="default", help="the alias of the database (default)")
        parser.add_argument("--once", action="store_true", help="end when nothing is left")

    def handle(self, *_: Any, database: str, once: bool, **__: Any) -> None:
        """Raises CommandError for a database that the relay cannot use, and for a final refusal of the broker."""
        # A relay reads and sends in its own transactions, so it has its own connections; Django knows how to make them.
        wrapper = connections[database]
        if wrapper.vendor not in _DIALECTS:
            raise CommandError(
                f"--database {database}: no outbox in {wrapper.vendor}; use one of {', '.join(_DIALECTS)}"
            )
        engine = create_engine(
            f"{_DIALECTS[wrapper.vendor]}://",
            creator=lambda: wrapper.get_new_connection(wrapper.get_connection_params()),
        )
        try:
            with Producer(config()) as producer:
                relay = Relay(engine, producer)
                refused = and_refused(relay.refused())
                self.stdout.write(f"relaying from database '{database}', {relay.waiting()} messages wait{refused}")
                if once:
                    moved = relay.run_once()
                    refused = and_refused(relay.refused())
                    self.stdout.write(f"moved {moved} messages, {relay.waiting()} wait{refused}")
                    return
                stop = threading.Event()
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda *_: stop.set())
                relay.run(stop)
        except (PopError, SQLAlchemyError) as error:
            raise CommandError(f"the outbox of database '{database}' waits: {error}") from error
        finally:
            engine.dispose()


Command = RelayCommand  # the name that Django looks for
