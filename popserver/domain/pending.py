"""Messages that are stored and in no queue yet: delayed ones, and the halves of transactions (docs/design/0013).

A delayed message enters its queue when it is due, a half message when it is committed. Until then no consumer sees it,
no retention touches it, and it can be taken back.
"""

from __future__ import annotations

from enum import StrEnum

from popserver.domain.errors import IllegalDeliveryTime
from popserver.domain.retry import HOUR_MS
from popserver.domain.spans import span

DAY_MS = 24 * HOUR_MS
DELAY_MS_MAX = 40 * DAY_MS  # complaint U26: one documented maximum; a server may set another, 0 for none
# The last millisecond of the year 9999: what a timestamp on the wire can say.
TIME_MS_MAX = 253_402_300_799_999


class PendingKind(StrEnum):
    """What a pending message waits for."""

    DELAY = "DELAY"  # its time
    HALF = "HALF"  # its producer's decision


def check_delivery_time(deliver_at_ms: int, now_ms: int, delay_ms_max: int) -> None:
    """Raise `IllegalDeliveryTime` for a time too far ahead; one that is past or now means at once (protocol 8.2)."""
    if not 0 <= deliver_at_ms <= TIME_MS_MAX:
        raise IllegalDeliveryTime(f"delivery timestamp {deliver_at_ms} ms is no time between the years 1970 and 9999")
    delay_ms = deliver_at_ms - now_ms
    if delay_ms_max and delay_ms > delay_ms_max:
        raise IllegalDeliveryTime(
            f"the message would be delivered in {span(delay_ms)}; allowed: {span(delay_ms_max)};"
            " start the server with a longer --max-delay, or with 0s for any"
        )
