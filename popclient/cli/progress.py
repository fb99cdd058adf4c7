"""`popmq group lag|reset|skip|pause|resume|clone|offsets`: a group's progress, shown, moved, exported and imported."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from popclient.admin import Admin, Group, MovedOffset, Pause, QueueLag
from popclient.cli import REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, counted
from popclient.cli.messages import in_any_case
from popclient.cli.output import local, picked, say, table, utc
from popclient.errors import NotFound
from popclient.offset_file import (
    OffsetFileTorn,
    OffsetTable,
    dump_offsets,
    parse_offsets,
    split_table_key,
    table_key,
    write_offset_file,
)

NOWHERE = -1


def lag(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        queues = admin.list_lag(arguments.group, arguments.topic)
    totals = {name: sum(getattr(each, name) for each in queues) for name in ("ready", "inflight", "waiting_retry")}
    document = {"group": arguments.group, **totals, "queues": [_lag_document(each) for each in queues]}
    columns = [
        "topic",
        "queue",
        "min",
        "max",
        "offset",
        "ready",
        "inflight",
        "waiting retry",
        "locked by",
        "oldest ready",
    ]
    rows = ((*list(_lag_document(each).values())[:-1], local(each.oldest_ready)) for each in queues)
    lines = table(columns, rows, "no progress in any topic")
    if queues:
        ready, inflight, waiting = totals.values()
        lines += ["", f"{ready} ready, {inflight} inflight, {waiting} waiting retry in {len(queues)} queues"]
    return say(arguments, document, lines)


def reset(arguments: Namespace) -> int:
    if arguments.offset is not None and arguments.queue is None:
        raise UsageError(f"offset {arguments.offset} is an offset of one queue; name it with --queue ID")
    to = arguments.to if arguments.offset is None else arguments.offset
    with Admin(client_config(arguments)) as admin:

        def move(*, dry_run: bool) -> list[MovedOffset]:
            return admin.reset_offsets(
                arguments.group,
                arguments.topic,
                to,
                queue_id=arguments.queue,
                dry_run=dry_run,
                force=arguments.force,
            )

        if not (arguments.dry_run or arguments.yes) and not confirm(
            arguments, f"moves {arguments.group} in {arguments.topic}: {_consequences(move(dry_run=True))}"
        ):
            return REFUSED
        moved = move(dry_run=arguments.dry_run)
    lines = moved_table(moved)
    if arguments.dry_run:
        lines += ["", "nothing is changed; without --dry-run it will be"]
    return say(arguments, {"dry_run": arguments.dry_run, "moved": moved_documents(moved)}, lines)


def _consequences(moved: Sequence[MovedOffset]) -> str:
    """What a move means for the messages between the offsets, and for those that are held or wait for a retry."""
    repeated = sum(max(0, each.from_offset - each.to_offset) for each in moved if each.from_offset != NOWHERE)
    passed = sum(max(0, each.to_offset - max(0, each.from_offset)) for each in moved)
    return (
        f"{counted(repeated, 'message')} of {counted(len(moved), 'queue')} will be delivered again,"
        f" {counted(passed, 'message')} will not be delivered, and holds and retries end"
    )


def skip(arguments: Namespace) -> int:
    what = f"marks 1 message as consumed by {arguments.group} without delivering it"
    if not confirm(arguments, what):
        return REFUSED
    with Admin(client_config(arguments)) as admin:
        skipped = in_any_case(
            lambda each: admin.skip_message(arguments.group, each, arguments.topic, force=arguments.force),
            arguments.message_id,
        )
    document = {
        "group": arguments.group,
        "message_id": arguments.message_id,
        **picked(skipped, "from_state client_id held_until"),
    }
    line = f"skipped {arguments.message_id} for {arguments.group}; it was {skipped.from_state}"
    if skipped.held_until is not None:
        holder = f"client {skipped.client_id}" if skipped.client_id else "a client that is gone"
        line += f", held by {holder} until {local(skipped.held_until)}"
    return say(arguments, document, [line])


def pause(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        admin.pause_group(arguments.group, topic=arguments.topic, message_group=arguments.message_group)
        group = admin.get_group(arguments.group)
    return say(arguments, {"group": arguments.group, **pause_document(group)}, pause_lines(group))


def resume(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        admin.resume_group(arguments.group, topic=arguments.topic, message_group=arguments.message_group)
        group = admin.get_group(arguments.group)
    lines = pause_lines(group) or [f"consumer group {arguments.group} is not paused"]
    return say(arguments, {"group": arguments.group, **pause_document(group)}, lines)


def pause_lines(group: Group) -> list[str]:
    """One line for each pause, and one that counts those that the server left out."""
    lines = [
        f"paused: {paused_part(each, group)}, since {local(each.paused_at)}"
        + (f" by {each.paused_by}" if each.paused_by else "")
        for each in group.pauses
    ]
    return [*lines, f"paused: and {group.more_pauses} more"] if group.more_pauses else lines


def paused_parts(group: Group) -> str:
    """What is paused, in a few words."""
    parts = [paused_part(each, group) for each in group.pauses]
    return ", ".join([*parts, f"and {group.more_pauses} more"] if group.more_pauses else parts)


def paused_part(pause: Pause, group: Group) -> str:
    """What the pause is about: `all topics`, `topic flights`, `message group LH400 in topic flights`."""
    part = "all topics" if pause.topic is None else f"topic {pause.topic}"
    kind = "lite topic" if group.lite else "message group"
    return part if pause.message_group is None else f"{kind} {pause.message_group} in {part}"


def pause_document(group: Group) -> dict[str, Any]:
    pauses = [picked(each, "topic message_group paused_at paused_by") for each in group.pauses]
    return {"pauses": pauses, "more_pauses": group.more_pauses}


def clone(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        moved = admin.clone_offsets(arguments.source, arguments.group, arguments.topic)
    return say(arguments, {"moved": moved_documents(moved)}, moved_table(moved))


def moved_table(moved: Sequence[MovedOffset]) -> list[str]:
    rows = [(each.topic, each.queue_id, _written(each.from_offset), each.to_offset) for each in moved]
    return table(["topic", "queue", "from", "to"], rows, "nothing is moved")


def moved_documents(moved: Sequence[MovedOffset]) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.topic,
            "queue_id": each.queue_id,
            "from_offset": None if each.from_offset == NOWHERE else each.from_offset,
            "to_offset": each.to_offset,
        }
        for each in moved
    ]


def _written(offset: int) -> int | str:
    return "none" if offset == NOWHERE else offset


def _lag_document(lag: QueueLag) -> dict[str, Any]:
    return {
        **picked(lag, "topic queue_id min_offset max_offset offset ready inflight waiting_retry client_id"),
        "oldest_ready_at": utc(lag.oldest_ready),
    }


STANDARD_STREAM: Final = "-"
QUEUE_ID_MAX: Final = 2**31 - 1  # of the wire
OFFSET_MAX: Final = 2**63 - 1


def write(arguments: Namespace) -> int:
    """Of a group that owns whole queues: what it has committed."""
    with Admin(client_config(arguments)) as admin:
        group = admin.get_group(arguments.group)
        if group.mode == "POP":
            raise UsageError(
                f"consumer group {group.name} consumes message by message: offsets do not say what it is done with;"
                " to let another group begin there use popmq group clone"
            )
        table = {
            table_key(each.topic, group.name): {
                queue.queue_id: queue.offset for queue in admin.list_lag(group.name, each.topic)
            }
            for each in group.lag
        }
    if arguments.file == STANDARD_STREAM:
        print(dump_offsets(table), end="")
        return 0
    try:
        write_offset_file(Path(arguments.file), table)
    except OSError as failure:
        raise UsageError(f"{arguments.file} cannot be written: {failure.strerror}") from None
    count = sum(map(len, table.values()))
    document = {"file": arguments.file, "queues": count}
    return say(arguments, document, [f"wrote the offsets of {count} queues to {arguments.file}"])


def read(arguments: Namespace) -> int:
    """Of a file that names several groups, what it says of one."""
    named = arguments.name_in_file or arguments.group
    offsets = _of_group(_table(arguments.file), named, arguments)
    with Admin(client_config(arguments)) as admin:
        if not arguments.yes and not confirm(
            arguments, f"moves {arguments.group}: {_consequences(_moves(admin, arguments.group, offsets))}"
        ):
            return REFUSED
        moved = admin.import_offsets(arguments.group, offsets)
    return say(arguments, {"moved": moved_documents(moved)}, moved_table(moved))


def _moves(admin: Admin, group: str, offsets: dict[str, dict[int, int]]) -> list[MovedOffset]:
    """From where to where the group would go in each queue."""
    try:
        now = {(each.topic, each.queue_id): each.offset for each in admin.list_lag(group)}
    except NotFound:
        now = {}  # the import creates the group
    return [
        MovedOffset(topic, queue_id, now.get((topic, queue_id), NOWHERE), offset)
        for topic, of_topic in offsets.items()
        for queue_id, offset in of_topic.items()
    ]


def _table(file: str) -> OffsetTable:
    """Reads the file itself, never its older backup."""
    try:
        if file == STANDARD_STREAM:
            return parse_offsets(sys.stdin.read())
        return parse_offsets(Path(file).read_text(encoding="utf-8"))
    except OffsetFileTorn as torn:
        raise UsageError(f"{file} holds no offsets: {torn}; nothing is imported") from None
    except UnicodeDecodeError as failure:
        raise UsageError(f"{file} is no text: byte {failure.start} is not UTF-8; nothing is imported") from None
    except OSError as failure:
        raise UsageError(f"{file} cannot be read: {failure.strerror}") from None


def _of_group(table: OffsetTable, named: str, arguments: Namespace) -> dict[str, dict[int, int]]:
    """By topic, what the table says of the group."""
    by_place = {split_table_key(key): of_key for key, of_key in table.items()}
    offsets = {topic: of_key for (topic, group), of_key in by_place.items() if group == named and of_key}
    if not offsets:
        groups = ", ".join(sorted({group for _, group in by_place})) or "none"
        raise UsageError(
            f"{arguments.file} has no offsets of group {named}; it has those of: {groups}; import another one's with"
            " --as NAME"
        )
    for topic, of_key in offsets.items():
        for queue_id, offset in of_key.items():
            if queue_id > QUEUE_ID_MAX or offset > OFFSET_MAX:
                raise UsageError(
                    f"{arguments.file} has offset {offset} for queue {queue_id} of topic {topic}; at most offset"
                    f" {OFFSET_MAX} and queue {QUEUE_ID_MAX} are possible"
                )
    return offsets
