"""Idempotency keys: a producer's own name for what a message says (complaint U18).

Within a window a topic stores one message of a key; whoever sends another gets the first one's result.
"""

from __future__ import annotations

from collections.abc import Mapping

from popserver.domain.errors import IllegalMessagePropertyKey
from popserver.domain.retry import HOUR_MS

PROPERTY = "popmq.idempotency-key"  # how any client gives it
KEY_BYTES_MAX = 255
WINDOW_MS = 24 * HOUR_MS


def check_key(properties: Mapping[str, str]) -> None:
    """Raise `IllegalMessagePropertyKey` for a key that is blank or longer than 255 bytes."""
    key = properties.get(PROPERTY)
    if key is None:
        return
    if not key.strip():
        raise IllegalMessagePropertyKey(f"property {PROPERTY} is blank; leave it out, or name what the message says")
    size = len(key.encode())
    if size > KEY_BYTES_MAX:
        raise IllegalMessagePropertyKey(
            f"property {PROPERTY} '{key[:32]}…' has {size} bytes, at most {KEY_BYTES_MAX} are allowed"
        )
