"""The facts about users and their policies that the administration returns. Only `NewUser` has a secret."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class User:
    """A user who signs calls. `disabled_at` is when it was disabled; an admin may do everything."""

    access_key: str
    is_admin: bool
    disabled_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user and its secret. The server does not show the secret again."""

    user: User
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """What one user may do (ALLOW) or may not (DENY, which wins).

    actions: PUB, SUB. resource_kind: TOPIC or GROUP. pattern: a name, a prefix followed by `*`, or `*`, within
    `namespace`.
    """

    id: int
    access_key: str
    effect: str
    actions: tuple[str, ...]
    resource_kind: str
    namespace: str
    pattern: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a user may do something, the policy that decides it (None: no policy speaks of it), and a sentence."""

    allowed: bool
    policy: Policy | None
    reason: str
