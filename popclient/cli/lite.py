"""`popmq lite …`"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from popclient.admin import Admin, LiteTopic, LiteTopicGroup
from popclient.cli.arguments import client_config
from popclient.cli.output import fields, picked, say, table

CHOOSING = ("SHARED", "EXCLUSIVE")  # the models whose clients name their lite topics


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = admin.list_lite_topics(
            arguments.topic, prefix=arguments.prefix, after=arguments.after, max_topics=arguments.max
        )
    columns = ["lite topic", "queue", "first offset", "created", "last message"]
    rows = [(each.name, each.queue_id, each.first_offset, each.created_at, each.newest) for each in found]
    return say(arguments, [_document(each) for each in found], table(columns, rows, "no lite topics"))


def show(arguments: Namespace) -> int:
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
    columns = ["group", "model", "ready", "inflight", "waiting retry", "clients"]
    rows = [
        (each.group, each.lite or "all", each.ready, each.inflight, each.waiting_retry, _clients(each))
        for each in found.groups
    ]
    groups = [picked(each, "group lite ready inflight waiting_retry client_ids") for each in found.groups]
    document = {**_document(one), "groups": groups}
    return say(arguments, document, [*lines, "", *table(columns, rows, "no group has met the topic")])


def _clients(group: LiteTopicGroup) -> str:
    """Who gets the lite topic. Where clients do not choose, the server keeps no list of them."""
    return ", ".join(group.client_ids) if group.lite in CHOOSING else "all"


def _document(each: LiteTopic) -> dict[str, Any]:
    return picked(each, "name queue_id first_offset created_at newest")
