"""Transactions: a message that is stored at once and delivered only when the rest of the work is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeAlias

from popclient.message import MessageView


class TransactionResolution(Enum):
    """What is to become of a half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"  # not decided yet: the server asks again, and discards the message after its last check


# Tells what became of the work that a half message belongs to. Any producer of the topic may be asked, so the answer
# has to come from where the work is recorded, not from this process's memory.
Checker: TypeAlias = Callable[[MessageView], TransactionResolution]
AsyncChecker: TypeAlias = Callable[[MessageView], Awaitable[TransactionResolution]]
