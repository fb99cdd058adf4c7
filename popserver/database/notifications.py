"""What servers on one Postgres tell each other, in the transaction that makes it true: NOTIFY on one channel.

A notice is a hint, never a fact: whoever hears it looks. So one that cannot be read, or would be too long, says
"everything", which is always true. Two words come from a user's own transactions (`migrations/functions`): `due` and
`pending`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

CHANNEL = "popmq"
PAYLOAD_BYTES_MAX = 7_999  # what Postgres takes

EVERYTHING = "everything"  # wake every topic, forget every name
SERVERS = "servers"  # one came, or went
DUE = "due"  # something fell due earlier than anybody was told
PENDING = "pending"  # something waits to enter its queue
CHECKS = "checks"  # the producers of a half message are to be asked; of this server alone
USERS = "users"  # a user or a policy was changed
SIGNALS = frozenset({EVERYTHING, SERVERS, DUE, PENDING, USERS})

TOPIC = "topic"
NEW_TOPIC = "new topic"  # made just now; another one may have had its name before
GROUP = "group"
MEMBERS = "members"  # of a group that owns whole queues: some came, went, or want something else
RESETS = "resets"  # of such a group: an operator has moved its progress


class Invalidation(NamedTuple):
    """A topic or group that was changed or deleted, or what became of one: whoever remembers it has to look again."""

    kind: str
    namespace: str
    name: str


class Notification(NamedTuple):
    """`sender` is a server's id, empty for a user's transaction; `ready_topics` are topics with something to grant."""

    sender: str
    ready_topics: frozenset[int] = frozenset()
    invalidations: frozenset[Invalidation] = frozenset()
    signals: frozenset[str] = frozenset()


def encode(
    sender: str, ready_topics: Collection[int], invalidations: Collection[Invalidation], signals: Collection[str]
) -> str:
    """A notice's payload: ASCII without quotation marks of SQL. Empty where there is nothing to say."""
    if not (ready_topics or invalidations or signals):
        return ""
    payload = _as_json([sender, sorted(ready_topics), sorted(invalidations), sorted(signals)])
    if len(payload) > PAYLOAD_BYTES_MAX:
        payload = _as_json([sender, [], [], sorted({EVERYTHING, *signals})])
    return payload


# What a payload counts as that is none of ours. To look is never wrong.
UNREADABLE = Notification("", signals=frozenset({EVERYTHING}))


def decode(payload: str) -> Notification:
    """The notice; `UNREADABLE` where the payload is none of ours."""
    if payload in SIGNALS:
        return Notification("", signals=frozenset({payload}))
    try:
        sender, ready_topics, invalidations, signals = json.loads(payload)
        changed = [Invalidation(*each) for each in invalidations]
        if not (
            _are(int, ready_topics) and _are(str, [sender, *signals, *(text for each in changed for text in each)])
        ):
            return UNREADABLE
        return Notification(sender, frozenset(ready_topics), frozenset(changed), frozenset(signals))
    except (ValueError, TypeError, RecursionError):
        return UNREADABLE


def _are(kind: type, values: Iterable[Any]) -> bool:
    return all(type(each) is kind for each in values)


# Made once: json.dumps makes an encoder per call as soon as one of its options is used.
_as_json = json.JSONEncoder(separators=(",", ":")).encode
