"""Who may read the metrics, which name topics and groups, and why the server is not ready."""

from __future__ import annotations

import hmac

from starlette.requests import Request

from popport.addresses import is_loopback

HOW = "send the server's POPMQ_METRICS_TOKEN as the header 'Authorization: Bearer TOKEN'"
NOT_HERE = (
    "only callers from the server's own machine may read this; others need a token: start the server with one, and"
)


class Readers:
    """With a token those who have it. Without one the callers of this machine, or all if the server trusts them."""

    def __init__(self, token: str, *, trusts_all: bool) -> None:
        """`token`: empty if there is none."""
        self._expected = f"Bearer {token}".encode() if token else b""
        self._trusts_all = trusts_all

    def may_read(self, request: Request) -> bool:
        """Whether this caller is one of them."""
        if self._expected:
            return hmac.compare_digest(request.headers.get("authorization", "").encode("latin-1"), self._expected)
        return self._trusts_all or (request.client is not None and is_loopback(request.client.host))

    @property
    def refusal(self) -> str:
        """The answer to all others."""
        return HOW if self._expected else f"{NOT_HERE} {HOW}"
