"""What a Django application calls."""

from __future__ import annotations

import atexit
import functools
from typing import Any

from django.db import transaction

from popclient import ClientConfig, Message
from popclient._tracing import carrying
from popclient.frameworks.django.apps import config
from popclient.frameworks.forking import ForkingProducer
from popclient.message import as_message
from popclient.sql.in_transaction import outbox_row
from popclient.sql.rules import require_acceptable


@functools.cache
def producer() -> ForkingProducer:
    """The producer of this process. It connects at its first message, and again after a fork; safe in threads."""
    made = ForkingProducer(config())
    atexit.register(made.close)
    return made


def send_on_commit(
    message: Message | str, body: bytes | str = b"", /, *, using: str | None = None, **fields: Any
) -> None:
    """Sends a message right after the transaction commits, and never if it rolls back; without a transaction at once.

    Takes the arguments of `Producer.send`. using: the alias of the database; None: the default one. Raises at once for
    a message that no server takes. What fails later raises its PopError after the commit: the rest of the request must
    not count on it. If the process ends between the commit and the send, the message is lost; `enqueue` does not lose
    it.
    """
    made = _made("send_on_commit", message, body, fields)
    transaction.on_commit(lambda: producer().send(made), using=using)


def enqueue(message: Message | str, body: bytes | str = b"", /, *, using: str | None = None, **fields: Any) -> str:
    """Writes a message into the outbox, as a part of the transaction; returns its id. `popmq_relay` sends it.

    Takes the arguments of `Producer.send`. using: the alias of the database; None: the one that Django's router names.
    A delay counts from now.
    """
    from popclient.frameworks.django.models import OutboxMessage  # when the applications are loaded

    made = carrying(ClientConfig(), _made("enqueue", message, body, fields))
    row = OutboxMessage(**outbox_row(made))
    row.save(using=using, force_insert=True)
    return str(row.message_id)


def _made(taker: str, message: Message | str, body: bytes | str, fields: dict[str, Any]) -> Message:
    """The message; raises TypeError, ValueError or a PopError for one that no server takes."""
    if isinstance(message, Message):
        made = as_message(taker, {"message": message, "body": body, **fields})
    else:
        made = Message(message, body, **fields)
    require_acceptable(made)
    return made
