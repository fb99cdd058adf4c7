"""Chooses the queue of each message: by its message group, by its priority, or so that all queues fill evenly.

All messages that enter a topic use it: sent ones, delayed and half messages, those of users' transactions, and redriven
ones. Messages that may go to any queue fill the queues that got the fewest from this server. A few messages go to one
queue, because each further queue is a row and a page more to write; many fill all queues evenly (docs/design/0005).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from heapq import nsmallest
from itertools import chain, count, repeat
from typing import Final, NamedTuple, Protocol, TypeVar

from popserver.engine.transaction import Transaction
from popserver.model.topic import MessageQueue, MessageType, Topic, queue_of_group, queue_of_priority

# A transaction sends at most so many messages to one queue, and more to further queues. Queues differ by about as many.
RUN: Final = 16
TOPICS_MAX: Final = 10_000  # topics in memory; a forgotten topic begins anew


class _MayBeBound(Protocol):
    @property
    def message_group(self) -> str | None: ...
    @property
    def priority(self) -> int | None: ...


B = TypeVar("B", bound=_MayBeBound)
M = TypeVar("M")


def by_queue(tx: Transaction, topic: Topic, batch: Sequence[B]) -> dict[MessageQueue, Sequence[B]]:
    """The messages of each queue, in their order.

    A message group never moves to another queue, so only the queues that the topic was created with are used for them.
    In a topic with priorities each queue is a priority, and receives read the highest first (`receiving.receive`). A
    message without a priority goes to the lowest queue.
    """
    has_priorities = MessageType.PRIORITY in topic.accepts
    if not has_priorities and all(each.message_group is None for each in batch):
        memory: Spread | None = tx.memory.get(Spread)
        levels = None if memory is None else memory.of_topics.get(topic.topic_id)
        if memory is None or levels is None or len(levels) != len(topic.queues) or not 0 < len(batch) <= RUN:
            return dict(spread(tx, topic, batch))
        # A short way for few messages, because most transactions have few.
        messages, _, number = min(levels)
        filled = _Level(messages + len(batch), next(memory.turns), number)
        tx.after_commit.append(partial(levels.__setitem__, number, filled))
        return {topic.queues[number]: batch}
    free = 0 if has_priorities else sum(each.message_group is None for each in batch)
    turns = chain.from_iterable(repeat(queue, len(run)) for queue, run in spread(tx, topic, range(free)))
    found: dict[MessageQueue, list[B]] = {}
    for each in batch:
        if each.message_group is not None:
            chosen = queue_of_group(topic, each.message_group)
        else:
            chosen = queue_of_priority(topic, each.priority) if has_priorities else next(turns)
        found.setdefault(chosen, []).append(each)
    return dict(found)


def spread(
    tx: Transaction, topic: Topic, batch: Sequence[M], among: Collection[int] | None = None
) -> list[tuple[MessageQueue, Sequence[M]]]:
    """Runs of messages that may go to any queue, each with its queue. `among`: ids of the queues to use; None: all."""
    if not batch:
        return []
    if len(topic.queues) == 1:
        return [(topic.queues[0], batch)]
    runs, start = [], 0
    for number, messages in tx.remembered(Spread).shares(tx, topic, len(batch), among):
        runs.append((topic.queues[number], batch[start : start + messages]))
        start += messages
    return runs


def queues_for(messages: int, queues: int) -> int:
    """How many of the topic's queues so many messages use; all queues, if it would be more than half."""
    runs = -(-messages // RUN)
    return queues if runs > 1 and 2 * runs > queues else runs


def in_order_of_use(tx: Transaction, topic: Topic, messages: int) -> tuple[Sequence[MessageQueue], int]:
    """The topic's queues in the order in which messages without a priority would use them, and how many they would use.

    In a topic with priorities they use the lowest queue, as in `by_queue`.
    """
    if MessageType.PRIORITY in topic.accepts:
        return topic.queues, 1
    levels = sorted(tx.remembered(Spread).levels(topic))
    return [topic.queues[each.number] for each in levels], queues_for(messages, len(levels))


class _Level(NamedTuple):
    """How many messages a queue got, the number of its last turn, and the queue's number."""

    messages: int
    turn: int
    number: int


class Spread:
    """How many messages this server has sent to each queue of its topics. It counts committed messages."""

    def __init__(self) -> None:
        self.of_topics: dict[int, list[_Level]] = {}
        self.turns = count(1)

    def levels(self, topic: Topic) -> list[_Level]:
        """The levels of the topic's queues. A new queue begins at the lowest level, so it gets no more than others."""
        queues = len(topic.queues)
        levels = self.of_topics.get(topic.topic_id)
        if levels is None:
            while len(self.of_topics) >= TOPICS_MAX:
                del self.of_topics[next(iter(self.of_topics))]
            levels = self.of_topics[topic.topic_id] = [_Level(0, 0, number) for number in range(queues)]
        elif len(levels) < queues:
            least = min(levels).messages
            levels += [_Level(least, next(self.turns), number) for number in range(len(levels), queues)]
        return levels[:queues]  # a request may have an older copy of the topic, with fewer queues

    def shares(
        self, tx: Transaction, topic: Topic, messages: int, among: Collection[int] | None
    ) -> list[tuple[int, int]]:
        """The numbers of queues, and how many messages each gets, so that the queues with the fewest become equal."""
        levels = self.levels(topic)
        if among is not None:
            levels = [each for each in levels if topic.queues[each.number].queue_id in among]
        lowest = nsmallest(queues_for(messages, len(levels)), levels)
        while (total := messages + sum(each.messages for each in lowest)) <= lowest[-1].messages * len(lowest):
            lowest.pop()
        level, more = divmod(total, len(lowest))
        filled = ((each.number, level + (index < more) - each.messages) for index, each in enumerate(lowest))
        found = [each for each in filled if each[1]]
        tx.after_commit.append(partial(self._count, topic.topic_id, found))
        return found

    def _count(self, topic_id: int, shares: Sequence[tuple[int, int]]) -> None:
        levels = self.of_topics.get(topic_id)
        if levels is None:
            return
        for number, messages in shares:
            levels[number] = _Level(levels[number].messages + messages, next(self.turns), number)
