"""`popmq group create|list|show|update|delete`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from popclient.admin import Admin, Consumer, ExponentialBackoff, Group, GroupLag, Redeliveries
from popclient.cli import REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, counted
from popclient.cli.output import (
    GONE,
    differing,
    duration_text,
    fields,
    hint_lines,
    made_or_found,
    milliseconds,
    picked,
    report,
    table,
    table_of,
    unchanged,
    utc,
)
from popclient.cli.progress import pause_document, pause_lines, paused_parts


def create(arguments: Namespace) -> int:
    consume_from, lite = ((each or "").upper() for each in (arguments.consume_from, arguments.lite))

    def make() -> Group:
        return admin.create_group(
            arguments.name,
            max_attempts=arguments.max_attempts or 0,
            retry_intervals=arguments.retry,
            fifo_retry_interval=arguments.fifo_retry,
            consume_from=consume_from,
            history=arguments.history or "",
            lite=lite,
        )

    with Admin(client_config(arguments)) as admin:
        made, is_new = made_or_found(arguments, make, admin.get_group)
    if is_new:
        return report(arguments, _document(made), [f"created consumer group {made.name}: {_policy(made)}"])
    differs = differing(
        {
            "--max-attempts": (arguments.max_attempts, made.max_attempts),
            "--retry": (_intervals_text(arguments.retry), _intervals(made)),
            "--fifo-retry": (arguments.fifo_retry, made.fifo_retry_interval),
            "--consume-from": (consume_from, made.consume_from),
            "--history": (arguments.history, made.history),
            "--lite": (lite, made.lite or "none"),
        }
    )
    return report(arguments, {**_document(made), "differs": differs}, unchanged("consumer group", made.name, differs))


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        groups = admin.list_groups()
    lines = table_of(
        groups,
        "group namespace attempts consume_from history mode lite paused created",
        "no consumer groups",
        group="name",
        attempts="max_attempts",
        mode=lambda group: group.mode or "unused",
        paused=paused_parts,
        created="created_at",
    )
    return report(arguments, list(map(_document, groups)), lines)


def _lite_fields(group: Group) -> list[tuple[str, object]]:
    if not group.lite:
        return []
    chosen = f"{group.lite_subscriptions} lite topics, of {group.lite_clients} clients together"
    return [("lite", group.lite), ("subscribed", "all lite topics" if group.lite == "WILDCARD" else chosen)]


def show(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        group = admin.get_group(arguments.name)
    lines = fields(
        [
            ("group", group.name),
            ("namespace", group.namespace),
            ("attempts", group.max_attempts),
            ("retry after", _intervals(group)),
            ("retry in order", duration_text(group.fifo_retry_interval)),
            ("consume from", group.consume_from),
            ("history", group.history),
            ("mode", group.mode or "unused"),
            *_lite_fields(group),
            ("created", group.created_at),
            ("retries", _share(group.redeliveries)),
            *(("paused", line.removeprefix("paused: ")) for line in pause_lines(group)),
        ]
    )
    document = {
        **_document(group),
        "redeliveries": _share_document(group.redeliveries),
        "consumers": list(map(_consumer_document, group.consumers)),
        **picked(group, "lite_clients lite_subscriptions hints"),
        "lag": lag_documents(group.lag),
        "dead_elsewhere": dead_documents(group.dead_elsewhere),
    }
    consumers = _consumer_table(group.consumers)
    lag = lag_table(group.lag, group.dead_elsewhere)
    return report(arguments, document, [*lines, *hint_lines(group.hints), "", *consumers, "", *lag])


def update(arguments: Namespace) -> int:
    given = arguments.max_attempts, arguments.retry or None, arguments.fifo_retry, arguments.history, arguments.lite
    if all(each is None for each in given):
        raise UsageError(
            "nothing to change; give --max-attempts N (deliveries of a message before it is a dead letter),"
            " --retry DURATIONS|exponential (a push consumer's intervals), --fifo-retry DURATION (a message group's"
            " interval), --history none|errors|all (which steps are recorded) or --lite shared|exclusive|wildcard (of a"
            " group that was never used)"
        )
    with Admin(client_config(arguments)) as admin:
        changed = admin.update_group(
            arguments.name,
            max_attempts=arguments.max_attempts,
            retry_intervals=arguments.retry,
            fifo_retry_interval=arguments.fifo_retry,
            history=arguments.history,
            lite=(arguments.lite or "").upper(),
        )
    return report(arguments, _document(changed), [f"consumer group {changed.name}: {_policy(changed)}"])


def delete(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        group = admin.get_group(arguments.name)
        dead = sum(each.dead_letters for each in (*group.lag, *group.dead_elsewhere))
        progress = f"its progress in {counted(len(group.lag), 'topic')}"
        what = f"deletes consumer group {group.name} with {progress} and {counted(dead, 'dead letter')}"
        if connected := sum(each.connected for each in group.consumers):
            what += (
                f"; stop its {counted(connected, 'connected consumer')} first, because a server that creates groups on"
                " first use creates it again for them, with the defaults, and they get all messages once more"
            )
        if not confirm(arguments, what):
            return REFUSED
        admin.delete_group(arguments.name)
    return report(arguments, {"name": arguments.name, "deleted": True}, [f"deleted consumer group {arguments.name}"])


def lag_table(lag: Sequence[GroupLag], dead_elsewhere: Sequence[GroupLag]) -> list[str]:
    """Each group in each topic, and after that the dead letters of topics that the group no longer consumes."""
    columns = "group topic ready inflight waiting_retry dead_letters oldest_ready"
    nothing = "no group has received from a topic yet"
    return table_of([*lag, *dead_elsewhere], columns, nothing, topic=lambda each: each.topic or GONE)


def lag_documents(lag: Sequence[GroupLag]) -> list[dict[str, Any]]:
    return [
        {
            **picked(each, "group topic ready inflight waiting_retry dead_letters"),
            "oldest_ready_at": utc(each.oldest_ready),
        }
        for each in lag
    ]


def dead_documents(dead_elsewhere: Sequence[GroupLag]) -> list[dict[str, Any]]:
    """The dead letters that are not in the lag; topic null: its topic is deleted."""
    return [
        {"group": each.group, "topic": each.topic or None, "dead_letters": each.dead_letters} for each in dead_elsewhere
    ]


def _consumer_table(consumers: Sequence[Consumer]) -> list[str]:
    columns = ["consumer", "kind", "connected", "last seen", "topic", "by", "expression"]
    rows = [
        (each.client_id, each.kind, "yes" if each.connected else "no", each.last_seen, *wanted)
        for each in consumers
        for wanted in _wants(each)
    ]
    return table(columns, rows, "no consumer of this group is connected to this server")


def _wants(consumer: Consumer) -> list[tuple[str, str, str]]:
    wants = [(each.topic, each.kind, each.expression) for each in consumer.subscriptions]
    more = consumer.more_subscriptions
    return [*wants, *([(f"{more} more", "", "")] if more else [])] or [("", "", "")]


def _consumer_document(consumer: Consumer) -> dict[str, Any]:
    return {
        **picked(consumer, "client_id kind connected"),
        "last_seen_at": utc(consumer.last_seen),
        "subscriptions": [picked(each, "topic kind expression") for each in consumer.subscriptions],
        "more_subscriptions": consumer.more_subscriptions,
    }


def _share(share: Redeliveries) -> str:
    if not share.deliveries:
        return ""
    over = duration_text(timedelta(seconds=share.over // timedelta(seconds=1)))
    return f"{share.retries} of {share.deliveries} deliveries ({share.ratio:.0%}) of this server in the last {over}"


def _share_document(share: Redeliveries) -> dict[str, Any]:
    return {"deliveries": share.deliveries, "retries": share.retries, "over_ms": milliseconds(share.over)}


def _policy(group: Group) -> str:
    in_order = duration_text(group.fifo_retry_interval)
    return (
        f"{group.max_attempts} attempts, retry after {_intervals(group)}, in order after {in_order},"
        f" history {group.history}{f', lite model {group.lite}' if group.lite else ''}"
    )


def _intervals(group: Group) -> str:
    return _intervals_text(group.retry_backoff or group.retry_intervals)


def _intervals_text(given: Iterable[timedelta] | ExponentialBackoff) -> str:
    """As users type them."""
    if isinstance(given, ExponentialBackoff):
        return (
            f"exponential:initial={duration_text(given.initial)},max={duration_text(given.longest)},"
            f"multiplier={given.multiplier:g}"
        )
    return ",".join(map(duration_text, given))


def _backoff_document(backoff: ExponentialBackoff | None) -> dict[str, Any] | None:
    if backoff is None:
        return None
    return {
        "initial_ms": milliseconds(backoff.initial),
        "max_ms": milliseconds(backoff.longest),
        "multiplier": backoff.multiplier,
    }


def _document(group: Group) -> dict[str, Any]:
    return {
        **picked(group, "name namespace max_attempts"),
        "retry_intervals_ms": list(map(milliseconds, group.retry_intervals)),
        "exponential_retry": _backoff_document(group.retry_backoff),
        "fifo_retry_interval_ms": milliseconds(group.fifo_retry_interval),
        **picked(group, "consume_from history mode lite created_at"),
        **pause_document(group),
    }
