"""Topics and their message queues."""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import NamedTuple

from popserver.model.errors import BadRequest
from popserver.model.names import Resource


class QueueName(NamedTuple):
    """A message queue as the wire names it; `generation` 0 for a caller that does not know which topic it is."""

    topic: Resource
    number: int
    generation: int = 0


class MessageType(StrEnum):
    """What kind of message it is; its properties decide, never the sender's word (protocol 4.3)."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"


QUEUE_COUNT_DEFAULT = 8
QUEUE_COUNT_MAX = 1_024
SYSTEM_QUEUES = 1  # of a group's own topics: its dead letters, and its retries (requirement E14)
OFFSET_BITS = 40
_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_GENERATION_ID_BITS = 20


class MessageQueue(NamedTuple):
    """One lane of a topic. `queue_id` is unique in the store and never reused; `number` is the wire's queue id."""

    queue_id: int
    number: int


class Topic(NamedTuple):
    """A topic. `accepts` is what the wire's route answer lists; the number of queues only grows."""

    topic_id: int
    name: Resource
    queues: tuple[MessageQueue, ...]
    accepts: tuple[MessageType, ...]
    created_at_ms: int
    fifo_queues: int = 1  # over how many of the queues message groups are spread: those it was created with

    @property
    def has_message_groups(self) -> bool:
        """Whether messages may be in message groups here."""
        return MessageType.FIFO in self.accepts

    @property
    def has_priorities(self) -> bool:
        """Whether messages may have priorities here."""
        return MessageType.PRIORITY in self.accepts

    @property
    def generation(self) -> int:
        """Tells the topic from others that had its name before. Above 0.

        The time alone is not enough, for two may be made within a millisecond. The id alone is not enough either, for a
        database that is set up anew counts from 1 again.
        """
        return self.created_at_ms << _GENERATION_ID_BITS | self.topic_id % (1 << _GENERATION_ID_BITS)


class NewTopic(NamedTuple):
    """What a topic is to be created with."""

    name: Resource
    queue_count: int = QUEUE_COUNT_DEFAULT
    accepts: tuple[MessageType, ...] = (MessageType.NORMAL,)


# What a topic takes that is created on first use: all that every official client can read in a route (protocol 1.2).
AUTO_CREATE_ACCEPTS = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


def check_queue_count(queue_count: int) -> None:
    if not 1 <= queue_count <= QUEUE_COUNT_MAX:
        raise BadRequest(f"a topic has 1 to {QUEUE_COUNT_MAX} message queues, not {queue_count}")


def queue_for(topic: Topic, message_group: str | None, priority: int | None, rotation: int) -> MessageQueue:
    """The queue a message goes to: its message group's own, its priority's lane, or the next in turn.

    A message group never moves: it is spread over the queues the topic was created with, whatever was added since.
    Where a topic takes priorities its queues are lanes, the highest number first (`receiving.receive`); a message
    without one goes to the lowest.
    """
    if message_group is not None:
        return topic.queues[zlib.crc32(message_group.encode()) % topic.fifo_queues]
    if MessageType.PRIORITY in topic.accepts:
        return topic.queues[min(priority or 0, len(topic.queues) - 1)]
    return topic.queues[rotation % len(topic.queues)]


def message_key(queue_id: int, offset: int) -> int:
    """A message's place as one integer: the queue in the high bits, its offset there in the low 40."""
    return queue_id << OFFSET_BITS | offset


def queue_of(key: int) -> int:
    return key >> OFFSET_BITS


def offset_of(key: int) -> int:
    return key & _OFFSET_MASK


def queue_numbered(topic: Topic, number: int) -> MessageQueue:
    """The topic's queue of that number on the wire; raises `BadRequest`."""
    for each in topic.queues:
        if each.number == number:
            return each
    count = len(topic.queues)
    raise BadRequest(f"topic '{topic.name}' has no queue {number}; it has {count}, numbered 0 to {count - 1}")
