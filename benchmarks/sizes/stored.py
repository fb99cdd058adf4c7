"""How long calls take with so many messages stored: each alone, one after the other, on one connection."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from sqlalchemy import make_url

from benchmarks.bench import Bench
from benchmarks.case import Figures, Rounds
from benchmarks.machine import cpu_seconds, family_memory_bytes
from benchmarks.meter import quantiles_ms
from benchmarks.raw_load import HEADERS, new_message
from benchmarks.servers import Server
from benchmarks.sizes.bulk_rows import SPAN_MS, fill_rows
from popproto.v1 import admin_pb2 as ours
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import admin_pb2 as rocketmq
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.admin_pb2_grpc import AdminStub as RocketmqAdminStub
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver.database.database import Database
from popserver.engine.transaction import Transaction
from popserver.maintenance import retention

TOPIC = "bench-stock-large"
BODY_BYTES = 16
CALLS, LOOKS, GROUPS = 200, 15, 10
BATCH = 32
REMOVALS = 40  # steps of retention
_TIMEOUT_S = 120


def stored(bench: Bench) -> Rounds:
    """For each number of stored messages: a call's median and 99th percentile in ms, start, memory, retention."""
    found: Rounds = {}
    for name, count in itertools.product(bench.stores, bench.plan.stored_sizes):
        url = bench.new_url(name, "stored")
        fill_rows(url, TOPIC, count, BODY_BYTES, bench.say)
        # Before the calls, because messages that are held are not removed.
        database_s = database_clock(bench, name)
        figures = {"stored": count, "disk_bytes": disk_bytes(url)} | removal(url, _half_ms(), REMOVALS, database_s)
        with bench.serving(name, url) as server:
            found[f"{name}, {count:,} stored"] = [figures | figures_of(server, database_s)]
    return found


def database_clock(bench: Bench, name: str) -> Callable[[], float]:
    """Tells the CPU seconds of the database's own processes. SQLite has none: its time is the server's."""
    return bench.postgres_cpu_s if name == "postgres" else lambda: 0.0


def figures_of(server: Server, database_s: Callable[[], float]) -> Figures:
    """Of a server that has just started on the filled store."""
    figures: Figures = {"start_s": server.ready_s}
    with grpc.insecure_channel(server.endpoint) as channel:
        for name, (times, call) in Calls(channel).all().items():
            taken, before_s, database_before_s = [], cpu_seconds(server.pid), database_s()
            for _ in range(times):
                begun = time.perf_counter()
                call()
                taken.append(time.perf_counter() - begun)
            used = {"server_ms": cpu_seconds(server.pid) - before_s, "database_ms": database_s() - database_before_s}
            figures[name] = quantiles_ms(taken) | {kind: used_s * 1e3 / times for kind, used_s in used.items()}
    return figures | {"server_bytes": family_memory_bytes(server.pid)}


def removal(database_url: str, cutoff_ms: int, steps: int, database_s: Callable[[], float]) -> Figures:
    """Steps of retention: µs for each removed message, elapsed and of CPU time; and ms for a step.

    A step holds up the writer.
    """
    database, taken, removed = Database(database_url), [], 0
    try:
        with database.connect_writer() as conn:
            before_s, database_before_s = time.process_time(), database_s()
            for _ in range(steps):
                begun = time.perf_counter()
                database.begin(conn)
                tx = Transaction.at(conn, time.time_ns() // 1_000_000)
                (done,) = retention.retain(tx, [retention.Retain(cutoff_ms)])
                conn.exec_driver_sql("COMMIT")
                taken.append(time.perf_counter() - begun)
                assert isinstance(done, retention.Retained), done
                removed += done.removed
            used_s, used_database_s = time.process_time() - before_s, database_s() - database_before_s
    finally:
        database.close()
    spent = {"removal_us": sum(taken), "removal_server_us": used_s, "removal_database_us": used_database_s}
    return {kind: spent_s * 1e6 / max(removed, 1) for kind, spent_s in spent.items()} | {
        "removal_step": quantiles_ms(taken)
    }


def disk_bytes(database_url: str) -> int:
    """The bytes of a database that is at rest."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        return Path(str(url.database)).stat().st_size
    database = Database(database_url)
    try:
        with database.read() as conn:
            return int(conn.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
    finally:
        database.close()


def _half_ms() -> int:
    return time.time_ns() // 1_000_000 - SPAN_MS // 2


class Calls:
    """The calls by their names. Raises AssertionError if one is refused."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._messaging, self._own = MessagingServiceStub(channel), AdminStub(channel)
        self._theirs = RocketmqAdminStub(channel)
        self._topic, self._group = pb.Resource(name=TOPIC), pb.Resource(name="bench-large")
        self._ids, self._groups = itertools.count(time.time_ns()), itertools.count()
        self._peeked = self._ask(self._own.PeekMessages, ours.PeekMessagesRequest(topic=self._topic))

    def all(self) -> dict[str, tuple[int, Callable[[], Any]]]:
        """How often each is measured. Those of operators less often, because some read much."""
        topic, group, own = self._topic, self._group, self._own
        stored_id = self._peeked().messages[0].system_properties.message_id
        seek = rocketmq.ResetGroupOffsetRequest(group=group, topic=topic)
        seek.reset_timestamp.seconds = int(time.time()) - 24 * 3_600
        looks = {
            "status": self._ask(own.GetStatus, ours.GetStatusRequest()),
            "topic": self._ask(own.GetTopic, ours.GetTopicRequest(topic=topic)),
            "lag": self._ask(own.ListLag, ours.ListLagRequest(group=group)),
            "peek": self._peeked,
            "newest": self._ask(own.FindMessages, ours.FindMessagesRequest(topic=topic)),
            "by_id": self._ask(
                self._theirs.QueryMessage, rocketmq.ListMessageRequest(topic=topic, message_id=stored_id)
            ),
            "absent_key": self._ask(own.FindMessages, ours.FindMessagesRequest(topic=topic, key="absent")),
            "seek": self._ask(self._theirs.ResetGroupOffset, seek),
        }
        return {
            "send": (CALLS, self._send),
            "first_receive": (GROUPS, lambda: self._receive(pb.Resource(name=f"bench-new-{next(self._groups)}"))),
            "receive_and_ack": (CALLS, self._receive_and_ack),
            **{name: (LOOKS, look) for name, look in looks.items()},
        }

    def _ask(self, method: Any, request: Any) -> Callable[[], Any]:
        def call() -> Any:
            answer = method(request, metadata=HEADERS, timeout=_TIMEOUT_S)
            assert answer.status.code == pb.OK, answer.status
            return answer

        return call

    def _send(self) -> None:
        sent = new_message(TOPIC, f"01{next(self._ids):032X}", bytes(BODY_BYTES))
        self._ask(self._messaging.SendMessage, wire.SendMessageRequest(messages=[sent]))()

    def _receive(self, group: pb.Resource) -> list[pb.Message]:
        request = wire.ReceiveMessageRequest(
            group=group,
            message_queue=pb.MessageQueue(topic=self._topic),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=BATCH,
        )
        request.invisible_duration.seconds = 600
        request.long_polling_timeout.seconds = 1
        frames = self._messaging.ReceiveMessage(request, metadata=HEADERS, timeout=_TIMEOUT_S)
        received = [each.message for each in frames if each.HasField("message")]
        assert len(received) == BATCH, received
        return received

    def _receive_and_ack(self) -> None:
        handles = [each.system_properties for each in self._receive(self._group)]
        entries = [
            wire.AckMessageEntry(message_id=each.message_id, receipt_handle=each.receipt_handle) for each in handles
        ]
        request = wire.AckMessageRequest(group=self._group, topic=self._topic, entries=entries)
        self._ask(self._messaging.AckMessage, request)()
