"""`manage.py popmq_consume`"""

from __future__ import annotations

import functools
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils.module_loading import import_string

from popclient import ConsumeResult, MessageView, PopError, PushConsumer
from popclient.frameworks.django.apps import config
from popclient.listening import Listener


class ConsumeCommand(BaseCommand):
    """Calls a listener with the messages of a group until SIGTERM or Ctrl-C."""

    help = "Consume messages of PopMQ with a listener of your project."

    def add_arguments(self, parser: CommandParser) -> None:
        """The listener, the group, the topics, and how many threads."""
        parser.add_argument("listener", help="a function that takes a message, such as shop.listeners.bill")
        parser.add_argument("--group", required=True, help="the consumer group")
        parser.add_argument("--topic", action="append", required=True, help="a topic; may be repeated")
        parser.add_argument("--concurrency", type=int, default=20, help="how many threads call the listener (20)")

    def handle(self, *_: Any, listener: str, group: str, topic: list[str], concurrency: int, **__: Any) -> None:
        """Raises CommandError for a listener that cannot be loaded, and for a refusal of the broker."""
        try:
            function = import_string(listener)
        except ImportError as error:
            raise CommandError(f"listener {listener!r} cannot be loaded: {error}") from error
        try:
            PushConsumer(config(), group, topic, with_connections(function), concurrency=concurrency).run()
        except (PopError, TypeError, ValueError) as error:
            raise CommandError(str(error)) from error


Command = ConsumeCommand  # the name that Django looks for


def with_connections(listener: Listener) -> Listener:
    """The listener, with Django's connections treated around each message as around a request."""

    @functools.wraps(listener)
    def listen(message: MessageView) -> ConsumeResult | None:
        close_old_connections()
        try:
            return listener(message)
        finally:
            close_old_connections()

    return listen
