"""All targets by name."""

from __future__ import annotations

from collections.abc import Mapping

from proof.fuzz.filters import FiltersTarget
from proof.fuzz.handles import HandlesTarget
from proof.fuzz.served.calls import CallsTarget
from proof.fuzz.served.frames import FramesTarget
from proof.fuzz.served.web import WebTarget
from proof.fuzz.target import FuzzTarget
from proof.fuzz.texts import AuthorizationTarget, NotificationsTarget, OffsetsTarget

TARGETS: Mapping[str, type[FuzzTarget]] = {
    each.name: each
    for each in (
        FiltersTarget,
        HandlesTarget,
        OffsetsTarget,
        NotificationsTarget,
        AuthorizationTarget,
        CallsTarget,
        WebTarget,
        FramesTarget,
    )
}
# How many of 100 inputs of a run without a named target each gets. A server judges 1,000 a second, a parser 10,000.
SHARES: Mapping[str, int] = {
    "filters": 27,
    "handles": 18,
    "offsets": 18,
    "notifications": 18,
    "authorization": 6,
    "calls": 5,
    "web": 4,
    "frames": 4,
}
