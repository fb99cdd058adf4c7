"""What receives ask for, and the messages found for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from popserver.fifo.positions import MessageGroupKey
from popserver.filters import Filter
from popserver.messages.by_key import Bodies, MessageRow
from popserver.model.group import Group
from popserver.model.topic import Topic


class KeyRange(NamedTuple):
    """A range of a queue that a SQL filter has judged. `wanted` are the keys of the messages it accepts, in order."""

    from_key: int
    to_key: int
    wanted: Sequence[int]

    def from_on(self, key: int) -> KeyRange | None:
        """The part of the range from this key on; None if the filter has not judged the message at this key."""
        if not self.from_key <= key <= self.to_key:
            return None
        return KeyRange(key, self.to_key, self.wanted[bisect_left(self.wanted, key) :])


class Judged(NamedTuple):
    """What a SQL filter says about messages that a group may read next. It stays true, because messages never change.

    `ranges` has a range per queue id; `behind` has messages that the scan has passed, by message key.
    """

    ranges: Mapping[int, KeyRange]
    behind: Mapping[int, bool]

    def range_of(self, queue_id: int, from_key: int) -> KeyRange | None:
        """What is known about a queue from this key on."""
        known = self.ranges.get(queue_id)
        return None if known is None else known.from_on(from_key)


NOTHING_JUDGED = Judged({}, {})


class ReceiveBatch(NamedTuple):
    """One search for all receives with the same group, topic and filter. `rotation` says at which queue to start.

    `keeps_order` is false in a dead-letter topic: there, message groups are ignored.
    A SQL filter does not run during the search; `judged` has its results.
    """

    group: Group
    topic: Topic
    wanted: Filter
    room: int
    rotation: int
    keeps_order: bool
    takes_groups: bool  # the order of message groups matters in this search
    by_priority: bool  # the queues are read by priority, the highest first
    names: dict[str, int]  # of group and topic, for the search's statements
    bodies: Bodies = Bodies.SMALL
    judged: Judged = NOTHING_JUDGED


class Candidate(NamedTuple):
    """A message that may be granted; `attempt` will be its delivery attempt."""

    row: MessageRow
    attempt: int
    member: MessageGroupKey | None = None  # the message group that is locked by the grant
    has_delivery: bool = False  # it was granted before
