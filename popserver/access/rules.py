"""Users, policies and signatures.

A user signs every call (protocol 2.2) and may do what a policy allows and no policy denies. DENY wins over ALLOW. What
no policy covers is denied. An admin may do everything, because admins can add any policy for themselves.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from popserver.model.acl import PATTERN_LENGTH_MAX, Action, Effect, ResourceKind, Right, shortened
from popserver.model.errors import BadRequest
from popserver.model.names import NAMESPACE_LENGTH_MAX, Resource, owner_of

ALGORITHM = "MQv2-HMAC-SHA1"
ACCESS_KEY_LENGTH_MAX = 64
SECRET_LENGTH_MIN = 8
SECRET_LENGTH_MAX = 256
USERS_MAX = 10_000
POLICIES_OF_USER_MAX = 1_000
REMEMBERED_MAX = 10_000  # verdicts per user; reading one costs a tenth of checking the policies

# Without "/", which ends a credential, and without "," and "=", which separate the fields of the header.
_ACCESS_KEY = re.compile(rf"[A-Za-z0-9_.@-]{{1,{ACCESS_KEY_LENGTH_MAX}}}")
_SECRET = re.compile(r"[!-~]+")
_PATTERN = re.compile(r"[%|a-zA-Z0-9_-]+\*?|\*")
_NAMESPACE = re.compile(rf"[%|a-zA-Z0-9_.-]{{0,{NAMESPACE_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class User:
    """A user who signs calls. Its repr does not show the secret."""

    access_key: str
    secret: str = field(repr=False)
    is_admin: bool = False
    disabled_at_ms: int | None = None
    created_at_ms: int = 0


class Policy(NamedTuple):
    """One rule for one user; `pattern` is a name, or a prefix followed by `*`, within one namespace."""

    policy_id: int
    access_key: str
    effect: Effect
    actions: tuple[Action, ...]
    kind: ResourceKind
    namespace: str
    pattern: str
    created_at_ms: int

    def __str__(self) -> str:
        within = f" in namespace '{self.namespace}'" if self.namespace else ""
        return f"policy {self.policy_id} ({self.effect} {','.join(self.actions)} {self.resource}{within})"

    @property
    def resource(self) -> str:
        """As the command line writes it: `topic:orders*`."""
        return f"{self.kind.lower()}:{self.pattern}"

    def covers(self, right: Right) -> bool:
        if right.kind is not self.kind or right.action not in self.actions or right.name.namespace != self.namespace:
            return False
        if self.pattern.endswith("*"):
            return right.name.name.startswith(self.pattern[:-1])
        return right.name.name == self.pattern


class Verdict(NamedTuple):
    """Whether a right is allowed, and the policy that decided it; None if no policy covers it."""

    allowed: bool
    policy: Policy | None


class Policies:
    """The policies of one user, and their verdicts."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        # Denials first, then the most specific policy. The first policy that covers a right decides.
        self._ordered = sorted(policies, key=lambda each: (each.effect is Effect.ALLOW, -len(each.pattern)))
        self._remembered: dict[Right, Verdict] = {}
        # Whether any policy denies SUB.
        self.denies_reading = any(each.effect is Effect.DENY and Action.SUB in each.actions for each in self._ordered)

    def verdict(self, right: Right) -> Verdict:
        found = self._remembered.get(right)
        if found is None:
            found = self._judge(right)
            self._remember(right, found)
        return found

    def _judge(self, right: Right) -> Verdict:
        asked = implied_right(right)
        for policy in self._ordered:
            is_denied = policy.effect is Effect.DENY and policy.covers(right)
            if is_denied or policy.covers(asked):
                return Verdict(policy.effect is Effect.ALLOW, policy)
        return Verdict(False, None)

    def _remember(self, right: Right, verdict: Verdict) -> None:
        # Callers choose these names, so neither long names nor many names may fill the memory.
        if len(right.name.name) + len(right.name.namespace) > 2 * PATTERN_LENGTH_MAX:
            return
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[right] = verdict


def implied_right(right: Right) -> Right:
    """The right that a policy must allow so that the user has `right`.

    Dead letters and retries belong to their group: reading its `%DLQ%` or `%RETRY%` topic needs SUB on the group. A
    policy that allows such a topic by name, or all topics, is not enough. A policy that denies the topic counts.
    """
    if right.kind is not ResourceKind.TOPIC or right.action is not Action.SUB:
        return right
    owner = owner_of(right.name)
    return right if owner is None else Right(Action.SUB, ResourceKind.GROUP, owner)


def why(access_key: str, right: Right, verdict: Verdict) -> str:
    """The verdict in one sentence. For a refusal, with the command that would allow it."""
    if verdict.allowed:
        return f"user '{access_key}' may {right}: {verdict.policy} allows it"
    if verdict.policy is not None:
        return (
            f"user '{access_key}' may not {right}: {verdict.policy} denies it;"
            f" remove it with: popmq acl policy remove {verdict.policy.policy_id}"
        )
    return f"user '{access_key}' may not {right}: no policy allows it; allow it with: {allowing(access_key, right)}"


def allowing(access_key: str, right: Right) -> str:
    """The command that allows the right."""
    right = implied_right(right)
    within = f" --namespace {shortened(right.name.namespace)}" if right.name.namespace else ""
    named = f"{right.kind.lower()}:{shortened(right.name.name)}"
    return f"popmq acl policy add {access_key} allow {right.action} {named}{within}"


class Signature(NamedTuple):
    """What an authorization header claims."""

    access_key: str
    digest: str


def read_authorization(header: str) -> Signature | None:
    """Parse `MQv2-HMAC-SHA1 Credential=KEY[/…], SignedHeaders=x-mq-date-time, Signature=HEX`; None for other headers.

    Also None for an empty credential, which some clients send if they have no keys.
    """
    algorithm, _, listed = header.partition(" ")
    if algorithm != ALGORITHM:
        return None
    fields: dict[str, str] = {}
    for part in listed.split(","):
        name, _, value = part.strip().partition("=")
        fields[name] = value
    access_key = fields.get("Credential", "").partition("/")[0]
    return Signature(access_key, fields.get("Signature", "")) if access_key else None


def is_signed(secret: str, date_time: str, digest: str) -> bool:
    """Whether `digest` (hexadecimal, any case) is the HMAC-SHA1 of the date, as sent. Compares in constant time."""
    expected = hmac.new(secret.encode(), date_time.encode(), hashlib.sha1).hexdigest()
    return hmac.compare_digest(expected.encode(), digest.lower().encode())


def is_access_key(text: str) -> bool:
    """Whether the text is a legal access key."""
    return _ACCESS_KEY.fullmatch(text) is not None


def check_access_key(access_key: str) -> None:
    """Raise `BadRequest` for an illegal access key."""
    if not is_access_key(access_key):
        raise BadRequest(
            f"access key '{shortened(access_key)}' is not allowed; use 1 to {ACCESS_KEY_LENGTH_MAX} characters"
            " out of A-Z a-z 0-9 _ . @ -"
        )


def check_secret(secret: str) -> None:
    """Raise `BadRequest` for an illegal secret. The sentence never shows the secret."""
    if not SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX:
        raise BadRequest(f"the secret has {len(secret)} characters; use {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX}")
    if not _SECRET.fullmatch(secret):
        raise BadRequest("the secret has a blank or a character outside printable ASCII; choose one without")


def check_policy(actions: Iterable[Action], kind: ResourceKind, resource: Resource) -> None:
    """Raise `BadRequest` for an illegal policy."""
    if not actions:
        raise BadRequest("the policy names no action; give PUB, SUB or both")
    if kind is ResourceKind.GROUP and Action.PUB in actions:
        raise BadRequest(f"PUB is for topics, not for groups; give SUB for group:{shortened(resource.name)}")
    if len(resource.name) > PATTERN_LENGTH_MAX or not _PATTERN.fullmatch(resource.name):
        raise BadRequest(
            f"pattern '{shortened(resource.name)}' is not allowed; use a name, prefix* or *, with at most"
            f" {PATTERN_LENGTH_MAX} characters out of % | A-Z a-z 0-9 _ -"
        )
    if not _NAMESPACE.fullmatch(resource.namespace):
        raise BadRequest(
            f"namespace '{shortened(resource.namespace)}' is not allowed; use at most {NAMESPACE_LENGTH_MAX} characters"
            " out of % | A-Z a-z 0-9 _ . -"
        )
