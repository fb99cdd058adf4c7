"""Mirrors: which processes hand messages over between this server and others, how far they are, and how fast."""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.responses import Response

from popclient.admin import MirrorFacts
from popconsole.paging import page_of
from popconsole.rates import every
from popconsole.visits import Visit

ENDED: Final = frozenset({"STOPPED", "DONE"})


class MirrorLine(NamedTuple):
    """A mirror in the table. rate: messages per second; None if it is not known yet."""

    facts: MirrorFacts
    rate: float | None
    is_gone: bool

    @property
    def total(self) -> int:
        """Those that are handed over, and those that are left."""
        return self.facts.handed + (self.facts.lag or 0)


async def mirrors(visit: Visit) -> Response:
    await visit.pulse.now(visit.admin)
    looks = visit.pulse.mirrors
    found = await visit.attempt(looks.look(visit.admin))
    lines = [MirrorLine(each, looks.rate(each), is_gone(each)) for each in found.value or []]
    return visit.show(
        "mirrors.html",
        now=visit.pulse.time,
        rows=page_of(visit, lines),
        failure=found.failure,
        every=every(visit.pulse),
    )


def is_gone(mirror: MirrorFacts) -> bool:
    """Whether its lease is over, and it has not said that it ends."""
    return mirror.state not in ENDED and not mirror.has_lease
