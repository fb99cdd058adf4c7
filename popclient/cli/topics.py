"""`popmq topic …` and `popmq lite …`: topics, and the lite topics of a topic."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from popclient.admin import Admin, LiteTopicGroup, Topic
from popclient.cli import REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, counted
from popclient.cli.output import (
    differing,
    duration_text,
    fields,
    made_or_found,
    picked,
    report,
    table_of,
    unchanged,
)

NAMED_GROUPS: Final = 3  # in the question before a topic is deleted


def create(arguments: Namespace) -> int:
    def make() -> Topic:
        return admin.create_topic(
            arguments.name,
            queue_count=arguments.queues or 0,
            accept_message_types=arguments.types,
            lite_expiry=arguments.lite_expires,
        )

    with Admin(client_config(arguments)) as admin:
        made, is_new = made_or_found(arguments, make, admin.get_topic)
    if is_new:
        return report(arguments, _document(made), [f"created topic {made.name} with {made.queue_count} queues"])
    differs = differing(
        {
            "--queues": (arguments.queues, made.queue_count),
            "--type": (sorted({*arguments.types}), sorted(made.accept_message_types)),
            "--lite-expires": (arguments.lite_expires, made.lite_expiry),
        }
    )
    return report(arguments, {**_document(made), "differs": differs}, unchanged("topic", made.name, differs))


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        topics = admin.list_topics()
    lines = table_of(
        topics,
        "topic namespace queues messages types created",
        "no topics",
        topic="name",
        queues="queue_count",
        messages="message_count",
        types=lambda topic: ",".join(topic.accept_message_types),
        created="created_at",
    )
    return report(arguments, list(map(_document, topics)), lines)


def show(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        topic = admin.get_topic(arguments.name)
    lines = fields(
        [
            ("topic", topic.name),
            ("namespace", topic.namespace),
            ("types", ", ".join(topic.accept_message_types)),
            ("messages", topic.message_count),
            ("created", topic.created_at),
            *([("closed", topic.closed_because)] if topic.closed_because else []),
            *_lite_fields(topic),
        ]
    )
    stored = table_of(
        topic.queues,
        "queue min_offset max_offset messages",
        queue="id",
        messages=lambda queue: queue.max_offset - queue.min_offset,
    )
    lines += ["", *stored]
    return report(arguments, _document(topic, with_queues=True), lines)


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
    return report(
        arguments, _document(changed), [f"topic {changed.name} has {changed.queue_count} queues and accepts {types}"]
    )


def close(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        closed = admin.close_topic(arguments.name, arguments.because)
    said = f"topic {closed.name} is closed; its producers read: {closed.closed_because}"
    return report(arguments, _document(closed), [said])


def reopen(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        opened = admin.open_topic(arguments.name)
    return report(arguments, _document(opened), [f"topic {opened.name} takes messages of producers"])


def delete(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        if not arguments.yes and not confirm(arguments, _deletion(admin, admin.get_topic(arguments.name))):
            return REFUSED
        admin.delete_topic(arguments.name)
    return report(arguments, {"name": arguments.name, "deleted": True}, [f"deleted topic {arguments.name}"])


def _deletion(admin: Admin, topic: Topic) -> str:
    """What the deletion removes, and which groups have messages left there."""
    left = {
        each.group: each.ready + each.inflight + each.waiting_retry
        for each in admin.status().lag
        if (each.topic, each.namespace) == (topic.name, topic.namespace)
    }
    what = f"deletes topic {topic.name} with {counted(topic.message_count, 'message')}"
    behind = sorted(((count, group) for group, count in left.items() if count), key=lambda each: (-each[0], each[1]))
    if not behind:
        return what
    named = ", ".join(f"{group} ({count:,})" for count, group in behind[:NAMED_GROUPS])
    more = len(behind) - NAMED_GROUPS
    others = f" and {counted(more, 'more group')}" if more > 0 else ""
    return f"{what}, not yet consumed by {named}{others}"


def _lite_fields(topic: Topic) -> list[tuple[str, object]]:
    if "LITE" not in topic.accept_message_types:
        return []
    expiry = "never" if topic.lite_expiry is None else duration_text(topic.lite_expiry)
    return [("lite topics", topic.lite_topic_count), ("lite expiry", expiry)]


def _document(topic: Topic, *, with_queues: bool = False) -> dict[str, Any]:
    document: dict[str, Any] = {
        **picked(topic, "name namespace queue_count"),
        "message_types": list(topic.accept_message_types),
        **picked(topic, "message_count created_at closed_because"),
    }
    if "LITE" in topic.accept_message_types:
        expiry = topic.lite_expiry
        document["lite_topic_count"] = topic.lite_topic_count
        document["lite_expiry_s"] = None if expiry is None else expiry.total_seconds()
    if with_queues:
        document["queues"] = [picked(each, "id min_offset max_offset") for each in topic.queues]
    return document


# ---- Lite topics ----

_LITE_TOPIC = "name queue_id first_offset created_at newest"


def list_lite(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = admin.list_lite_topics(
            arguments.topic, prefix=arguments.prefix, after=arguments.after, max_topics=arguments.max
        )
    lines = table_of(
        found,
        "lite_topic queue first_offset created last_message",
        "no lite topics",
        lite_topic="name",
        queue="queue_id",
        created="created_at",
        last_message="newest",
    )
    return report(arguments, [picked(each, _LITE_TOPIC) for each in found], lines)


def show_lite(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = admin.get_lite_topic(arguments.topic, arguments.lite_topic)
    one = found.lite_topic
    lines = fields(
        [
            ("lite topic", one.name),
            ("queue", one.queue_id),
            ("first offset", one.first_offset),
            ("created", one.created_at),
            ("last message", one.newest),
        ]
    )
    table = table_of(
        found.groups,
        "group model ready inflight waiting_retry clients",
        "no group has received from the topic yet",
        model=lambda group: group.lite or "all",
        clients=_clients,
    )
    lines += ["", *table]
    return report(arguments, {**picked(one, _LITE_TOPIC), "groups": list(map(_group_document, found.groups))}, lines)


def _group_document(group: LiteTopicGroup) -> dict[str, Any]:
    return picked(group, "group lite ready inflight waiting_retry client_ids")


def _clients(group: LiteTopicGroup) -> str:
    """Which clients get the lite topic. The server keeps a list only if clients name their lite topics."""
    return ", ".join(group.client_ids) if group.lite in ("SHARED", "EXCLUSIVE") else "all"
