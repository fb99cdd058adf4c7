"""Notifications between servers on one Postgres: NOTIFY on one channel, in the transaction of the change.

A notification is only a hint: a server that gets it reads the database. So a notification that cannot be decoded, or
that would be too long, counts as "everything", which is always correct. Users' own transactions
(`migrations/functions.sql`) send two signals: `due` and `pending`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

CHANNEL = "popmq"
PAYLOAD_BYTES_MAX = 7_999  # the limit of Postgres

EVERYTHING = "everything"  # wake all topics, clear all caches
SERVERS = "servers"  # a server started or stopped
DUE = "due"  # a delivery is due earlier than the timers of servers
PENDING = "pending"  # a pending message was stored
LITE_CLIENTS = "lite clients"  # a client has not named its lite topics for a while; only inside this server
LITE_TOPICS = "lite topics"  # a lite topic may have expired; only inside this server
CHECKS = "checks"  # a half message's check is due; only inside this server
USERS = "users"  # a user or a policy was changed
WANTS = "wants"  # a server announces of which topics it wants to be notified
SIGNALS = frozenset({EVERYTHING, SERVERS, DUE, PENDING, USERS})

TOPIC = "topic"
NEW_TOPIC = "new topic"  # created; an earlier topic may have had its name
GROUP = "group"
MEMBERS = "members"  # of a group that owns whole queues: members joined, left, or changed their subscriptions
PAUSES = "pauses"  # an operator paused or resumed a group
LITE = "lite"  # the lite topics of a client changed; its names are a group's and a topic's id, and the client's
LITE_SHARED = "lite shared"  # other clients got some of a client's lite topics, too or instead; the names as in LITE
LITE_LOST = "lite lost"  # other clients have lite topics now: their names, separated by commas, and the client's id
RESETS = "resets"  # of a group that owns whole queues: an operator moved its progress
SUBSCRIPTIONS = "subscriptions"  # an operator deleted a group's subscription to a topic


class Invalidation(NamedTuple):
    """A topic or group that was changed or deleted: servers must read it again."""

    kind: str
    namespace: str
    name: str


class Notification(NamedTuple):
    """`sender`: a server's id, empty for a user's transaction; `ready_topics`: ids of topics with new messages.

    `ready_lite`: by the id of their topic, the hashes of lite topics with new messages. `wants`, with the signal WANTS:
    the ids of the topics of which the sender wants to be notified; None: of all.
    """

    sender: str
    ready_topics: frozenset[int] = frozenset()
    invalidations: frozenset[Invalidation] = frozenset()
    signals: frozenset[str] = frozenset()
    ready_lite: Mapping[int, Collection[int]] = {}
    wants: frozenset[int] | None = None


def hashes_of(lite_topics: Mapping[int, Iterable[str]]) -> dict[int, set[int]]:
    """The hashes of lite topics, by the id of their topic. A hash is short, and equal hashes do no harm."""
    return {topic_id: {zlib.crc32(each.encode()) for each in names} for topic_id, names in lite_topics.items()}


def encode(
    sender: str,
    ready_topics: Collection[int],
    invalidations: Collection[Invalidation],
    signals: Collection[str],
    ready_lite: Mapping[int, Iterable[str]] = {},
    wants: Collection[int] | None = None,
) -> str:
    """A notification's payload: ASCII without SQL's quotation marks. Empty if there is nothing to send.

    `wants` is sent with the signal WANTS only.
    """
    if not (ready_topics or invalidations or signals or ready_lite):
        return ""
    listed = [[topic_id, *sorted(hashes)] for topic_id, hashes in sorted(hashes_of(ready_lite).items())]
    wanted = [None if wants is None else sorted(wants)] if WANTS in signals else []
    payload = _as_json([sender, sorted(ready_topics), sorted(invalidations), sorted(signals), listed, *wanted])
    if len(payload) > PAYLOAD_BYTES_MAX and wants:
        return encode(sender, ready_topics, invalidations, signals, ready_lite)
    if len(payload) > PAYLOAD_BYTES_MAX and ready_lite:
        # Without the lite topics: this wakes all clients of their topics.
        return encode(sender, {*ready_topics, *ready_lite}, invalidations, signals, wants=wants)
    if len(payload) > PAYLOAD_BYTES_MAX:
        payload = _as_json([sender, [], [], sorted({EVERYTHING, *signals}), []])
    return payload


# In place of a payload that cannot be decoded. To check everything is always correct.
UNREADABLE = Notification("", signals=frozenset({EVERYTHING}))


def decode(payload: str) -> Notification:
    """The notification; `UNREADABLE` if the payload is not from a server of PopMQ."""
    if payload in SIGNALS:
        return Notification("", signals=frozenset({payload}))
    try:
        sender, ready_topics, invalidations, signals, listed, *more = json.loads(payload)
        wants = more[0] if more else None
        changed = [Invalidation(*each) for each in invalidations]
        if not (
            _are(int, [*ready_topics, *(wants or ()), *(number for each in listed for number in each)])
            and all(listed)
            and _are(str, [sender, *signals, *(text for each in changed for text in each)])
        ):
            return UNREADABLE
        lite = {topic_id: hashes for topic_id, *hashes in listed}
        wanted = None if wants is None else frozenset(wants)
        return Notification(sender, frozenset(ready_topics), frozenset(changed), frozenset(signals), lite, wanted)
    except (ValueError, TypeError, RecursionError):
        return UNREADABLE


def _are(kind: type, values: Iterable[Any]) -> bool:
    return all(type(each) is kind for each in values)


# Made once, because json.dumps with options makes a new encoder for each call.
_as_json = json.JSONEncoder(separators=(",", ":")).encode
