"""`popmq move plan` and `popmq move status`: look at both sides, and change nothing there."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any, NamedTuple

from popclient.cli import OK, REFUSED
from popclient.cli.arguments import UsageError
from popclient.cli.mirroring.running import all_groups
from popclient.cli.mirroring.sides import address, open_sides
from popclient.cli.output import fields, report, table_of
from popclient.errors import PopError
from popclient.mirror.plans import Plan, Task, look
from popclient.mirror.records import new_owner
from popclient.mirror.side import Side
from popclient.mirror.sides import Address
from popclient.moving.moves import Move, MovedTopic, MoveFile, Stage


def plan(arguments: Namespace) -> int:
    return asyncio.run(_plan(arguments))


def status(arguments: Namespace) -> int:
    return asyncio.run(_status(arguments))


async def _plan(arguments: Namespace) -> int:
    file = MoveFile(arguments.file)
    old, new = address(arguments, "from"), address(arguments, "to")
    topics = list(dict.fromkeys(arguments.topic))
    if unknown := [each for each in arguments.without_order if each not in topics]:
        raise UsageError(f"--without-order {unknown[0]} is none of the topics; name it with --topic as well")
    with file.held():
        _check_free(file)
        async with open_sides(arguments, old, new) as (source, target):
            groups = list(dict.fromkeys(arguments.group))
            if arguments.all_groups:
                groups = await all_groups(source, topics)
            moved = [MovedTopic(each, await _has_order(source, each, arguments)) for each in topics]
            old, new = await _with_brokers(old, source), await _with_brokers(new, target)
            move = Move(new_owner(), old, new, arguments.namespace or "", arguments.reader, moved, groups)
            in_order = [each.name for each in move.in_order]
            found = await look(source, target, topics, groups, arguments.reader, in_order)
            await _look_at_contents(found, move, target)
            for side in (source, target):
                if not side.can_make:
                    name = "from" if side is source else "to"
                    found.refusals.append(
                        f"{side.where} closes topics at its name server only; give it with --{name}-name-server"
                    )
            lines = _plan_lines(move, found, source, target)
        if not found.refusals:
            file.save(move)
            lines += ["", f"written to {file.path}; both sides are unchanged. Begin with: popmq move start"]
    document = {
        "file": str(file.path),
        "topics": [{"topic": each.name, "in_order": each.in_order} for each in move.topics],
        "groups": groups,
        "topics_to_create": [each.name for each in found.topics],
        "groups_to_prepare": [each.name for each, _ in found.groups],
        "notes": found.notes,
        "refusals": found.refusals,
    }
    report(arguments, document, lines)
    return REFUSED if found.refusals else OK


async def _with_brokers(address: Address, side: Side) -> Address:
    """So that a broker that is down later is missed, also by a command that has never seen it."""
    return address._replace(ports=address.ports._replace(brokers=await side.brokers()))


def _check_free(file: MoveFile) -> None:
    if file.path.exists() and file.load().stage is Stage.RUNNING:
        raise PopError(f"{file.path} has a move that has begun; end it with popmq move finish, or name another --file")


async def _has_order(source: Side, topic: str, arguments: Namespace) -> bool:
    found = await source.topic(topic)
    return found is not None and found.has_order and topic not in arguments.without_order


async def _look_at_contents(found: Plan, move: Move, target: Side) -> None:
    for each in move.topics:
        if there := await target.stored(each.name):
            found.notes.append(
                f"topic {each.name} at {target.where} has stored {there} messages before: its groups get those first"
            )


def _plan_lines(move: Move, found: Plan, source: Side, target: Side) -> list[str]:
    lines = [f"from {source.where} to {target.where}"]
    for topic in move.topics:
        if topic.in_order:
            lines.append(
                f"topic {topic.name} has message groups: at the start its producers are refused at the old side and"
                " taken at the new one; each group goes on there when it has finished the old side"
            )
        else:
            lines.append(
                f"topic {topic.name} has no message groups: what a group has not done is handed over; its producers and"
                " consumers change sides at any time between start and finish"
            )
    lines += [f"{each.handover.topic}, {each.group}: {_count(each.lag)} left now" for each in found.tasks]
    lines += [f"makes topic {each.name} ({' and '.join(each.accepts)}, {each.queues} queues)" for each in found.topics]
    lines += [f"makes or completes group {each.name}" for each, _ in found.groups]
    lines += [f"note: {each}" for each in found.notes]
    return lines + [f"refused: {each}" for each in found.refusals]


def _count(lag: int | None) -> str:
    return "an unknown number" if lag is None else str(lag)


class _Part(NamedTuple):
    """A group in a topic. old_left, new_left: messages that it has not done; consumers of the group; None: unknown."""

    topic: str
    group: str
    gets_it_at: str
    old_left: int | None
    old_consumers: int | None
    new_left: int | None
    new_consumers: int | None


async def _status(arguments: Namespace) -> int:
    move = MoveFile(arguments.file).load()
    if move.stage is Stage.FINISHED:
        said = f"{move.old.endpoint} is not used any more"
        return report(arguments, {"stage": move.stage.value, "next": [said]}, [f"stage  {move.stage.value}", said])
    arguments.reader, arguments.namespace = move.reader, move.namespace
    async with open_sides(arguments, move.old, move.new) as (source, target):
        names = [each.name for each in move.topics]
        found = await look(source, target, names, move.groups, move.reader, [each.name for each in move.in_order])
        topics = {each.name: each for each in move.topics}
        parts = [await _part(topics[each.handover.topic], each, source, target) for each in found.tasks]
        what_next = _next(move, parts, source, target)
    head = fields([("stage", move.stage.value), ("from", source.where), ("to", target.where)])
    table = table_of(list(map(_shown, parts)), " ".join(_Part._fields), "no groups")
    topics_lines = [f"{each.name}: {_producers(each, source, target)}" for each in move.topics]
    document: dict[str, Any] = {
        "stage": move.stage.value,
        "from": source.config.endpoints,
        "to": target.config.endpoints,
        "is_turned": move.is_turned,
        "parts": [each._asdict() for each in parts],
        "next": what_next,
    }
    return report(
        arguments, document, [*head, "", *table, "", *topics_lines, "", *(f"next: {each}" for each in what_next)]
    )


def _shown(part: _Part) -> _Part:
    unknown: dict[str, Any] = {name: "unknown" for name, value in part._asdict().items() if value is None}
    return part._replace(**unknown)


async def _part(topic: MovedTopic, task: Task, source: Side, target: Side) -> _Part:
    group = task.group
    where = "both sides" if not topic.in_order else "the new side" if group in topic.finished else "the old side"
    return _Part(
        topic.name,
        group,
        where,
        task.lag,
        await source.consumers(group),
        await target.lag(task.handover, group),
        await target.consumers(group),
    )


def _producers(topic: MovedTopic, source: Side, target: Side) -> str:
    if topic.is_closed:
        return f"producers send to {target.where}"
    if topic.in_order:
        return f"producers send to {source.where}"
    return "producers send to either side"


def _next(move: Move, parts: list[_Part], source: Side, target: Side) -> list[str]:
    if move.stage is Stage.PLANNED:
        return ["popmq move start"]
    if move.is_turning:
        return ["go on with popmq move back"]
    found = []
    for topic in move.topics:
        if not topic.is_closed and not topic.in_order:
            found.append(f"let producers of {topic.name} send to {target.where}")
        elif topic.in_order and not topic.is_switched:
            found.append(f"run popmq move start: it changes sides for the producers of {topic.name}")
    for part in parts:
        if part.gets_it_at != "both sides" and part.old_left and not part.old_consumers:
            found.append(f"start a consumer of {part.group} at {source.where}: it has to finish {part.topic} there")
        elif part.gets_it_at == "the new side" and part.new_left and not part.new_consumers:
            found.append(f"start consumers of {part.group} at {target.where}")
    return [*dict.fromkeys(found), "popmq move finish" + ("" if move.is_turned else ", or popmq move back")]
