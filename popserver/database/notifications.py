"""Notifications between servers on one Postgres: NOTIFY on one channel, in the transaction that they are about.

A notification is only a hint: a server that gets it reads the database. So a notification that cannot be read, or that
would be too long, counts as "everything", which is always correct. Users' own transactions (`migrations/functions.sql`)
send two signals: `due` and `pending`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

CHANNEL = "popmq"
PAYLOAD_BYTES_MAX = 7_999  # the limit of Postgres

EVERYTHING = "everything"  # wake all topics, clear all caches
SERVERS = "servers"  # a server started or stopped
DUE = "due"  # something is due earlier than servers know
PENDING = "pending"  # a pending message was stored
CHECKS = "checks"  # a half message's check is due; only inside this server
USERS = "users"  # a user or a policy was changed
SIGNALS = frozenset({EVERYTHING, SERVERS, DUE, PENDING, USERS})

TOPIC = "topic"
NEW_TOPIC = "new topic"  # created; an earlier topic may have had its name
GROUP = "group"
MEMBERS = "members"  # of a group that owns whole queues: members joined, left, or changed their subscriptions
PAUSES = "pauses"  # an operator paused or resumed a group
RESETS = "resets"  # of such a group: an operator moved its progress
SUBSCRIPTIONS = "subscriptions"  # an operator deleted a group's subscription to a topic


class Invalidation(NamedTuple):
    """A topic or group that was changed or deleted: servers must read it again."""

    kind: str
    namespace: str
    name: str


class Notification(NamedTuple):
    """`sender`: a server's id, empty for a user's transaction; `ready_topics`: ids of topics with new messages."""

    sender: str
    ready_topics: frozenset[int] = frozenset()
    invalidations: frozenset[Invalidation] = frozenset()
    signals: frozenset[str] = frozenset()


def encode(
    sender: str, ready_topics: Collection[int], invalidations: Collection[Invalidation], signals: Collection[str]
) -> str:
    """A notification's payload: ASCII without SQL's quotation marks. Empty if there is nothing to send."""
    if not (ready_topics or invalidations or signals):
        return ""
    payload = _as_json([sender, sorted(ready_topics), sorted(invalidations), sorted(signals)])
    if len(payload) > PAYLOAD_BYTES_MAX:
        payload = _as_json([sender, [], [], sorted({EVERYTHING, *signals})])
    return payload


# Stands for a payload that cannot be read. Checking everything is always correct.
UNREADABLE = Notification("", signals=frozenset({EVERYTHING}))


def decode(payload: str) -> Notification:
    """The notification; `UNREADABLE` if the payload is not from a server of PopMQ."""
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


# Made once, because json.dumps with options makes a new encoder for each call.
_as_json = json.JSONEncoder(separators=(",", ":")).encode
