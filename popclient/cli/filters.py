"""`popmq filter …`"""

from __future__ import annotations

from argparse import Namespace

from popclient.admin import Admin, FilterTrial
from popclient.cli.arguments import client_config
from popclient.cli.output import local, say, table, utc
from popclient.message import MessageView


def test(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        trial = admin.try_filter(arguments.expression, arguments.topic, last=arguments.last, max_messages=arguments.max)
    document = {
        "topic": arguments.topic,
        "expression": arguments.expression,
        "examined": trial.examined,
        "matched": trial.matched,
        "incomparable": trial.incomparable,
        "complete": trial.complete,
        "messages": [
            {
                "message_id": each.message_id,
                "queue_id": each.queue_id,
                "queue_offset": each.queue_offset,
                "stored_at": utc(each.store_timestamp),
                "tag": each.tag,
                "properties": dict(each.properties),
            }
            for each in trial.newest
        ],
    }
    return say(arguments, document, _lines(trial))


def _lines(trial: FilterTrial) -> list[str]:
    share = f" ({trial.matched / trial.examined:.1%})" if trial.examined else ""
    lines = [f"{trial.matched} of {trial.examined} messages match{share}"]
    if trial.incomparable:
        lines.append(f"{trial.incomparable} cannot: a property is not what the expression takes it for")
    if not trial.complete:
        lines.append("older messages were not examined")
    return [*lines, "", *_table(trial.newest)] if trial.newest else lines


def _table(newest: tuple[MessageView, ...]) -> list[str]:
    columns = ["message id", "queue", "offset", "stored", "tag", "properties"]
    return table(
        columns,
        [
            (
                each.message_id,
                each.queue_id,
                each.queue_offset,
                local(each.store_timestamp),
                each.tag,
                ", ".join(f"{name}={value}" for name, value in sorted(each.properties.items())),
            )
            for each in newest
        ],
        "no messages",
    )
