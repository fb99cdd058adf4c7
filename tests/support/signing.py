"""A caller's signature, made from the protocol's text alone (protocol 2.2)."""

from __future__ import annotations

import hashlib
import hmac

DATE = "20250101T000000Z"


def signed(access_key: str, secret: str, date_time: str = DATE, *, upper: bool = True) -> dict[str, str]:
    """The two headers of a signed call."""
    digest = hmac.new(secret.encode(), date_time.encode(), hashlib.sha1).hexdigest()
    digest = digest.upper() if upper else digest
    return {
        "x-mq-date-time": date_time,
        "authorization": f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={digest}",
    }
