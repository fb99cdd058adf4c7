"""Transactions: how long a half message may stay undecided, and whom the server asks about it (protocol 8.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from popserver.domain.errors import InvalidTransactionId
from popserver.domain.retry import SECOND_MS


class Resolution(StrEnum):
    """What a producer decides of its half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class CheckPolicy(NamedTuple):
    """When producers are asked about an undecided half message; durations in ms."""

    first_after_ms: int = 6 * SECOND_MS  # unless the message names its own
    interval_ms: int = 30 * SECOND_MS
    checks_max: int = 15  # then it is discarded


def first_check_at_ms(policy: CheckPolicy, recovery_ms: int | None, now_ms: int) -> int:
    """When a half message stored now is first asked about; its own recovery duration counts before the policy's."""
    return now_ms + (recovery_ms or policy.first_after_ms)


def whom_to_ask(producers: Sequence[str], sender: str, checks_before: int) -> list[str]:
    """The topic's producers in the order in which this check tries them.

    The first check starts with the sender, each further one with the next producer: one that cannot answer is not
    asked for ever.
    """
    if not producers:
        return []
    first = producers.index(sender) if sender in producers else 0
    start = (first + checks_before) % len(producers)
    return [*producers[start:], *producers[:start]]


def transaction_id_of(topic_id: int, message_id: bytes, drawn: bytes) -> str:
    """The id of a half message's transaction: eight drawn bytes, and a digest of them with the message's id.

    Drawn, not counted: one that is rolled back and sent again is another transaction. By the digest an id can be told
    from a wrong one when the transaction itself is not stored any more.
    """
    named = drawn + topic_id.to_bytes(8, "big") + message_id
    return (drawn + hashlib.blake2b(named, digest_size=4).digest()).hex().upper()


def is_transaction_of(transaction_id: str, topic_id: int, message_id: bytes) -> bool:
    """Whether the id may have been given to that message."""
    with suppress(ValueError):
        return transaction_id == transaction_id_of(topic_id, message_id, bytes.fromhex(transaction_id[:16]))
    return False


def check_transaction_id(transaction_id: str, message_id: str) -> None:
    """Raise `InvalidTransactionId` for a blank one."""
    if not transaction_id.strip():
        raise InvalidTransactionId(
            f"the transaction id of message '{message_id[:64]}' is blank; send the one that its half was answered with"
        )
