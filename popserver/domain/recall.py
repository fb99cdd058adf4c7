"""Recall handles: what a delayed message is taken back by (protocol 8.2).

The layout is the field's own, so that tools which read it find what they expect: URL-safe base64 of five words, "v1",
topic, broker name, delivery time in ms, message id.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from popserver.domain.errors import BadRequest

_VERSION = "v1"
_LENGTH_MAX = 2_048


class Recall(NamedTuple):
    """What a recall handle says. Which broker it names means nothing: every server of a store can recall."""

    topic: str
    broker_name: str
    deliver_at_ms: int
    message_id: str


def encode(recall: Recall) -> str:
    """The handle as the wire carries it."""
    words = (_VERSION, recall.topic, recall.broker_name, str(recall.deliver_at_ms), recall.message_id)
    return base64.urlsafe_b64encode(" ".join(words).encode()).decode("ascii")


def decode(handle: str) -> Recall:
    """Read a handle back; raise `BadRequest` for anything that is none."""
    try:
        if not 0 < len(handle) <= _LENGTH_MAX:
            raise ValueError(f"it has {len(handle)} characters")
        text = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, deliver_at_ms, message_id = text.split(" ", 4)
        if version != _VERSION:
            raise ValueError(f"version '{version[:8]}' instead of {_VERSION}")
        if not deliver_at_ms.isascii() or not deliver_at_ms.isdecimal() or len(deliver_at_ms) > 15:
            raise ValueError(f"'{deliver_at_ms[:16]}' is no delivery time")
    except (ValueError, binascii.Error) as error:
        raise BadRequest(
            f"recall handle '{handle[:48]}' is malformed ({error});"
            " give the one that the delayed message was answered with"
        ) from None
    return Recall(topic, broker_name, int(deliver_at_ms), message_id)
