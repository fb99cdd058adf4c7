"""What a mirror copies beside the messages of a group: its dead letters, and delayed messages that are not due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from popclient.admin.facts import ScheduledMessage
from popclient.errors import PopError
from popclient.mirror.counts import Counts, Place
from popclient.mirror.handing import RefusedByTarget
from popclient.mirror.plans import Task
from popclient.mirror.routes import Kind, TopicFacts
from popclient.mirror.side import DeadMessage, Side

STEP: Final = 100
SOON: Final = timedelta(seconds=10)  # what is due so soon is handed over when it is due
DELAY_MAX: Final = timedelta(hours=23, minutes=55)  # RocketMQ refuses delays of more than 24 h


async def hand_over_dead_letters(task: Task, source: Side, target: Side, counts: Counts, place: Place) -> int:
    """Copies the group's dead letters of the task's topic behind the place, and moves the place. Returns how many.

    Raises RefusedByTarget for one that the target refuses.
    """
    group, topic = task.group, task.topic.name
    found, step = 0, list[DeadMessage]()
    async for each in source.dead_letters(group, place.dead_letter):
        if each.topic != topic and not (task.takes_unknown and not each.topic):
            continue
        step.append(each._replace(topic=topic))
        # RocketMQ's are acked one by one, so nothing may wait in memory.
        if len(step) == STEP or source.kind is Kind.ROCKETMQ:
            found += await _write(group, step, target, counts, place)
            step = []
    return found + await _write(group, step, target, counts, place)


async def _write(group: str, step: Sequence[DeadMessage], target: Side, counts: Counts, place: Place) -> int:
    if not step:
        return 0
    for letter, outcome in zip(step, await target.write_dead(group, step), strict=True):
        if isinstance(outcome, PopError):
            if outcome.retryable:
                raise outcome
            raise RefusedByTarget(
                f"{target.where} refuses dead letter {letter.message.message_id} of group {group}: {outcome}; purge it"
                " at the source, or change what the sentence names; then start the mirror again"
            )
        counts.dead_letters += 1
        counts.repeated += outcome is True
        place.dead_letter = max(place.dead_letter, letter.place)
    return len(step)


async def hand_over_scheduled(topic: TopicFacts, source: Side, target: Side, counts: Counts) -> int:
    """Stores delayed messages at the target, and then removes them at the source. Returns how many.

    Those that are due within 10 s stay; so do those that RocketMQ would not take yet. Raises RefusedByTarget.
    """
    now = datetime.now(UTC)
    until = now + DELAY_MAX if target.kind is Kind.ROCKETMQ else datetime.max.replace(tzinfo=UTC)
    found, step = 0, list[ScheduledMessage]()
    async for each in source.scheduled(topic.name):
        if not now + SOON < each.due_at < until:
            continue
        step.append(each)
        if len(step) == STEP:
            break  # the list has changed now; the next look begins anew
    if step:
        outcomes = await target.write_later(topic, [each.message for each in step])
        stored = [each for each, outcome in zip(step, outcomes, strict=True) if not isinstance(outcome, PopError)]
        ids = [each.message.message_id for each in stored]
        removed = await source.unschedule(topic.name, ids) if ids else set()
        found = len(stored)
        counts.scheduled += found
        # Due meanwhile at the source: its groups get it there as well.
        counts.unsure += len(set(ids) - removed)
        for each, outcome in zip(step, outcomes, strict=True):
            if isinstance(outcome, PopError):
                if outcome.retryable:
                    raise outcome
                raise RefusedByTarget(
                    f"{target.where} refuses delayed message {each.message.message_id} of topic {topic.name}:"
                    f" {outcome}; cancel it at the source, or change what the sentence names, and start again"
                )
    return found
