"""Transactions: the server stores a message at once, and delivers it when the rest of the work is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeAlias

from popclient.message import MessageView


class TransactionResolution(Enum):
    """What the server does with a half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"  # no decision yet: the server asks again, and discards the message after its last check


# Returns what became of the work behind a half message. The server may ask any producer of the topic, so the answer
# must come from the place where the work is recorded, not from the memory of this process.
Checker: TypeAlias = Callable[[MessageView], TransactionResolution]
AsyncChecker: TypeAlias = Callable[[MessageView], Awaitable[TransactionResolution]]
