"""Which tests judge the mutants of which files."""

from __future__ import annotations

from typing import NamedTuple


class MutatedRoom(NamedTuple):
    """Source files, and the tests that have to notice a change in them; both from the root."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    is_core: bool = False  # its score must be at least SCORE_MIN, and each survivor explained
    options: tuple[str, ...] = ()  # of pytest
    is_typed: bool = True  # what mypy refuses needs no test
    with_postgres: bool = False  # also tests on Postgres judge; one server is started for all of them


SCORE_MIN = 0.9
# For tests of rules, which need no fixtures of the project: importing a mutant takes less than a second.
PURE = ("--noconftest", "-p", "no:popmq", "-p", "proof.mutations.profile")


def _files(room: str, *names: str) -> tuple[str, ...]:
    return tuple(f"popserver/{room}/{name}.py" for name in names)


ROOMS: dict[str, MutatedRoom] = {
    "law": MutatedRoom(
        ("popserver/model/states.py", "popserver/model/retry.py"),
        ("tests/model/test_states.py", "tests/model/test_retry.py", "tests/model/test_law_in_full.py"),
        is_core=True,
        options=PURE,
    ),
    "handles": MutatedRoom(
        ("popserver/model/handles.py",),
        (
            "tests/model/test_receipt_handles.py",
            "tests/model/test_recall_handles.py",
            "tests/model/test_owned_handles.py",
        ),
        is_core=True,
        options=PURE,
    ),
    "fifo": MutatedRoom(("popserver/fifo/order.py",), ("tests/fifo/test_order_rules.py",), is_core=True, options=PURE),
    "progress": MutatedRoom(
        ("popserver/progress/rules.py", "popserver/pulling/rules.py"),
        ("tests/progress/test_rules.py", "tests/pulling/test_rules.py"),
        is_core=True,
        options=PURE,
    ),
    "filters": MutatedRoom(
        (
            "popserver/filters/conditions.py",
            "popserver/filters/grammar.py",
            "popserver/filters/sql.py",
            "popserver/filters/subscription.py",
            "popserver/filters/tags.py",
            "popserver/filters/tokens.py",
            "popserver/filters/values.py",
        ),
        (
            "tests/filters/test_sql.py",
            "tests/filters/test_sql_properties.py",
            "tests/filters/test_sql_refusals.py",
            "tests/filters/test_tags.py",
            "tests/filters/test_subscription.py",
        ),
        is_core=True,
        options=PURE,
    ),
    "filter_memory": MutatedRoom(("popserver/filters/memory.py",), ("tests/filters/test_memory.py",), is_core=True),
    # What changes the store: the tests need a store each, on both databases, so a mutant takes a second and more.
    "message_groups": MutatedRoom(
        ("popserver/delivery/advance.py",),
        (
            "tests/fifo",
            "tests/delivery/test_grid.py",
            "tests/progress/test_pauses.py",
            "tests/progress/test_skips.py",
            "tests/progress/test_resets.py",
            "tests/lite/test_order.py",
        ),
        is_core=True,
        with_postgres=True,
    ),
    "resets": MutatedRoom(
        (
            *_files("progress", "reset", "skip", "clone", "pause", "time_span", "unsubscribe", "flow"),
            "popserver/pulling/offsets.py",
        ),
        (
            "tests/progress",
            "tests/pulling/test_named_offsets.py",
            "tests/pulling/test_offsets.py",
            "tests/pulling/test_recreated_topics.py",
            "tests/pulling/test_refused.py",
            "tests/pulling/test_wire_offsets.py",
            "tests/lite/test_operators.py",
            "tests/rocketmq_admin/test_groups.py",
        ),
        is_core=True,
        with_postgres=True,
    ),
    "settling": MutatedRoom(
        _files("settling", "ack", "change", "expire", "flow", "hold_release", "refusals", "release"),
        (
            "tests/settling",
            "tests/fifo/test_known_failures.py",
            "tests/fifo/test_receipts.py",
            "tests/fifo/test_retry_in_place.py",
            "tests/delivery/test_dead_letter_topic.py",
            "tests/delivery/test_grid.py",
            "tests/delivery/test_history.py",
            "tests/delivery/test_model.py",
            "tests/lite/test_order.py",
            "tests/progress/test_skips.py",
            "tests/pulling/test_send_back.py",
            "tests/sql/test_open_transaction.py",
        ),
        is_core=True,
        with_postgres=True,
    ),
    "deliveries": MutatedRoom(
        _files(
            "delivery",
            "clear",
            "dead_letter_topic",
            "delivered",
            "deliveries",
            "due",
            "history",
            "holds",
            "origins",
            "queues_to_read",
            "ready",
            "retry_topic",
        ),
        (
            "tests/delivery",
            "tests/settling/test_acks.py",
            "tests/settling/test_due.py",
            "tests/settling/test_refusals.py",
            "tests/fifo/test_receipts.py",
            "tests/receiving/test_receive.py",
            "tests/receiving/test_shared_queues.py",
            "tests/receiving/test_filtered_once.py",
            "tests/progress/test_clones.py",
            "tests/progress/test_reset_records.py",
            "tests/progress/test_skip_records.py",
            "tests/progress/test_skips.py",
            "tests/dead_letters/test_neighbours.py",
            "tests/pulling/test_send_back.py",
            "tests/pulling/test_send_back_dead_letters.py",
            "tests/pulling/test_send_back_why.py",
            "tests/access/test_origins.py",
            "tests/lite/test_redrive.py",
        ),
        is_core=True,
        with_postgres=True,
    ),
    "receiving": MutatedRoom(
        _files(
            "receiving",
            "answers",
            "batch",
            "filter_fetch",
            "filter_prefetch",
            "flow",
            "lite",
            "lite_scan",
            "message_groups",
            "receive",
            "redeliveries",
            "scan",
        ),
        (
            "tests/receiving",
            "tests/fifo",
            "tests/lite",
            "tests/delivery/test_model.py",
            "tests/progress/test_pauses.py",
        ),
        is_core=True,
        with_postgres=True,
    ),
    "pulling": MutatedRoom(
        _files("pulling", "batches", "commit", "flow", "parked", "read", "send_back", "send_back_flow"),
        (
            "tests/pulling",
            "tests/bulk/test_pull.py",
            "tests/receiving/test_waits_end.py",
            "tests/progress/test_pauses.py",
        ),
        is_core=True,
        with_postgres=True,
    ),
    "producing": MutatedRoom(
        _files("producing", "checks", "enqueue", "half_messages", "pending", "scheduled", "send", "sent"),
        ("tests/producing", "tests/messages"),
        is_core=True,
        with_postgres=True,
    ),
    "dead_letters": MutatedRoom(
        _files("dead_letters", "flow", "letters", "plans", "purge", "redrive", "rules", "selecting"),
        ("tests/dead_letters", "tests/lite/test_redrive.py", "tests/delivery/test_dead_letter_topic.py"),
        is_core=True,
        with_postgres=True,
    ),
    "engine": MutatedRoom(
        _files("engine", "background", "batch", "timers", "transaction", "undelivered", "upkeep", "wakeups", "writer"),
        ("tests/engine",),
        is_core=True,
        with_postgres=True,
    ),
    "client_engine": MutatedRoom(
        (
            "popclient/_push/assignments.py",
            "popclient/_push/backlog.py",
            "popclient/_push/outcomes.py",
            "popclient/_engine/settle.py",
        ),
        ("tests/client",),
    ),
    "queues": MutatedRoom(
        (
            "popclient/_queues/allocation.py",
            "popclient/_consume/process_queue.py",
            "popclient/_progress/local.py",
            "popclient/_progress/store.py",
        ),
        ("tests/queue_client",),
    ),
    "offset_file": MutatedRoom(
        ("popclient/offset_file.py",),
        ("tests/queue_client/test_offset_file.py", "tests/queue_client/test_offset_stores.py"),
    ),
}
