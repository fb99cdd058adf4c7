"""Who of a group consumes which queues: pure, so that whoever computes it from the same lists finds the same.

Members of a group that own whole queues share each topic among those that want it (requirements G1, J3). Broadcasting
members share nothing: each has everything (requirements G2, J8).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from popserver.filters.subscription import TopicFilter
from popserver.model.group import Model
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, Topic

Q = TypeVar("Q")


class Member(NamedTuple):
    """A consumer that shares a group's queues with the others, and all that it wants, by topic."""

    client_id: str
    model: Model
    wants: tuple[TopicFilter, ...]
    joined_at_ms: int

    def shares(self, topic: Resource) -> bool:
        """Whether it takes its part of the topic and leaves the rest to others."""
        return self.model is Model.CLUSTERING and any(want.topic == topic for want in self.wants)


class GroupView(NamedTuple):
    """Two numbers of a group: one is another whenever its members are, one whenever an operator moves its progress."""

    members: int
    resets: int


def share_of(client_id: str, topic: Topic, members: Iterable[Member]) -> list[MessageQueue]:
    """The topic's queues that the client is to consume, by number.

    All of them for one that is no member, or broadcasts; none where a member does not want the topic.
    """
    known = {each.client_id: each for each in members}
    queues = sorted(topic.queues, key=lambda queue: queue.number)
    own = known.get(client_id)
    if own is None or own.model is Model.BROADCASTING:
        return queues
    return averagely(client_id, queues, sorted(name for name, each in known.items() if each.shares(topic.name)))


def averagely(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """AllocateMessageQueueAveragely on sorted lists: contiguous ranges, the first longer by one (requirement J4)."""
    if client_id not in client_ids:
        return []
    place = client_ids.index(client_id)
    size, longer = divmod(len(queues), len(client_ids))
    start = place * size + min(place, longer)
    return list(queues[start : start + size + (place < longer)])


def idle(members: Sequence[Member], topics: Sequence[Topic]) -> list[str]:
    """The members that are left without any queue, by client id: there are more of them than queues (requirement J10).

    In time that grows with the members and what they want, for there may be thousands.
    """
    queues = {topic.name: len(topic.queues) for topic in topics}
    sharers: dict[Resource, set[str]] = {name: set() for name in queues}
    busy: set[str] = set()
    for member in members:
        for name in {want.topic for want in member.wants} & queues.keys():
            if member.model is Model.CLUSTERING:
                sharers[name].add(member.client_id)
            elif queues[name]:
                busy.add(member.client_id)
    for name, sharing in sharers.items():
        # The ranges of `averagely` are filled from the first on: as many have something as there are queues.
        busy.update(sorted(sharing)[: queues[name]])
    return sorted(member.client_id for member in members if member.client_id not in busy)
