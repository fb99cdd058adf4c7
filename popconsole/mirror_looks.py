"""What the last looks at the server's mirrors found, for the rates of mirrors and for the navigation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from popclient.admin import MirrorFacts
from popclient.aio import Admin
from popclient.errors import UnsupportedByServer

RATE_OVER: Final = timedelta(minutes=1)


class Told(NamedTuple):
    """A report of a mirror."""

    at: datetime
    handed: int


class MirrorLooks:
    """The mirrors of a server, as its visitors see them."""

    def __init__(self) -> None:
        self._told: dict[str, list[Told]] = {}
        self._is_offered = True

    @property
    def has_any(self) -> bool:
        """Whether the last look found a mirror."""
        return bool(self._told)

    async def look(self, admin: Admin) -> list[MirrorFacts]:
        """The mirrors now, by id; none of a server that does not record mirrors. Raises a PopError."""
        if not self._is_offered:
            return []
        try:
            found = await admin.list_mirrors()
        except UnsupportedByServer:
            self._is_offered = False
            return []
        self._told = {each.mirror_id: with_report(self._told.get(each.mirror_id, ()), each) for each in found}
        return found

    def rate(self, mirror: MirrorFacts) -> float | None:
        """Messages that it has handed over per second lately; None if there is only one report yet."""
        told = self._told.get(mirror.mirror_id, [])
        if len(told) < 2:
            return None
        return (told[-1].handed - told[0].handed) / (told[-1].at - told[0].at).total_seconds()


def with_report(told: Sequence[Told], mirror: MirrorFacts) -> list[Told]:
    """The reports of the last minute, and the newest one before; of a mirror that began anew, only its last one."""
    last = Told(mirror.updated_at, mirror.handed)
    if told and told[-1].at == last.at:
        return list(told)
    if told and (told[-1].at > last.at or told[-1].handed > last.handed):
        return [last]
    recent = [each for each in told if each.at >= last.at - RATE_OVER] or list(told[-1:])
    return [*recent, last]
