"""Transactions: how long a half message may stay undecided, and which producers the server asks (protocol 8.1)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from popserver.model.errors import IllegalDeliveryTime, InvalidTransactionId
from popserver.model.retry import HOUR_MS, SECOND_MS
from popserver.model.times import TIME_MS_MAX, span


class Resolution(StrEnum):
    """A producer's decision about its half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


class CheckPolicy(NamedTuple):
    """When producers are asked about an undecided half message; durations in ms."""

    first_after_ms: int = 6 * SECOND_MS  # if the message does not name its own
    interval_ms: int = 30 * SECOND_MS
    checks_max: int = 15  # then it is discarded


def first_check_at_ms(policy: CheckPolicy, recovery_ms: int | None, now_ms: int) -> int:
    """When a half message that is stored now has its first check: after its own recovery duration, or the policy's."""
    return now_ms + (recovery_ms or policy.first_after_ms)


def producers_to_ask(producers: Sequence[str], sender: str, checks_before: int) -> list[str]:
    """The topic's producers in the order in which this check tries them.

    The first check starts with the sender. Each further check starts with the next producer, so that one producer that
    does not answer cannot block the decision.
    """
    if not producers:
        return []
    first = producers.index(sender) if sender in producers else 0
    start = (first + checks_before) % len(producers)
    return [*producers[start:], *producers[:start]]


def check_transaction_id(transaction_id: str, message_id: str) -> None:
    """Raise `InvalidTransactionId` for a blank one."""
    if not transaction_id.strip():
        raise InvalidTransactionId(
            f"the transaction id of message '{message_id[:64]}' is blank; send the id that its half message was given"
        )


# Pending messages are stored, but in no queue yet: delayed messages and half messages (docs/design/0013).
#
# A delayed message enters its queue when it is due, a half message when it is committed. Until then no consumer sees
# it, retention does not delete it, and it can be taken back.

DAY_MS = 24 * HOUR_MS
DELAY_MS_MAX = 40 * DAY_MS  # complaint U26: one documented maximum; a server may set another, 0 for none


def check_delivery_time(deliver_at_ms: int, now_ms: int, delay_ms_max: int) -> None:
    """Raise `IllegalDeliveryTime` for a time too far ahead. A time in the past means at once (protocol 8.2)."""
    if not 0 <= deliver_at_ms <= TIME_MS_MAX:
        raise IllegalDeliveryTime(f"delivery timestamp {deliver_at_ms} ms is not between the years 1970 and 9999")
    delay_ms = deliver_at_ms - now_ms
    if delay_ms_max and delay_ms > delay_ms_max:
        raise IllegalDeliveryTime(
            f"the message would be delivered in {span(delay_ms)}; allowed: {span(delay_ms_max)};"
            " start the server with a longer --max-delay, or with --max-delay 0s for no limit"
        )
