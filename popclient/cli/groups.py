"""`popmq group …`, `popmq status`, which shows the same table of lags, and `popmq health`."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from popclient.admin import (
    Admin,
    Budget,
    Consumer,
    ExponentialBackoff,
    Group,
    GroupLag,
    Redeliveries,
    Status,
    Storage,
    StoreRepair,
)
from popclient.cli import OK, REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, counted
from popclient.cli.output import fields, hint_lines, milliseconds, picked, say, size, table, utc, written
from popclient.cli.progress import pause_document, pause_lines, paused_parts


def create(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        made = admin.create_group(
            arguments.name,
            max_attempts=arguments.max_attempts or 0,
            retry_intervals=arguments.retry,
            fifo_retry_interval=arguments.fifo_retry,
            consume_from=(arguments.consume_from or "").upper(),
            history=arguments.history or "",
            lite=(arguments.lite or "").upper(),
        )
    return say(arguments, _document(made), [f"made consumer group {made.name}: {_policy(made)}"])


def list_all(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        groups = admin.list_groups()
    columns = ["group", "namespace", "attempts", "consume from", "history", "mode", "lite", "paused", "created"]
    rows = [
        (
            each.name,
            each.namespace,
            each.max_attempts,
            each.consume_from,
            each.history,
            each.mode or "unused",
            each.lite,
            paused_parts(each),
            each.created_at,
        )
        for each in groups
    ]
    return say(arguments, [_document(each) for each in groups], table(columns, rows, "no consumer groups"))


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
            ("retry after", _ladder(group)),
            ("retry in order", written(group.fifo_retry_interval)),
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
    }
    consumers = _consumer_table(group.consumers)
    return say(arguments, document, [*lines, *hint_lines(group.hints), "", *consumers, "", *lag_table(group.lag)])


def update(arguments: Namespace) -> int:
    given = arguments.max_attempts, arguments.retry or None, arguments.fifo_retry, arguments.history, arguments.lite
    if all(each is None for each in given):
        raise UsageError(
            "nothing to change; give --max-attempts N (deliveries of a message before it is a dead letter),"
            " --retry DURATIONS|exponential (a push consumer's pauses), --fifo-retry DURATION (a message group's"
            " pause), --history none|errors|all (which steps are remembered) or --lite shared|exclusive|wildcard (of a"
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
    return say(arguments, _document(changed), [f"consumer group {changed.name}: {_policy(changed)}"])


def delete(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        lag = admin.get_group(arguments.name).lag
        dead = counted(sum(each.dead_letters for each in lag), "dead letter")
        if not confirm(
            arguments,
            f"deletes consumer group {arguments.name} with its progress in {counted(len(lag), 'topic')} and {dead}",
        ):
            return REFUSED
        admin.delete_group(arguments.name)
    return say(arguments, {"name": arguments.name, "deleted": True}, [f"deleted consumer group {arguments.name}"])


def lag_table(lag: Sequence[GroupLag]) -> list[str]:
    columns = ["group", "topic", "ready", "inflight", "waiting retry", "dead letters", "oldest ready"]
    rows = [
        (each.group, each.topic, each.ready, each.inflight, each.waiting_retry, each.dead_letters, each.oldest_ready)
        for each in lag
    ]
    return table(columns, rows, "no group has met a topic")


def lag_documents(lag: Sequence[GroupLag]) -> list[dict[str, Any]]:
    return [
        {
            **picked(each, "group topic ready inflight waiting_retry dead_letters"),
            "oldest_ready_at": utc(each.oldest_ready),
        }
        for each in lag
    ]


def _consumer_table(consumers: Sequence[Consumer]) -> list[str]:
    columns = ["consumer", "kind", "connected", "last seen", "topic", "by", "expression"]
    rows = [
        (each.client_id, each.kind, "yes" if each.connected else "no", each.last_seen, *wanted)
        for each in consumers
        for wanted in _wants(each)
    ]
    return table(columns, rows, "no consumer works for it with this server now")


def _wants(consumer: Consumer) -> list[tuple[str, str, str]]:
    wants = [(each.topic, each.kind, each.expression) for each in consumer.subscriptions]
    more = consumer.more_subscriptions
    return [*wants, *([(f"{more} more", "", "")] if more else [])] or [("", "", "")]


def _consumer_document(consumer: Consumer) -> dict[str, Any]:
    return {
        **picked(consumer, "client_id kind connected"),
        "last_seen_at": utc(consumer.last_seen),
        "subscriptions": [
            {"topic": each.topic, "kind": each.kind, "expression": each.expression} for each in consumer.subscriptions
        ],
        "more_subscriptions": consumer.more_subscriptions,
    }


def _share(share: Redeliveries) -> str:
    if not share.deliveries:
        return ""
    over = written(timedelta(seconds=share.over // timedelta(seconds=1)))
    return f"{share.retries} of {share.deliveries} deliveries ({share.ratio:.0%}) of this server in the last {over}"


def _share_document(share: Redeliveries) -> dict[str, Any]:
    return {"deliveries": share.deliveries, "retries": share.retries, "over_ms": milliseconds(share.over)}


def _policy(group: Group) -> str:
    in_order = written(group.fifo_retry_interval)
    return (
        f"{group.max_attempts} attempts, retry after {_ladder(group)}, in order after {in_order},"
        f" history {group.history}{f', lite model {group.lite}' if group.lite else ''}"
    )


def _ladder(group: Group) -> str:
    if (backoff := group.retry_backoff) is not None:
        return (
            f"exponential:initial={written(backoff.initial)},max={written(backoff.longest)},"
            f"multiplier={backoff.multiplier:g}"
        )
    return ",".join(map(written, group.retry_intervals))


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


def show_server(arguments: Namespace) -> int:
    config = client_config(arguments)
    with Admin(config) as admin:
        status = admin.status()
    up = timedelta(seconds=(status.now - status.started_at) // timedelta(seconds=1))
    lines = fields(
        [
            ("server", f"popmq {status.version} at {config.endpoints}, up {written(up)}"),
            ("store", f"{status.store} ({status.durability}, schema {status.schema_revision})"),
            ("space", _space(status.storage)),
            ("time", status.now),
            ("topics", status.topics),
            ("groups", status.groups),
            ("messages", status.messages),
            ("dead letters", status.dead_letters),
            ("overdue", written(status.oldest_overdue) if status.oldest_overdue else ""),
            ("clients", f"{status.connected_clients} connected, {status.parked_polls} polls parked"),
        ]
    )
    document = {
        "endpoint": config.endpoints,
        **picked(status, "version store durability"),
        "schema": status.schema_revision,
        **picked(status, "started_at now topics groups messages dead_letters connected_clients parked_polls"),
        "oldest_overdue_ms": milliseconds(status.oldest_overdue),
        "hints": list(status.hints),
        "budgets": [asdict(each) for each in status.budgets],
        "storage": asdict(status.storage or Storage()),
        "servers": [{**asdict(each), "last_seen": utc(each.last_seen)} for each in status.servers],
        "lag": lag_documents(status.lag),
    }
    shown = [*lines, *hint_lines(status.hints), *_server_lines(status), *_budget_lines(status.budgets)]
    return say(arguments, document, [*shown, "", *lag_table(status.lag)])


def show_health(arguments: Namespace) -> int:
    """Exit code 1 if the server should not get requests."""
    with Admin(client_config(arguments)) as admin:
        health = admin.health()
    rows = [("yes" if each.ok else "no", each.name, each.reason) for each in health.checks]
    answer = "ready" if health.ready else "not ready" if health.live else "not live"
    say(arguments, asdict(health), [answer, "", *table(["ok", "check", "reason"], rows), *hint_lines(health.warnings)])
    return OK if health.ready else REFUSED


def repair_store(arguments: Namespace) -> int:
    """Without --yes it changes nothing. Exit code 1 if something is left to repair."""
    with Admin(client_config(arguments)) as admin:
        done = admin.repair(dry_run=not arguments.yes)
    rows = [
        (
            "yes" if each.repaired else "no",
            each.invariant,
            each.group,
            each.topic,
            each.queue_id,
            each.queue_offset,
            each.message_group,
            each.repair,
        )
        for each in done.rows
    ]
    columns = ["repaired", "what is wrong", "group", "topic", "queue", "offset", "message group", "the repair"]
    say(arguments, asdict(done), [_repair_sentence(done, arguments), *(["", *table(columns, rows)] if rows else [])])
    return OK if done.repaired == done.found else REFUSED


def _repair_sentence(done: StoreRepair, arguments: Namespace) -> str:
    if not done.found:
        return "nothing keeps messages from being delivered"
    if not arguments.yes:
        return f"{done.found} rows may keep messages from being delivered; repair them with --yes"
    left = done.found - done.repaired
    if not left:
        return f"{done.repaired} rows are repaired"
    return (
        f"{done.repaired} of {done.found} rows are repaired; the others were sound by then, or another transaction has"
        " locked them: repeat the command"
    )


def confirm_clock(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        sentence = admin.confirm_clock()
    return say(arguments, {"sentence": sentence}, [sentence])


def _space(storage: Storage | None) -> str:
    """What is known of it."""
    if storage is None or storage.database_bytes is None:
        return ""
    parts = [f"database {size(storage.database_bytes)}"]
    if storage.wal_bytes is not None:
        parts.append(f"WAL {size(storage.wal_bytes)}")
    if storage.disk_free_bytes is not None and storage.disk_bytes is not None:
        parts.append(f"{size(storage.disk_free_bytes)} of {size(storage.disk_bytes)} are free on its disk")
    return ", ".join(parts)


def _server_lines(status: Status) -> list[str]:
    """The servers, if there are several."""
    uses = Counter(each.address for each in status.servers)
    rows = [
        # Workers of one `popmq serve` have one address.
        (
            each.address if each.address and uses[each.address] == 1 else f"{each.address} {each.server_id}".strip(),
            "running" if each.running else "silent",
            written(status.now - each.last_seen),
        )
        for each in status.servers
    ]
    return ["", *table(["server", "state", "last seen ago"], rows)] if len(rows) > 1 else []


def _budget_lines(budgets: Sequence[Budget]) -> list[str]:
    """Those that were or may soon be exhausted; --json has all."""
    rows = [
        (each.name, each.unit, each.used, each.peak, each.limit, each.refused, f"--{each.option.replace('_', '-')}")
        for each in budgets
        if each.refused or 2 * each.peak > each.limit
    ]
    return ["", *table(["budget", "unit", "used", "peak", "limit", "refused", "option"], rows)] if rows else []
