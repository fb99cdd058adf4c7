"""What receives ask for, and what is found for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from popserver.delivery.message_groups import Member
from popserver.filters import Filter
from popserver.messages.read import Bodies, MessageRow
from popserver.model.group import Group
from popserver.model.topic import Topic


class Stretch(NamedTuple):
    """Messages of a queue that a SQL filter was asked about: those between two keys. `wanted` are keys, in order."""

    from_key: int
    to_key: int
    wanted: Sequence[int]

    def from_on(self, key: int) -> Stretch | None:
        """What of it begins at this key; None where the filter was not asked about what is there."""
        if not self.from_key <= key <= self.to_key:
            return None
        return Stretch(key, self.to_key, self.wanted[bisect_left(self.wanted, key) :])


class Judged(NamedTuple):
    """What a SQL filter said of messages that a group may read next; messages never change, so it stays true.

    `stretches` are by queue; `behind` has those that the scan has passed over, by key.
    """

    stretches: Mapping[int, Stretch]
    behind: Mapping[int, bool]

    def stretch(self, queue_id: int, from_key: int) -> Stretch | None:
        """What is known of a queue from this key on."""
        known = self.stretches.get(queue_id)
        return None if known is None else known.from_on(from_key)


NOTHING_JUDGED = Judged({}, {})


class Wish(NamedTuple):
    """What receives that want the same ask for together; `rotation` says at which queue to start.

    `keeps_order` is false in a dead-letter topic, whose messages are taken one by one whatever group they were in.
    A SQL filter is not asked: its answers are in `judged`.
    """

    group: Group
    topic: Topic
    wanted: Filter
    room: int
    rotation: int
    keeps_order: bool
    bodies: Bodies = Bodies.SMALL
    judged: Judged = NOTHING_JUDGED

    @property
    def names(self) -> dict[str, int]:
        return {"group_id": self.group.group_id, "topic_id": self.topic.topic_id}


class PlaceRow(NamedTuple):
    """A queue as a group reads it. `has_open`: a message group is open, there or in another queue of the topic."""

    group_id: int
    queue_id: int
    next_offset: int
    min_offset: int
    end_offset: int
    has_open: int


class Found(NamedTuple):
    """A message that may be granted; `attempt` will be its delivery attempt."""

    row: MessageRow
    attempt: int
    member: Member | None = None  # the message group that is locked by the grant
    has_delivery: bool = False  # it was granted before
