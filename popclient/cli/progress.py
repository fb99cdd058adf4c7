"""`popmq group lag|reset|skip|pause|resume|clone|offsets`: show, move, export and import the progress of a group."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from popclient.admin import Admin, Group, MovedOffset, Pause, QueueLag
from popclient.cli import REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, counted
from popclient.cli.messages import in_any_case
from popclient.cli.output import Cell, local, picked, report, table_of, utc
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

NO_OFFSET = -1


def lag(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        queues = admin.list_lag(arguments.group, arguments.topic)
        group = admin.get_group(arguments.group)
    totals = {name: sum(getattr(each, name) for each in queues) for name in ("ready", "inflight", "waiting_retry")}
    document = {"group": arguments.group, **totals, "queues": [_lag_document(each) for each in queues]}
    lines = table_of(
        queues,
        "topic queue min max offset ready inflight waiting_retry locked_by oldest_ready",
        "no progress in any topic",
        queue="queue_id",
        min="min_offset",
        max="max_offset",
        locked_by="client_id",
    )
    if queues:
        ready, inflight, waiting = totals.values()
        lines += ["", f"{ready} ready, {inflight} inflight, {waiting} waiting retry in {len(queues)} queues"]
        lines += pause_lines(group)
    return report(arguments, document, lines)


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

        what = f"{arguments.group} in {arguments.topic} to {_goal(to, arguments.queue)}"
        if not (arguments.dry_run or arguments.yes) and not confirm(
            arguments, f"moves {what}: {_consequences(move(dry_run=True))}"
        ):
            return REFUSED
        moved = move(dry_run=arguments.dry_run)
    ends = [f"moved {what}"]
    if arguments.dry_run:
        ends = [
            f"this moves {what}: {_consequences(moved)}",
            "nothing has changed; run it without --dry-run to change it",
        ]
    document = {"dry_run": arguments.dry_run, "moved": moved_documents(moved)}
    return report(arguments, document, [*moved_table(moved), "", *ends])


def _goal(to: str | datetime | int, queue: int | None) -> str:
    """Where a reset goes, in words. A moment is in UTC, so that a zone that was meant otherwise is noticed."""
    if isinstance(to, int):
        return f"offset {to} of queue {queue}"
    if isinstance(to, datetime):
        name = to.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        is_ahead = to > datetime.now(UTC)
        return f"{name}{', which is in the future, so to the end' if is_ahead else ''}{_of_queue(queue)}"
    return f"the {to.lower()}{_of_queue(queue)}"


def _of_queue(queue: int | None) -> str:
    return "" if queue is None else f" of queue {queue}"


def _consequences(moved: Sequence[MovedOffset]) -> str:
    """What a move does to the messages between the offsets, and to messages that are held or wait for a retry."""
    repeated = sum(max(0, each.from_offset - each.to_offset) for each in moved if each.from_offset != NO_OFFSET)
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
    return report(arguments, document, [line])


def pause(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        admin.pause_group(arguments.group, topic=arguments.topic, message_group=arguments.message_group)
        group = admin.get_group(arguments.group)
    return report(arguments, {"group": arguments.group, **pause_document(group)}, pause_lines(group))


def resume(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        admin.resume_group(arguments.group, topic=arguments.topic, message_group=arguments.message_group)
        group = admin.get_group(arguments.group)
    lines = pause_lines(group) or [f"consumer group {arguments.group} is not paused"]
    return report(arguments, {"group": arguments.group, **pause_document(group)}, lines)


def pause_lines(group: Group) -> list[str]:
    """One line for each pause, and one with the number of pauses that the server left out."""
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
    """What is paused: `all topics`, `topic flights`, `message group LH400 in topic flights`."""
    part = "all topics" if pause.topic is None else f"topic {pause.topic}"
    kind = "lite topic" if group.lite else "message group"
    return part if pause.message_group is None else f"{kind} {pause.message_group} in {part}"


def pause_document(group: Group) -> dict[str, Any]:
    pauses = [picked(each, "topic message_group paused_at paused_by") for each in group.pauses]
    return {"pauses": pauses, "more_pauses": group.more_pauses}


def clone(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        moved = admin.clone_offsets(arguments.source, arguments.group, arguments.topic)
    return report(arguments, {"moved": moved_documents(moved)}, moved_table(moved))


def moved_table(moved: Sequence[MovedOffset]) -> list[str]:
    cells: dict[str, Cell] = {
        "queue": "queue_id",
        "from": lambda each: "none" if each.from_offset == NO_OFFSET else each.from_offset,
        "to": "to_offset",
    }
    return table_of(moved, "topic queue from to", "nothing was moved", **cells)


def moved_documents(moved: Sequence[MovedOffset]) -> list[dict[str, Any]]:
    return [
        picked(each, "topic queue_id from_offset to_offset")
        | ({"from_offset": None} if each.from_offset == NO_OFFSET else {})
        for each in moved
    ]


def _lag_document(lag: QueueLag) -> dict[str, Any]:
    return {
        **picked(lag, "topic queue_id min_offset max_offset offset ready inflight waiting_retry client_id"),
        "oldest_ready_at": utc(lag.oldest_ready),
    }


STANDARD_STREAM: Final = "-"
QUEUE_ID_MAX: Final = 2**31 - 1  # of the wire
OFFSET_MAX: Final = 2**63 - 1


def export_offsets(arguments: Namespace) -> int:
    """Write the committed offsets of a group that owns whole queues."""
    with Admin(client_config(arguments)) as admin:
        group = admin.get_group(arguments.group)
        if group.mode == "POP":
            raise UsageError(
                f"consumer group {group.name} consumes message by message, and offsets cannot describe its progress; to"
                " start another group there use popmq group clone"
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
    return report(arguments, document, [f"wrote the offsets of {count} queues to {arguments.file}"])


def import_offsets(arguments: Namespace) -> int:
    """Set the progress of a group to the offsets of one group in a file, which may have several groups."""
    named = arguments.name_in_file or arguments.group
    offsets = _of_group(_table(arguments.file), named, arguments)
    with Admin(client_config(arguments)) as admin:
        if not arguments.yes and not confirm(
            arguments, f"moves {arguments.group}: {_consequences(_moves(admin, arguments.group, offsets))}"
        ):
            return REFUSED
        moved = admin.import_offsets(arguments.group, offsets)
    return report(arguments, {"moved": moved_documents(moved)}, moved_table(moved))


def _moves(admin: Admin, group: str, offsets: dict[str, dict[int, int]]) -> list[MovedOffset]:
    """The moves that an import would make, for each queue."""
    try:
        now = {(each.topic, each.queue_id): each.offset for each in admin.list_lag(group)}
    except NotFound:
        now = {}  # the import creates the group
    return [
        MovedOffset(topic, queue_id, now.get((topic, queue_id), NO_OFFSET), offset)
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
        raise UsageError(f"{file} is not a file of offsets: {torn}; nothing was imported") from None
    except UnicodeDecodeError as failure:
        raise UsageError(f"{file} is no text: byte {failure.start} is not UTF-8; nothing was imported") from None
    except OSError as failure:
        raise UsageError(f"{file} cannot be read: {failure.strerror}") from None


def _of_group(table: OffsetTable, named: str, arguments: Namespace) -> dict[str, dict[int, int]]:
    """The offsets of the group by topic."""
    by_names = {split_table_key(key): of_key for key, of_key in table.items()}
    offsets = {topic: of_key for (topic, group), of_key in by_names.items() if group == named and of_key}
    if not offsets:
        groups = ", ".join(sorted({group for _, group in by_names})) or "none"
        raise UsageError(
            f"{arguments.file} has no offsets of group {named}; its groups are: {groups}; choose one with --as NAME"
        )
    for topic, of_key in offsets.items():
        for queue_id, offset in of_key.items():
            if queue_id > QUEUE_ID_MAX or offset > OFFSET_MAX:
                raise UsageError(
                    f"{arguments.file} has offset {offset} for queue {queue_id} of topic {topic}; at most offset"
                    f" {OFFSET_MAX} and queue {QUEUE_ID_MAX} are possible"
                )
    return offsets
