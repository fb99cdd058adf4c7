"""Every metric that a server exports: one table. docs/metrics.md is made from it, and dashboards are checked by it.

Names and labels that begin with `rocketmq_` are those of RocketMQ 5. Ours begin with `popmq_`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What Prometheus calls the type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Whose number it is."""

    SERVER = "server"  # of this server: sum over servers
    CLIENTS = "clients"  # of the clients that send theirs to this server: sum over servers
    STORE = "store"  # of the database: each server of a database exports the same number


class Metric(NamedTuple):
    """One metric. `labels` come after the common ones."""

    name: str
    kind: Kind
    scope: Scope
    labels: tuple[str, ...]
    help: str
    unit: str = ""  # with --metric-unit-suffix the name ends with it, as with exporters that append units

    @property
    def name_with_unit(self) -> str:
        """The name, with its unit if it does not end with that already."""
        return f"{self.name}_{self.unit}" if self.unit and not self.name.endswith(f"_{self.unit}") else self.name


# Labels of every metric.
COMMON = ("cluster", "node_type", "node_id")

_TOPIC, _GROUP, _TOPIC_AND_GROUP = ("topic",), ("consumer_group",), ("topic", "consumer_group")
_SENT = ("topic", "message_type", "is_system")
_PAIR = ("topic", "consumer_group", "is_retry", "is_system")
_STORAGE = ("storage_type", "storage_medium")
_MS = "milliseconds"
_SERVER, _STORE, _CLIENTS = Scope.SERVER, Scope.STORE, Scope.CLIENTS
_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: tuple[Metric, ...] = (
    # Messages in and out.
    Metric("rocketmq_messages_in_total", _COUNTER, _SERVER, _SENT, "messages that producers sent and that are stored"),
    Metric("rocketmq_throughput_in_total", _COUNTER, _SERVER, _SENT, "bytes of their bodies"),
    Metric("rocketmq_message_size", _HISTOGRAM, _SERVER, ("topic", "message_type"), "bytes of a body"),
    Metric("rocketmq_messages_out_total", _COUNTER, _SERVER, _PAIR, "messages that consumers received or pulled"),
    Metric("rocketmq_throughput_out_total", _COUNTER, _SERVER, _PAIR, "bytes of their bodies"),
    Metric("popmq_acked_messages_total", _COUNTER, _SERVER, _TOPIC_AND_GROUP, "messages that consumers acked"),
    Metric(
        "popmq_delivery_latency",
        _HISTOGRAM,
        _SERVER,
        _GROUP,
        "ms from the moment a message was stored to its first delivery",
        _MS,
    ),
    Metric(
        "rocketmq_send_to_dlq_messages_total",
        _COUNTER,
        _STORE,
        _TOPIC_AND_GROUP,
        "messages that became dead letters; the topic is that of the dead letters",
    ),
    # What waits.
    Metric("rocketmq_consumer_ready_messages", _GAUGE, _STORE, _PAIR, "messages that the group may receive now"),
    Metric("rocketmq_consumer_inflight_messages", _GAUGE, _STORE, _PAIR, "messages that consumers hold"),
    Metric("rocketmq_consumer_lag_messages", _GAUGE, _STORE, _PAIR, "READY, INFLIGHT and WAITING_RETRY together"),
    Metric(
        "rocketmq_consumer_queueing_latency",
        _GAUGE,
        _STORE,
        _PAIR,
        "age in ms of the oldest message never received",
        _MS,
    ),
    Metric("rocketmq_consumer_lag_latency", _GAUGE, _STORE, _PAIR, "the same, under the second name of RocketMQ", _MS),
    Metric("popmq_waiting_retry_messages", _GAUGE, _STORE, _PAIR, "messages that wait for their next attempt"),
    Metric("popmq_dead_letters", _GAUGE, _STORE, _PAIR, "dead letters that were not sent back or removed"),
    Metric("popmq_group_messages", _GAUGE, _STORE, ("consumer_group", "state"), "messages of all topics in a state"),
    Metric("popmq_locked_message_groups", _GAUGE, _STORE, _GROUP, "message groups that wait for their first message"),
    Metric(
        "popmq_stuck_rows",
        _GAUGE,
        _STORE,
        ("invariant",),
        "rows of the store because of which messages may never be delivered; see `popmq repair`",
    ),
    Metric("popmq_stored_messages", _GAUGE, _STORE, _TOPIC, "messages that are stored, consumed ones too"),
    Metric(
        "rocketmq_pop_revive_in_message_total",
        _COUNTER,
        _SERVER,
        ("topic", "consumer_group", "revive_message_type", "put_status"),
        "CK: deliveries that consumers have to ack; ACK: acks",
    ),
    Metric(
        "rocketmq_pop_revive_retry_messages_total",
        _COUNTER,
        _SERVER,
        ("topic", "consumer_group", "put_status"),
        "messages that are READY again, because a hold or a retry interval ended",
    ),
    Metric("rocketmq_pop_revive_lag", _GAUGE, _STORE, (), "holds and retry intervals that are over and not yet ended"),
    Metric("rocketmq_pop_revive_latency", _GAUGE, _STORE, (), "ms by which the oldest of them is late", _MS),
    # Delayed messages and transactions.
    Metric("rocketmq_timing_messages", _GAUGE, _STORE, _TOPIC, "delayed messages that are not due yet"),
    Metric(
        "rocketmq_timer_message_snapshot",
        _GAUGE,
        _STORE,
        ("timer_bound_s",),
        "those that are due within this many seconds, but not within the next smaller bound",
    ),
    Metric("rocketmq_timer_enqueue_total", _COUNTER, _SERVER, _TOPIC, "delayed messages that were stored"),
    Metric("rocketmq_timer_dequeue_total", _COUNTER, _SERVER, _TOPIC, "delayed messages that entered their queues"),
    Metric(
        "rocketmq_delay_message_latency",
        _HISTOGRAM,
        _SERVER,
        _TOPIC,
        "seconds of a delay, as its producer asked for it",
        "seconds",
    ),
    Metric("rocketmq_timer_enqueue_lag", _GAUGE, _STORE, (), "0: a delayed message is waited for from its commit on"),
    Metric("rocketmq_timer_enqueue_latency", _GAUGE, _STORE, (), "0 ms, for the same reason", _MS),
    Metric("rocketmq_timer_dequeue_lag", _GAUGE, _STORE, (), "delayed messages that are due and not yet delivered"),
    Metric("rocketmq_timer_dequeue_latency", _GAUGE, _STORE, (), "ms by which the oldest of them is late", _MS),
    Metric("rocketmq_half_messages", _GAUGE, _STORE, _TOPIC, "half messages without a decision"),
    Metric("rocketmq_commit_messages_total", _COUNTER, _SERVER, _TOPIC, "half messages that were committed"),
    Metric("rocketmq_rollback_messages_total", _COUNTER, _SERVER, _TOPIC, "half messages that were rolled back"),
    Metric(
        "rocketmq_finish_message_latency",
        _HISTOGRAM,
        _SERVER,
        _TOPIC,
        "seconds from the moment a half message was stored to its commit",
        "seconds",
    ),
    Metric(
        "popmq_discarded_transactions_total",
        _COUNTER,
        _SERVER,
        (),
        "half messages without a decision after all checks",
    ),
    # The store.
    Metric("rocketmq_topic_number", _GAUGE, _STORE, (), "topics"),
    Metric("rocketmq_consumer_group_number", _GAUGE, _STORE, (), "consumer groups"),
    Metric("rocketmq_storage_size", _GAUGE, _STORE, _STORAGE, "bytes of the database, WAL included", "bytes"),
    Metric(
        "rocketmq_storage_message_reserve_time", _GAUGE, _STORE, _STORAGE, "age in ms of the oldest stored message", _MS
    ),
    Metric("rocketmq_storage_flush_behind_bytes", _GAUGE, _STORE, _STORAGE, "0: an answer comes after its commit"),
    Metric(
        "rocketmq_storage_dispatch_behind_bytes",
        _GAUGE,
        _STORE,
        _STORAGE,
        "0: a message can be received from its commit on",
    ),
    # Mirrors.
    Metric("popmq_mirror_handed_total", _COUNTER, _STORE, ("mirror",), "messages that a mirror has handed over"),
    Metric("popmq_mirror_lag_messages", _GAUGE, _STORE, ("mirror",), "messages that it has not handed over yet"),
    Metric(
        "popmq_mirror_last_report_age_seconds",
        _GAUGE,
        _STORE,
        ("mirror",),
        "seconds since the last report of a mirror that has not ended",
    ),
    # The space of a SQLite file; Postgres alone knows its disk.
    Metric("popmq_database_file_bytes", _GAUGE, _SERVER, (), "bytes of the SQLite file"),
    Metric("popmq_wal_bytes", _GAUGE, _SERVER, (), "bytes of its WAL"),
    Metric("popmq_disk_free_bytes", _GAUGE, _SERVER, (), "bytes that the server may still use of their disk"),
    Metric("popmq_disk_bytes", _GAUGE, _SERVER, (), "bytes of their disk"),
    # The server.
    Metric(
        "rocketmq_rpc_latency",
        _HISTOGRAM,
        _SERVER,
        ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        "ms of a gRPC call, with its wait if it is a long poll",
        _MS,
    ),
    Metric(
        "rocketmq_topic_create_execution_time",
        _HISTOGRAM,
        _SERVER,
        ("invocation_status",),
        "ms to create a topic, by a command or on first use",
        _MS,
    ),
    Metric(
        "rocketmq_consumer_group_create_execution_time",
        _HISTOGRAM,
        _SERVER,
        ("invocation_status",),
        "ms to create a group, by a command or on first use",
        _MS,
    ),
    Metric("popmq_transaction_seconds", _HISTOGRAM, _SERVER, (), "seconds of a transaction of the writer"),
    Metric("popmq_transaction_requests", _HISTOGRAM, _SERVER, (), "requests in a transaction of the writer"),
    Metric("popmq_commit_seconds", _HISTOGRAM, _SERVER, (), "seconds of a COMMIT, which writes to the disk"),
    Metric("rocketmq_processor_watermark", _GAUGE, _SERVER, ("processor",), "requests that wait for the processor"),
    Metric(
        "rocketmq_producer_connections",
        _GAUGE,
        _SERVER,
        ("language", "version", "protocol_type"),
        "connected clients that do not consume",
    ),
    Metric(
        "rocketmq_consumer_connections",
        _GAUGE,
        _SERVER,
        ("language", "version", "protocol_type", "consumer_group", "consume_mode", "is_system"),
        "connected consumers",
    ),
    Metric("popmq_parked_polls", _GAUGE, _SERVER, (), "receives and pulls that wait for messages"),
    Metric("popmq_event_loop_tasks", _GAUGE, _SERVER, (), "asyncio tasks that have not ended"),
    Metric("popmq_budget_used", _GAUGE, _SERVER, ("budget", "unit"), "what callers use of a limit"),
    Metric("popmq_budget_limit", _GAUGE, _SERVER, ("budget", "unit"), "the limit"),
    Metric("popmq_budget_refused_total", _COUNTER, _SERVER, ("budget",), "callers refused because of the limit"),
    Metric("popmq_rejected_callers_total", _COUNTER, _SERVER, (), "calls whose signature was refused"),
    Metric("popmq_ready", _GAUGE, _SERVER, (), "1 if /readyz answers 200, otherwise 0"),
    Metric("popmq_build_info", _GAUGE, _SERVER, ("version", "database", "durability"), "always 1"),
    Metric("rocketmq_broker_permission", _GAUGE, _SERVER, (), "6: this server takes reads and writes"),
    Metric("rocketmq_proxy_up", _GAUGE, _SERVER, ("proxy_mode",), "always 1"),
    # What clients measure, if the server asks them.
    Metric(
        "rocketmq_send_cost_time",
        _HISTOGRAM,
        _CLIENTS,
        ("topic", "invocation_status"),
        "ms of a send, measured by producers",
        _MS,
    ),
    Metric(
        "rocketmq_delivery_latency",
        _HISTOGRAM,
        _CLIENTS,
        _TOPIC_AND_GROUP,
        "ms from the server's delivery to the arrival at a consumer",
        _MS,
    ),
    Metric(
        "rocketmq_await_time",
        _HISTOGRAM,
        _CLIENTS,
        _TOPIC_AND_GROUP,
        "ms from the arrival at a push consumer to its listener",
        _MS,
    ),
    Metric(
        "rocketmq_process_time",
        _HISTOGRAM,
        _CLIENTS,
        ("topic", "consumer_group", "invocation_status"),
        "ms of a listener of a push consumer",
        _MS,
    ),
    Metric(
        "rocketmq_consumer_cached_messages",
        _GAUGE,
        _CLIENTS,
        _TOPIC_AND_GROUP,
        "messages in the caches of push consumers",
    ),
    Metric("rocketmq_consumer_cached_bytes", _GAUGE, _CLIENTS, _TOPIC_AND_GROUP, "bytes of their bodies", "bytes"),
    # The metrics themselves.
    Metric(
        "popmq_store_metrics_age_seconds",
        _GAUGE,
        _SERVER,
        (),
        "how old the numbers of the store are that were exported",
    ),
    Metric("popmq_store_metrics_query_seconds", _GAUGE, _SERVER, (), "seconds of the queries for them"),
    Metric(
        "popmq_metrics_left_out",
        _GAUGE,
        _SERVER,
        ("kind",),
        "topics, pairs of topic and group, mirrors, or series of clients, that are not exported",
    ),
    Metric(
        "popmq_client_metrics_left_out_total",
        _COUNTER,
        _CLIENTS,
        ("reason",),
        "points that clients sent: of an unknown topic or group, of a forbidden one, or with wrong numbers",
    ),
)

BY_NAME = {each.name: each for each in METRICS}
