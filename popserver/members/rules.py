"""Which member of a group consumes which queues. Pure functions: all servers get the same result from the same lists.

Clustering members divide the queues of each topic among the members that subscribe to it (requirements G1, J3). Each
broadcasting member has all queues (requirements G2, J8).
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
    """A consumer in a group that owns whole queues, with its subscriptions by topic."""

    client_id: str
    model: Model
    filters: tuple[TopicFilter, ...]
    joined_at_ms: int


class GroupView(NamedTuple):
    """Two numbers of a group: `members` changes with its members, `resets` when an operator moves its progress."""

    members: int
    resets: int


def share_of(client_id: str, topic: Topic, members: Iterable[Member]) -> list[MessageQueue]:
    """The topic's queues that the client must consume, sorted by number.

    All queues for a client that is not a member or that broadcasts; none for a member that does not subscribe to the
    topic.
    """
    return shares_of(client_id, [topic], members)[0]


def shares_of(client_id: str, topics: Sequence[Topic], members: Iterable[Member]) -> list[list[MessageQueue]]:
    """`share_of` for each of these topics. Takes linear time in topics, members and subscriptions."""
    known = {each.client_id: each for each in members}
    shares = [sorted(topic.queues, key=lambda queue: queue.number) for topic in topics]
    own = known.get(client_id)
    if own is None or own.model is Model.BROADCASTING:
        return shares
    sharers: dict[Resource, list[str]] = {topic.name: [] for topic in topics}
    for name, each in sorted(known.items()):
        if each.model is Model.CLUSTERING:
            for shared in {topic_filter.topic for topic_filter in each.filters} & sharers.keys():
                sharers[shared].append(name)
    return [averagely(client_id, queues, sharers[topic.name]) for topic, queues in zip(topics, shares, strict=True)]


def averagely(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> list[Q]:
    """RocketMQ's AllocateMessageQueueAveragely: contiguous ranges, the first ones longer by one (requirement J4).

    Both lists must be sorted.
    """
    if client_id not in client_ids:
        return []
    rank = client_ids.index(client_id)
    size, longer = divmod(len(queues), len(client_ids))
    start = rank * size + min(rank, longer)
    return list(queues[start : start + size + (rank < longer)])


def idle(members: Sequence[Member], topics: Sequence[Topic]) -> list[str]:
    """The members without a queue, because there are more members than queues; sorted by client id (requirement J10).

    Takes linear time in members and subscriptions, because there may be thousands.
    """
    queues = {topic.name: len(topic.queues) for topic in topics}
    sharers: dict[Resource, set[str]] = {name: set() for name in queues}
    busy: set[str] = set()
    for member in members:
        for name in {topic_filter.topic for topic_filter in member.filters} & queues.keys():
            if member.model is Model.CLUSTERING:
                sharers[name].add(member.client_id)
            elif queues[name]:
                busy.add(member.client_id)
    for name, sharing in sharers.items():
        # `averagely` gives queues to the first members; with more members than queues the others get none.
        busy.update(sorted(sharing)[: queues[name]])
    return sorted(member.client_id for member in members if member.client_id not in busy)
