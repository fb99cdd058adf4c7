"""Topics and their message queues."""

from __future__ import annotations

from typing import NamedTuple

from popserver.domain.errors import BadRequest
from popserver.domain.message import MessageType
from popserver.domain.names import Resource

QUEUE_COUNT_DEFAULT = 8
QUEUE_COUNT_MAX = 1_024
OFFSET_BITS = 40
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


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


class NewTopic(NamedTuple):
    """What a topic is to be created with."""

    name: Resource
    queue_count: int = QUEUE_COUNT_DEFAULT
    accepts: tuple[MessageType, ...] = (MessageType.NORMAL,)


def check_queue_count(queue_count: int) -> None:
    if not 1 <= queue_count <= QUEUE_COUNT_MAX:
        raise BadRequest(f"a topic has 1 to {QUEUE_COUNT_MAX} message queues, not {queue_count}")


def message_key(queue_id: int, offset: int) -> int:
    """A message's place as one integer: the queue in the high bits, its offset there in the low 40."""
    return queue_id << OFFSET_BITS | offset


def queue_of(key: int) -> int:
    return key >> OFFSET_BITS


def offset_of(key: int) -> int:
    return key & _OFFSET_MASK
