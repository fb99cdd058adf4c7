"""All targets by name."""

from __future__ import annotations

from collections.abc import Mapping

from proof.fuzz.filters import FiltersTarget
from proof.fuzz.handles import HandlesTarget
from proof.fuzz.target import FuzzTarget
from proof.fuzz.texts import AuthorizationTarget, NotificationsTarget, OffsetsTarget

TARGETS: Mapping[str, type[FuzzTarget]] = {
    each.name: each for each in (FiltersTarget, HandlesTarget, OffsetsTarget, NotificationsTarget, AuthorizationTarget)
}
# How many of 100 inputs of a run without a named target each gets.
SHARES: Mapping[str, int] = {"filters": 30, "handles": 20, "offsets": 20, "notifications": 20, "authorization": 10}
