"""Who may do what: users, policies, signatures.

A user signs every call (protocol 2.2) and may do what a policy allows and none denies: DENY wins over ALLOW, and what
no policy speaks of is denied. An admin may do everything: he could give himself any policy anyway.
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
REMEMBERED_MAX = 10_000  # verdicts kept per user; a hit costs a tenth of a look through the policies

# No "/": a credential ends there. No "," and no "=": they part the fields of the header.
_ACCESS_KEY = re.compile(rf"[A-Za-z0-9_.@-]{{1,{ACCESS_KEY_LENGTH_MAX}}}")
_SECRET = re.compile(r"[!-~]+")
_PATTERN = re.compile(r"[%|a-zA-Z0-9_-]+\*?|\*")
_NAMESPACE = re.compile(rf"[%|a-zA-Z0-9_.-]{{0,{NAMESPACE_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who signs calls. The secret is in no text made of a user."""

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
    """Whether a right is given; `policy` decided it, None where none speaks of it."""

    allowed: bool
    policy: Policy | None


class Policies:
    """One user's policies, ready to judge."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        # Denials first, then the most specific: whatever covers the right first decides it.
        self._ordered = sorted(policies, key=lambda each: (each.effect is Effect.ALLOW, -len(each.pattern)))
        self._remembered: dict[Right, Verdict] = {}
        # Whether there is anything at all that this user may not read whatever else is allowed.
        self.denies_reading = any(each.effect is Effect.DENY and Action.SUB in each.actions for each in self._ordered)

    def verdict(self, right: Right) -> Verdict:
        found = self._remembered.get(right)
        if found is None:
            found = self._judge(right)
            self._remember(right, found)
        return found

    def _judge(self, right: Right) -> Verdict:
        asked = given_by(right)
        for policy in self._ordered:
            is_denied = policy.effect is Effect.DENY and policy.covers(right)
            if is_denied or policy.covers(asked):
                return Verdict(policy.effect is Effect.ALLOW, policy)
        return Verdict(False, None)

    def _remember(self, right: Right, verdict: Verdict) -> None:
        # Whatever a caller names gets here: neither long names nor many of them may fill the memory.
        if len(right.name.name) + len(right.name.namespace) > 2 * PATTERN_LENGTH_MAX:
            return
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[right] = verdict


def given_by(right: Right) -> Right:
    """The right that a policy must allow for this one.

    A group's dead letters and retries belong to the group: to read its `%DLQ%` or `%RETRY%` topic takes SUB on the
    group. A policy that allows such a topic by its name, or all topics, does not give it; one that denies it counts.
    """
    if right.kind is not ResourceKind.TOPIC or right.action is not Action.SUB:
        return right
    owner = owner_of(right.name)
    return right if owner is None else Right(Action.SUB, ResourceKind.GROUP, owner)


def why(access_key: str, right: Right, verdict: Verdict) -> str:
    """The verdict in one sentence, with the command that would turn a refusal."""
    if verdict.allowed:
        return f"user '{access_key}' may {right}: {verdict.policy} allows it"
    if verdict.policy is not None:
        return (
            f"user '{access_key}' may not {right}: {verdict.policy} denies it;"
            f" remove it with: popmq acl policy remove {verdict.policy.policy_id}"
        )
    return f"user '{access_key}' may not {right}: no policy allows it; allow it with: {allowing(access_key, right)}"


def allowing(access_key: str, right: Right) -> str:
    """The command that gives the right."""
    right = given_by(right)
    within = f" --namespace {shortened(right.name.namespace)}" if right.name.namespace else ""
    named = f"{right.kind.lower()}:{shortened(right.name.name)}"
    return f"popmq acl policy add {access_key} allow {right.action} {named}{within}"


class Signature(NamedTuple):
    """What an authorization header claims."""

    access_key: str
    digest: str


def read_authorization(header: str) -> Signature | None:
    """`MQv2-HMAC-SHA1 Credential=KEY[/…], SignedHeaders=x-mq-date-time, Signature=HEX`; None for what is no such thing.

    Some clients send it with an empty credential when they have no keys: that is no signature either.
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
    """Whether the digest (hexadecimal, any case) is the secret's over the date as it was sent; in constant time."""
    expected = hmac.new(secret.encode(), date_time.encode(), hashlib.sha1).hexdigest()
    return hmac.compare_digest(expected.encode(), digest.lower().encode())


def is_access_key(text: str) -> bool:
    """Whether it may be a user's name."""
    return _ACCESS_KEY.fullmatch(text) is not None


def check_access_key(access_key: str) -> None:
    """Raise `BadRequest` unless it may be a user's name."""
    if not is_access_key(access_key):
        raise BadRequest(
            f"access key '{shortened(access_key)}' is not one of 1 to {ACCESS_KEY_LENGTH_MAX} characters"
            " out of A-Z a-z 0-9 _ . @ -"
        )


def check_secret(secret: str) -> None:
    """Raise `BadRequest` unless it may be a secret. The sentence never shows it."""
    if not SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX:
        raise BadRequest(
            f"the secret has {len(secret)} characters; give one of {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX}"
        )
    if not _SECRET.fullmatch(secret):
        raise BadRequest("the secret holds a blank or a character outside printable ASCII; choose one without")


def check_policy(actions: Iterable[Action], kind: ResourceKind, resource: Resource) -> None:
    """Raise `BadRequest` unless a policy may say that."""
    if not actions:
        raise BadRequest("the policy names no action; give PUB, SUB or both")
    if kind is ResourceKind.GROUP and Action.PUB in actions:
        raise BadRequest(f"nobody sends to a group: PUB is for topics; give SUB for group:{shortened(resource.name)}")
    if len(resource.name) > PATTERN_LENGTH_MAX or not _PATTERN.fullmatch(resource.name):
        raise BadRequest(
            f"pattern '{shortened(resource.name)}' is no name, prefix* or *, of at most {PATTERN_LENGTH_MAX}"
            " characters out of % | A-Z a-z 0-9 _ -"
        )
    if not _NAMESPACE.fullmatch(resource.namespace):
        raise BadRequest(
            f"namespace '{shortened(resource.namespace)}' is not one of up to {NAMESPACE_LENGTH_MAX} characters"
            " out of % | A-Z a-z 0-9 _ . -"
        )
