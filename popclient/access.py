"""Users of a server and their policies, as `popclient.admin` shows them. None of these holds a secret."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from popproto.v1 import admin_pb2 as wire


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who signs calls. `disabled_at` is when it was shut out; an admin may do everything."""

    access_key: str
    is_admin: bool
    disabled_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NewUser:
    """A user and its secret, which is shown this once: the server tells it to nobody."""

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


def new_secret() -> str:
    """256 random bits as 43 characters that a header and a shell take as they are."""
    return secrets.token_urlsafe(32)


def user_of(user: wire.User) -> User:
    disabled_at = _time(user.disabled_at) if user.HasField("disabled_at") else None
    return User(user.access_key, user.is_admin, disabled_at, _time(user.created_at))


def policy_of(policy: wire.Policy) -> Policy:
    return Policy(
        id=policy.id,
        access_key=policy.access_key,
        effect=policy.effect,
        actions=tuple(policy.actions),
        resource_kind=policy.resource_kind,
        namespace=policy.pattern.resource_namespace,
        pattern=policy.pattern.name,
        created_at=_time(policy.created_at),
    )


def explanation_of(answer: wire.ExplainAccessResponse) -> Explanation:
    policy = policy_of(answer.policy) if answer.HasField("policy") else None
    return Explanation(answer.allowed, policy, answer.reason)


def _time(timestamp: Any) -> datetime:
    moment: datetime = timestamp.ToDatetime(UTC)
    return moment
