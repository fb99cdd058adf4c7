"""`popmq topic …`"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from popclient.admin import Admin, Topic
from popclient.cli import REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, counted
from popclient.cli.output import fields, picked, say, table, utc, written


def create(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        made = admin.create_topic(
            arguments.name,
            queue_count=arguments.queues or 0,
            accept_message_types=arguments.types,
            lite_expiry=arguments.lite_expires,
        )
    return say(arguments, _document(made), [f"made topic {made.name} with {made.queue_count} queues"])


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        topics = admin.list_topics()
    columns = ["topic", "namespace", "queues", "messages", "types", "created"]
    rows = [
        (
            each.name,
            each.namespace,
            each.queue_count,
            each.message_count,
            ",".join(each.accept_message_types),
            each.created_at,
        )
        for each in topics
    ]
    return say(arguments, [_document(each) for each in topics], table(columns, rows, "no topics"))


def show(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        topic = admin.get_topic(arguments.name)
    queues = [(each.id, each.min_offset, each.max_offset, each.max_offset - each.min_offset) for each in topic.queues]
    lines = fields(
        [
            ("topic", topic.name),
            ("namespace", topic.namespace),
            ("types", ", ".join(topic.accept_message_types)),
            ("messages", topic.message_count),
            ("created", topic.created_at),
            *_lite_fields(topic),
        ]
    )
    lines += ["", *table(["queue", "min offset", "max offset", "messages"], queues)]
    return say(arguments, _document(topic, with_queues=True), lines)


def update(arguments: Namespace) -> int:
    if arguments.queues is None and not arguments.types and arguments.lite_expires is None:
        raise UsageError("nothing to change; give --queues, --type or --lite-expires")
    with Admin(client_config(arguments)) as admin:
        changed = admin.update_topic(
            arguments.name,
            queue_count=arguments.queues,
            accept_message_types=arguments.types,
            lite_expiry=arguments.lite_expires,
        )
    types = ", ".join(changed.accept_message_types)
    return say(
        arguments, _document(changed), [f"topic {changed.name} has {changed.queue_count} queues and accepts {types}"]
    )


def delete(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        messages = admin.get_topic(arguments.name).message_count
        if not confirm(arguments, f"deletes topic {arguments.name} with {counted(messages, 'message')}"):
            return REFUSED
        admin.delete_topic(arguments.name)
    return say(arguments, {"name": arguments.name, "deleted": True}, [f"deleted topic {arguments.name}"])


def _lite_fields(topic: Topic) -> list[tuple[str, object]]:
    if "LITE" not in topic.accept_message_types:
        return []
    expiry = "never" if topic.lite_expiry is None else written(topic.lite_expiry)
    return [("lite topics", topic.lite_topic_count), ("lite expiry", expiry)]


def _document(topic: Topic, *, with_queues: bool = False) -> dict[str, Any]:
    document: dict[str, Any] = {
        **picked(topic, "name namespace queue_count"),
        "message_types": list(topic.accept_message_types),
        "message_count": topic.message_count,
        "created_at": utc(topic.created_at),
    }
    if "LITE" in topic.accept_message_types:
        expiry = topic.lite_expiry
        document["lite_topic_count"] = topic.lite_topic_count
        document["lite_expiry_s"] = None if expiry is None else expiry.total_seconds()
    if with_queues:
        document["queues"] = [
            {"id": each.id, "min_offset": each.min_offset, "max_offset": each.max_offset} for each in topic.queues
        ]
    return document
