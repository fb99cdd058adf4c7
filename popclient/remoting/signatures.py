"""Signatures of requests, for clusters whose brokers ask who is calling.

The signature is HMAC-SHA1 over the values of all fields in the order of their names, and the body. Sources: AclUtils
and DefaultAuthenticationContextBuilder of RocketMQ 5.5.0.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

_ACCESS_KEY: Final = "AccessKey"
_SIGNATURE: Final = "Signature"


class AccessKey(NamedTuple):
    """Who calls; empty texts: nobody in particular, and requests are not signed."""

    access_key: str = ""
    access_secret: str = ""

    def __repr__(self) -> str:
        return f"AccessKey({self.access_key!r})"

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """The fields with the key and the signature."""
        if not self.access_key:
            return dict(fields)
        named = {**fields, _ACCESS_KEY: self.access_key}
        content = "".join(named[name] for name in sorted(named)).encode() + body
        digest = hmac.new(self.access_secret.encode(), content, hashlib.sha1).digest()
        return {**named, _SIGNATURE: base64.b64encode(digest).decode()}
