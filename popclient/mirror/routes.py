"""Decides how messages travel. Pure: no server is asked here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from popclient.admin.facts import ExponentialBackoff

FIFO: Final = "FIFO"


class Kind(StrEnum):
    """What answers at an endpoint."""

    POPMQ = "PopMQ"
    ROCKETMQ = "RocketMQ"


class Way(StrEnum):
    """Who gets a message at the target: every group of its topic, or one group alone. MIXED: the first for a message of
    a message group, whose order only the topic keeps, the second for all others."""

    TOPIC = "to the topic"
    GROUP = "to the group alone"
    MIXED = "to the group alone, but message groups to the topic"


class TopicFacts(NamedTuple):
    """A topic as a side has it. accepts: types of messages; empty if the side does not say. queues: 0 for unknown."""

    name: str
    accepts: tuple[str, ...]
    queues: int

    @property
    def has_order(self) -> bool:
        return FIFO in self.accepts or "MIXED" in self.accepts

    @property
    def is_lite(self) -> bool:
        return "LITE" in self.accepts


class GroupFacts(NamedTuple):
    """A consumer group as a side has it: its attempts with the first delivery, and its pauses between them.

    retry_intervals: the last one repeats; or, empty then, retry_backoff. in_order: its consumers read message groups in
    order; None where every group does, as in PopMQ.
    """

    name: str
    max_attempts: int
    retry_intervals: tuple[timedelta, ...] = ()
    retry_backoff: ExponentialBackoff | None = None
    in_order: bool | None = None


class Handover(NamedTuple):
    """Messages that one task hands over: those of a topic that a group has not done. group None: all of the topic."""

    topic: str
    group: str | None
    way: Way

    def __str__(self) -> str:
        of = f"topic {self.topic}" if self.group is None else f"group {self.group} in topic {self.topic}"
        return f"{of}, {self.way}"


def handovers(topic: TopicFacts, groups: Sequence[str]) -> list[Handover] | str:
    """What to hand over of a topic for these groups (none: the whole topic); or, as a sentence, why it cannot be."""
    if topic.is_lite:
        return (
            f"topic {topic.name} has lite topics, which a mirror does not hand over; let their consumers finish at the"
            " source"
        )
    if not groups:
        return [Handover(topic.name, None, Way.TOPIC)]
    if len(groups) == 1 and topic.has_order:
        return [Handover(topic.name, groups[0], Way.TOPIC if topic.accepts == (FIFO,) else Way.MIXED)]
    if topic.accepts == (FIFO,):
        return (
            f"the message groups of topic {topic.name} keep their order only in the topic itself, where each of the"
            f" {len(groups)} groups ({', '.join(groups)}) would get the messages of the others; name one --group, and"
            " let the others finish at the source"
        )
    return [Handover(topic.name, group, Way.GROUP) for group in groups]


def differences(here: GroupFacts, there: GroupFacts) -> list[str]:
    """In which settings the target's group differs from that of the source, in words."""
    found = []
    if here.max_attempts != there.max_attempts:
        found.append(f"{there.max_attempts} attempts, not {here.max_attempts}")
    ladder, ladder_there = _ladder(here), _ladder(there)
    if ladder != ladder_there:
        found.append(f"it retries after {ladder_there}, not after {ladder}")
    if there.in_order is False and here.in_order:
        found.append("its consumers do not read message groups in order")
    return found


def _ladder(group: GroupFacts) -> str:
    if group.retry_backoff is not None:
        backoff = group.retry_backoff
        return f"{backoff.initial} × {backoff.multiplier:g} up to {backoff.longest}"
    return ", ".join(f"{each.total_seconds():g} s" for each in group.retry_intervals) or "the server's own intervals"
