"""`popmq group offsets export|import`: a group's progress as the classic JSON file, and back."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Final

from popclient.admin import Admin
from popclient.cli import UsageError
from popclient.cli.arguments import client_config
from popclient.cli.output import say
from popclient.cli.progress import moved_documents, moved_table
from popclient.offset_file import (
    OffsetFileTorn,
    OffsetTable,
    dump_offsets,
    parse_offsets,
    split_table_key,
    table_key,
    write_offset_file,
)

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
        moved = admin.import_offsets(arguments.group, offsets)
    return say(arguments, {"moved": moved_documents(moved)}, moved_table(moved))


def _table(file: str) -> OffsetTable:
    """The file itself: its backup is an older truth, which nobody asked for."""
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
