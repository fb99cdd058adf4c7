"""`popmq group lag|reset|skip|clone`: how far a group is behind, and where an operator lets it go on."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from popclient.admin import Admin, MovedOffset, QueueLag
from popclient.cli import UsageError
from popclient.cli.arguments import client_config
from popclient.cli.ids import in_any_case
from popclient.cli.output import say, table

NOWHERE = -1


def lag(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        queues = admin.list_lag(arguments.group, arguments.topic)
    totals = {name: sum(getattr(each, name) for each in queues) for name in ("ready", "inflight", "waiting_retry")}
    document = {"group": arguments.group, **totals, "queues": [_lag_document(each) for each in queues]}
    columns = ["topic", "queue", "min", "max", "offset", "ready", "inflight", "waiting retry", "locked by"]
    lines = table(columns, (tuple(_lag_document(each).values()) for each in queues), "no progress in any topic")
    if queues:
        ready, inflight, waiting = totals.values()
        lines += ["", f"{ready} ready, {inflight} inflight, {waiting} waiting retry in {len(queues)} queues"]
    return say(arguments, document, lines)


def reset(arguments: Namespace) -> int:
    if arguments.offset is not None and arguments.queue is None:
        raise UsageError(f"offset {arguments.offset} is an offset of one queue; name it with --queue ID")
    to = arguments.to if arguments.offset is None else arguments.offset
    with Admin(client_config(arguments)) as admin:
        moved = admin.reset_offsets(
            arguments.group, arguments.topic, to, queue_id=arguments.queue, dry_run=arguments.dry_run
        )
    lines = moved_table(moved)
    if arguments.dry_run:
        lines += ["", "nothing is changed; without --dry-run it will be"]
    return say(arguments, {"dry_run": arguments.dry_run, "moved": moved_documents(moved)}, lines)


def skip(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        state = in_any_case(
            lambda each: admin.skip_message(arguments.group, each, arguments.topic), arguments.message_id
        )
    document = {"group": arguments.group, "message_id": arguments.message_id, "from_state": state}
    return say(arguments, document, [f"skipped {arguments.message_id} for {arguments.group}; it was {state}"])


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
        "topic": lag.topic,
        "queue_id": lag.queue_id,
        "min_offset": lag.min_offset,
        "max_offset": lag.max_offset,
        "offset": lag.offset,
        "ready": lag.ready,
        "inflight": lag.inflight,
        "waiting_retry": lag.waiting_retry,
        "client_id": lag.client_id,
    }
