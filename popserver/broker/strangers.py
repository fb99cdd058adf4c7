"""Callers who were not let in: a line each in the log, for the operator who wonders why nothing comes.

The answer they get must not tell whether it was the name or the secret; the log may. It says neither a signature nor
anything that could be a secret typed in the place of the name, and no caller can fill it.
"""

from __future__ import annotations

import structlog

from popserver.domain.acl import is_access_key, read_authorization
from popserver.domain.retry import MINUTE_MS
from popserver.store.acl import Acl

AGAIN_MS = MINUTE_MS
TOLD_MAX = 1_000  # names and addresses a minute; of more nothing is told
_NAME_LENGTH_MAX = 256

log = structlog.get_logger("popserver.access")


class Strangers:
    """Tells of each name and address once a minute."""

    def __init__(self) -> None:
        # When it was told of each, the oldest first.
        self._told: dict[tuple[str, str], int] = {}

    def turned_away(self, acl: Acl, authorization: str, peer: str, refusal: str | None, now_ms: int) -> None:
        """`authorization` is the header as it was sent, `peer` HOST:PORT; `refusal`: None for name or secret."""
        claimed = read_authorization(authorization)
        name = "" if claimed is None else claimed.access_key[:_NAME_LENGTH_MAX]
        address = peer.rpartition(":")[0]
        if self._is_due(name, address, now_ms):
            log.warning(
                "caller turned away",
                user=_shown(acl, name),
                address=address,
                reason="the call is not signed" if claimed is None else refusal or _reason(acl, name),
            )

    def _is_due(self, name: str, address: str, now_ms: int) -> bool:
        while self._told and next(iter(self._told.values())) <= now_ms - AGAIN_MS:
            del self._told[next(iter(self._told))]
        if (name, address) in self._told or len(self._told) >= TOLD_MAX:
            return False
        self._told[name, address] = now_ms
        return True


def _reason(acl: Acl, name: str) -> str:
    user = next((each for each in acl.users if each.access_key == name), None)
    if user is None:
        return "there is no user of this name"
    if user.disabled_at_ms is not None:
        return "this user is disabled"
    return "the signature is not made with this user's secret"


def _shown(acl: Acl, name: str) -> str:
    if any(each.access_key == name for each in acl.users):
        return name
    may_be_secret = not is_access_key(name) or any(each.secret == name for each in acl.users)
    return "(not shown)" if name and may_be_secret else name
