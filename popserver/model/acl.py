"""Rights, which calls need and policies allow or deny."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from popserver.model.names import Resource

PATTERN_LENGTH_MAX = 255


class Action(StrEnum):
    PUB = "PUB"
    SUB = "SUB"


class Effect(StrEnum):
    ALLOW = "ALLOW"
    DENY = "DENY"


class ResourceKind(StrEnum):
    TOPIC = "TOPIC"
    GROUP = "GROUP"


class Right(NamedTuple):
    """One action on one topic or group."""

    action: Action
    kind: ResourceKind
    name: Resource

    def __str__(self) -> str:
        return f"{self.action} {self.kind.lower()} '{shortened(str(self.name))}'"


def shortened(text: str) -> str:
    return text if len(text) <= PATTERN_LENGTH_MAX else f"{text[:PATTERN_LENGTH_MAX]}…"


# One need of a call: any one of these rights is enough.
AnyOfRights = tuple[Right, ...]
