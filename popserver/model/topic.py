"""Topics and their message queues."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from popserver.model.errors import BadRequest
from popserver.model.names import Resource


class QueueName(NamedTuple):
    """The name of a message queue on the wire; `generation` is 0 if the caller does not know the topic's generation."""

    topic: Resource
    number: int
    generation: int = 0


class MessageType(StrEnum):
    """The type of a message. Its properties decide it, not the type that the sender gives (protocol 4.3)."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    LITE = "LITE"


QUEUE_COUNT_DEFAULT = 8
QUEUE_COUNT_MAX = 1_024
SYSTEM_QUEUES = 1  # of a group's own topics: its dead letters, and its retries (requirement E14)
OFFSET_BITS = 40
_OFFSET_MASK = (1 << OFFSET_BITS) - 1
_GENERATION_ID_BITS = 20


class MessageQueue(NamedTuple):
    """One queue of a topic. `queue_id` is unique in the store and never reused; `number` is its id on the wire."""

    queue_id: int
    number: int


class Topic(NamedTuple):
    """A topic. `accepts` lists its message types for routes. The number of queues only grows.

    `lite_expires_ms` is how long a lite topic lives after its last message; None: for ever.
    `closed_because` says why it takes no messages of producers; None: it takes them.
    """

    topic_id: int
    name: Resource
    queues: tuple[MessageQueue, ...]
    accepts: tuple[MessageType, ...]
    created_at_ms: int
    fifo_queues: int = 1  # the number of queues for message groups: those that the topic was created with
    lite_expires_ms: int | None = None
    closed_because: str | None = None

    @property
    def is_lite(self) -> bool:
        """Whether it is a bind topic: its message groups are lite topics."""
        return MessageType.LITE in self.accepts

    @property
    def generation(self) -> int:
        """A number above 0 that differs between this topic and earlier topics with its name.

        It is made from the time and the id. The time alone could be the same for two topics of one millisecond, and the
        id alone begins with 1 again in a new database.
        """
        return self.created_at_ms << _GENERATION_ID_BITS | self.topic_id % (1 << _GENERATION_ID_BITS)


class NewTopic(NamedTuple):
    """The properties of a topic that is created."""

    name: Resource
    queue_count: int = QUEUE_COUNT_DEFAULT
    accepts: tuple[MessageType, ...] = (MessageType.NORMAL,)
    lite_expires_ms: int | None = None


# The message types of a topic that is created on first use: those that every official client knows (protocol 1.2).
AUTO_CREATE_ACCEPTS = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


LITE_EXPIRES_MS_MIN, LITE_EXPIRES_MS_MAX = 60_000, 30 * 24 * 3_600_000  # as in RocketMQ


def check_queue_count(queue_count: int) -> None:
    if not 1 <= queue_count <= QUEUE_COUNT_MAX:
        raise BadRequest(f"a topic has 1 to {QUEUE_COUNT_MAX} message queues, not {queue_count}")


def check_lite(topic: Resource, accepts: Collection[MessageType], lite_expires_ms: int | None) -> None:
    """Raise `BadRequest` if the types of a topic, or the life of its lite topics, are not allowed."""
    if MessageType.LITE in accepts and len(accepts) > 1:
        others = " and ".join(each for each in accepts if each is not MessageType.LITE)
        raise BadRequest(
            f"topic '{topic}' takes LITE and {others} messages; a topic of lite topics takes LITE messages only, create"
            " another topic for the others"
        )
    if lite_expires_ms is None:
        return
    if MessageType.LITE not in accepts:
        raise BadRequest(f"topic '{topic}' has no lite topics that could expire; create it with the type LITE")
    if not LITE_EXPIRES_MS_MIN <= lite_expires_ms <= LITE_EXPIRES_MS_MAX:
        raise BadRequest(
            f"lite topics of '{topic}' expire after {lite_expires_ms} ms without a message; allowed:"
            f" {LITE_EXPIRES_MS_MIN} ms (a minute) to {LITE_EXPIRES_MS_MAX} ms (30 days)"
        )


CLOSED_BECAUSE_LENGTH_MAX = 500


def check_closed_because(topic: Resource, sentence: str) -> None:
    """Raise `BadRequest` for a sentence to producers that is too long, or of several lines."""
    if len(sentence) > CLOSED_BECAUSE_LENGTH_MAX or not sentence.isprintable():
        raise BadRequest(
            f"the sentence that closes topic '{topic}' has {len(sentence)} characters; at most"
            f" {CLOSED_BECAUSE_LENGTH_MAX} are allowed, and no control characters"
        )


def queue_of_group(topic: Topic, message_group: str) -> MessageQueue:
    """The queue of a message group, among those that the topic was created with."""
    return topic.queues[zlib.crc32(message_group.encode()) % topic.fifo_queues]


def queue_of_priority(topic: Topic, priority: int | None) -> MessageQueue:
    """The queue of a priority, in a topic with priorities; None is the lowest."""
    return topic.queues[min(priority or 0, len(topic.queues) - 1)]


def message_key(queue_id: int, offset: int) -> int:
    """A message's queue and offset as one integer: the queue id in the high bits, the offset in the low 40 bits."""
    return queue_id << OFFSET_BITS | offset


def queue_of(key: int) -> int:
    return key >> OFFSET_BITS


def offset_of(key: int) -> int:
    return key & _OFFSET_MASK


def queue_numbered(topic: Topic, number: int) -> MessageQueue:
    """The topic's queue with that number. Raises `BadRequest`."""
    for each in topic.queues:
        if each.number == number:
            return each
    count = len(topic.queues)
    raise BadRequest(f"topic '{topic.name}' has no queue {number}; it has {count}, numbered 0 to {count - 1}")
