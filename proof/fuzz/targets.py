"""All targets by name."""

from __future__ import annotations

from collections.abc import Mapping

from proof.fuzz.filters import FiltersTarget
from proof.fuzz.handles import HandlesTarget
from proof.fuzz.served.calls import CallsTarget
from proof.fuzz.target import FuzzTarget
from proof.fuzz.texts import AuthorizationTarget, NotificationsTarget, OffsetsTarget

_ALL = (FiltersTarget, HandlesTarget, OffsetsTarget, NotificationsTarget, AuthorizationTarget, CallsTarget)
TARGETS: Mapping[str, type[FuzzTarget]] = {each.name: each for each in _ALL}
# How many of 100 inputs of a run without a named target each gets.
SHARES: Mapping[str, int] = {
    "filters": 28,
    "handles": 18,
    "offsets": 18,
    "notifications": 18,
    "authorization": 13,
    "calls": 5,
}
