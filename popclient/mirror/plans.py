"""What a mirror finds on both sides, what it will make at the target, and what cannot be: its dry run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from popclient.errors import PopError
from popclient.mirror.routes import FIFO, GroupFacts, Handover, Kind, TopicFacts, Way, differences, handovers
from popclient.mirror.side import Side


class Impossible(PopError):
    """The mirror cannot run like this; the sentence has the reasons."""


class Task(NamedTuple):
    """One handover: as whom it receives, the topic as the target has it, and what is left at the source now.

    takes_scheduled: it takes the delayed messages of the topic too. takes_unknown: and those dead letters of the group
    whose topic the source does not say. takes_messages: False if it takes only these, and the group's consumers finish
    the messages at the source.
    """

    handover: Handover
    group: str
    topic: TopicFacts
    lag: int | None
    takes_scheduled: bool
    takes_unknown: bool
    takes_messages: bool = True


@dataclass(slots=True)
class Plan:
    """topics, groups: to be made at the target. notes: what differs there. refusals: why it cannot run."""

    tasks: list[Task] = field(default_factory=list)
    topics: list[TopicFacts] = field(default_factory=list)
    groups: list[tuple[GroupFacts, tuple[str, ...]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raises Impossible."""
        if self.refusals:
            raise Impossible("; ".join(self.refusals))


async def look(
    source: Side,
    target: Side,
    topics: Sequence[str],
    groups: Sequence[str],
    own_group: str,
    finished_there: Collection[str] = (),
) -> Plan:
    """Looks at both sides and changes nothing. own_group: by which the mirror reads whole topics.

    finished_there: of the topics, those whose messages the groups' consumers finish at the source.
    """
    plan = Plan()
    for name in topics:
        here = await source.topic(name)
        if here is None:
            plan.refusals.append(f"topic {name} does not exist at {source.where}")
            continue
        there = await _topic_there(plan, here, source, target)
        if name in finished_there:
            for number, group in enumerate(groups):
                to_topic = Handover(name, group, Way.TOPIC if here.accepts == (FIFO,) else Way.MIXED)
                lag = await source.lag(to_topic, group)
                rest = Task(to_topic, group, there, lag, number == 0, name == topics[0], takes_messages=False)
                plan.tasks.append(rest)
            continue
        found = handovers(here, groups)
        if isinstance(found, str):
            plan.refusals.append(found)
            continue
        for number, handover in enumerate(found):
            group = handover.group or own_group
            lag = await source.lag(handover, group)
            plan.tasks.append(Task(handover, group, there, lag, number == 0, name == topics[0]))
    for name in groups:
        await _look_at_group(plan, name, topics, source, target)
    if not groups:
        await _look_at_own_group(plan, own_group, topics, source)
    return plan


async def _topic_there(plan: Plan, here: TopicFacts, source: Side, target: Side) -> TopicFacts:
    there = await target.topic(here.name)
    if there is None:
        plan.topics.append(here)
        if not target.can_make:
            plan.refusals.append(
                f"topic {here.name} does not exist at {target.where}; give its name server"
                f" (--to-name-server), or make it: {target.how_to_make(here)}"
            )
        return here
    if there.is_lite:
        plan.refusals.append(f"topic {here.name} at {target.where} has lite topics; that of the source has none")
    if here.has_order and there.accepts and not there.has_order:
        plan.notes.append(
            f"topic {here.name} at {target.where} takes {' and '.join(there.accepts)} messages: one of a message group"
            " stops the mirror"
        )
    if here.accepts == ("TRANSACTION",) and source.kind is Kind.POPMQ:
        plan.notes.append(f"half messages of topic {here.name} are not handed over; their producers decide them")
    return there


async def _look_at_group(plan: Plan, name: str, topics: Sequence[str], source: Side, target: Side) -> None:
    here, there = await source.group(name), await target.group(name)
    if here is None and source.can_make:
        plan.refusals.append(f"consumer group {name} does not exist at {source.where}")
        return
    stays = [each.handover.topic for each in plan.tasks if each.handover.group == name and not each.takes_messages]
    has_order = any(task.handover.group == name and task.topic.has_order for task in plan.tasks)
    wanted = (here or GroupFacts(name, 17))._replace(in_order=has_order)
    alone = tuple(
        each.handover.topic
        for each in plan.tasks
        if each.handover.group == name and each.handover.way is not Way.TOPIC and each.takes_messages
    )
    if stays and alone and target.kind is Kind.ROCKETMQ:
        plan.refusals.append(
            f"group {name} has topics with message groups ({', '.join(stays)}) and without ({', '.join(alone)}), and a"
            " group of RocketMQ reads all topics in order or none: use another group for one of them"
        )
    if here is None:
        plan.notes.append(f"the settings of group {name} at {source.where} are not known without its name server")
    if there is None and not target.can_make:
        plan.notes.append(
            f"group {name} must exist at {target.where}, whose name server was not given: {target.how_to_make(wanted)}"
        )
        return
    if there is None or target.kind is Kind.ROCKETMQ:
        plan.groups.append((wanted if there is None else there, alone))
    if there is not None and here is not None:
        plan.notes += [f"group {name} at {target.where} differs: {each}" for each in differences(wanted, there)]


async def _look_at_own_group(plan: Plan, own_group: str, topics: Sequence[str], source: Side) -> None:
    if source.kind is Kind.ROCKETMQ and not source.can_make:
        plan.notes.append(
            f"group {own_group} must exist at {source.where}, whose name server was not given:"
            f" {source.how_to_make(GroupFacts(own_group, 1_000_000))}"
        )


async def make(plan: Plan, source: Side, target: Side) -> None:
    """Makes what the target lacks, and the mirror's own group at the source. It may be repeated."""
    for task in plan.tasks:
        if task.handover.group is None and source.can_make and await source.group(task.group) is None:
            await source.make_reader(task.group, [each.handover.topic for each in plan.tasks])
    for topic in plan.topics:
        if await target.topic(topic.name) is None:
            await target.make_topic(topic)
    for group, topics in plan.groups:
        if target.kind is Kind.ROCKETMQ or await target.group(group.name) is None:
            await target.make_group(group, topics)
