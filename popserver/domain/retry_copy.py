"""What a retry copy says of where it comes from.

A message that a member handed back comes again as a copy in topic `%RETRY%<group>`. Its properties name the topic that
the message was sent to, how often it failed, its first place, and on which count of resets it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from popserver.domain.pulling import RECONSUME_TIME

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_KEY = "popmq.origin-key"
PARENT_RESETS = "popmq.parent-resets"


class Lineage(NamedTuple):
    """Where a copy comes from.

    `failures`: how often the message failed so far. `resets`: how often an operator had moved the group's progress in
    the queue of the message that was handed back; one that is moved after that brings the message itself again.
    """

    topic_name: str
    failures: int
    origin_key: int
    resets: int


def marked(properties: Mapping[str, str], lineage: Lineage) -> dict[str, str]:
    """The properties of a copy: the message's own, and its lineage."""
    return {
        **properties,
        RETRY_TOPIC: lineage.topic_name,
        RECONSUME_TIME: str(lineage.failures),
        ORIGIN_KEY: str(lineage.origin_key),
        PARENT_RESETS: str(lineage.resets),
    }


def unmarked(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties as they were sent."""
    return {name: value for name, value in properties.items() if name not in _MARKS}


def lineage_of(properties: Mapping[str, str]) -> Lineage:
    """Of a message in a retry topic, which the server alone fills."""
    return Lineage(
        properties[RETRY_TOPIC],
        int(properties[RECONSUME_TIME]),
        int(properties[ORIGIN_KEY]),
        int(properties[PARENT_RESETS]),
    )


_MARKS = frozenset({RETRY_TOPIC, RECONSUME_TIME, ORIGIN_KEY, PARENT_RESETS})
