"""What a RocketMQ cluster says about itself."""

from __future__ import annotations

from datetime import timedelta
from enum import IntFlag
from typing import NamedTuple

from popclient.admin.facts import ExponentialBackoff


class Permission(IntFlag):
    """What clients may do with a topic of RocketMQ."""

    NOTHING = 0
    WRITE = 2
    READ = 4


class RocketMQTopic(NamedTuple):
    """A topic, as all masters have it.

    accepts: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED; UNSPECIFIED if nobody has said it.
    queues: how many consumers read, of all masters together. permission: what every master allows.
    brokers: the names of the masters that have it.
    """

    name: str
    accepts: str
    queues: int
    permission: Permission
    brokers: tuple[str, ...]


class RocketMQGroup(NamedTuple):
    """A consumer group, as the first master has it.

    max_attempts: the first delivery included. retry_intervals: before each further attempt, the last one repeats; or,
    empty then, retry_backoff. in_order: whether its consumers read message groups in order. enabled: whether consumers
    receive; on every master. brokers: the names of the masters that have it.
    """

    name: str
    max_attempts: int
    retry_intervals: tuple[timedelta, ...]
    retry_backoff: ExponentialBackoff | None
    in_order: bool
    enabled: bool
    brokers: tuple[str, ...]


class RocketMQBacklog(NamedTuple):
    """What a group has not finished in a topic, on all masters.

    ready: messages of the topic that were never received; in a group that reads in order, also those that are held.
    retrying: messages that wait to be received again, in the retry topic of POP consumers, and in that of consumers
        without POP, which is one for all topics of the group.
    waiting: the notes of brokers about messages that consumers of any group hold, and about their acks. RocketMQ does
        not tell how many messages one group holds. If it is 0, no consumer of a group without order holds a message;
        else look again when the longest hold has ended.
    """

    ready: int
    retrying: int
    waiting: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of that the group has not finished. Brokers note some of it seconds later: look
        twice."""
        return self == (0, 0, 0)


class RocketMQConsumer(NamedTuple):
    """A connected consumer of a group. address: its host and port; of a client of a proxy, as the broker knows it."""

    client_id: str
    address: str
    language: str
