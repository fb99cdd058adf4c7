"""/metrics of a whole server: each name, and each number against what happened."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

import popclient
from popclient import Message, aio
from popclient.admin import Admin, MirrorReport
from popserver.app import App
from popserver.clients.clients import Client
from popserver.engine.meters import Meters
from popserver.filters.subscription import ClientKind, Role, Subscription
from popserver.metrics import exporter as exporters
from popserver.metrics import flow
from popserver.metrics.families import Families, Identity
from popserver.metrics.flow import pause_s
from popserver.metrics.names import COMMON, METRICS, Kind, Scope
from popserver.metrics.server_numbers import Names, add_delivered, add_sent
from popserver.metrics.store import store_facts
from popserver.model.errors import StoreUnavailable
from popserver.model.names import Resource
from popserver.model.states import State
from popserver.model.topic import MessageType, NewTopic
from tests.support.failing_database import hanging_database
from tests.support.http_client import get
from tests.web.conftest import started

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scraped(app: App) -> Samples:
    """All samples, without the common labels."""
    page = await get(app.http_endpoint, "/metrics")
    assert page.status == 200
    found: Samples = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in COMMON}
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """The sum of the samples that have these labels; None if there is none."""
    wanted = set(labels.items())
    found = [number for (each, its), number in samples.items() if each == name and wanted <= its]
    return sum(found) if found else None


async def test_lite_topics_have_no_series_of_their_own(database_url: str) -> None:
    async with started(database_url) as app:
        with Admin(app.endpoint) as admin:
            await asyncio.to_thread(admin.create_topic, "sessions", accept_message_types=["LITE"])

        def use(first: int, count: int) -> None:
            names = [f"user-{number}" for number in range(first, first + count)]
            with popclient.Producer(app.endpoint) as producer:
                producer.send_many(Message("sessions", "x", lite_topic=name) for name in names).raise_for_failures()
            with popclient.LiteSimpleConsumer(app.endpoint, "agents", "sessions", names) as consumer:
                assert consumer.receive(1)

        await asyncio.to_thread(use, 0, 1)
        before = await scraped(app)
        await asyncio.to_thread(use, 1, 200)
        after = await scraped(app)
        pair = {"topic": "sessions", "consumer_group": "agents"}
        assert value(after, "rocketmq_consumer_ready_messages", **pair) == 199
        assert {name for name, _ in after} == {name for name, _ in before}
        assert not [labels for _, labels in after if any(text.startswith("user-") for _, text in labels)]
        assert len(after) < len(before) + 20, "some buckets more, whatever the number of lite topics"


MIRROR = MirrorReport("nightly", "old:8081", "new:8081", "orders", None, "one", "ship", lag=3)


@asynccontextmanager
async def busy(database_url: str, **options: Any) -> AsyncIterator[App]:
    """A server with a producer, and a consumer of group billing. Of six messages of topic orders the group acked one,
    gave one up, and holds two; one more is delayed, one is a half message, and two transactions are decided. A mirror
    has reported."""
    async with started(database_url, **options) as app:
        with Admin(app.endpoint) as admin:
            await asyncio.to_thread(
                admin.create_topic, "orders", queue_count=2, accept_message_types=["NORMAL", "DELAY", "TRANSACTION"]
            )
            await asyncio.to_thread(admin.report_mirror, MIRROR)
        producer = popclient.Producer(app.endpoint)
        consumer = popclient.SimpleConsumer(app.endpoint, group="billing", topics="orders")
        await asyncio.to_thread(producer.start)
        await asyncio.to_thread(_work, producer, consumer)
        yield app
        await asyncio.to_thread(producer.close)
        await asyncio.to_thread(consumer.close)


def _work(producer: popclient.Producer, consumer: popclient.SimpleConsumer) -> None:
    producer.send_many([Message("orders", b"x" * 100) for _ in range(6)])
    consumer.start()
    acked, dead, *_ = consumer.receive(4, invisible_duration=3_600)
    consumer.ack(acked)
    consumer.forward_to_dead_letter_queue(dead)
    producer.send(Message("orders", b"later", delay=3_600))
    with producer.transaction(Message("orders", b"committed")):
        pass
    with suppress(ZeroDivisionError), producer.transaction(Message("orders", b"rolled back")):
        raise ZeroDivisionError
    producer.transaction(Message("orders", b"undecided")).__enter__()


async def test_numbers_are_those_of_the_store(database_url: str) -> None:
    async with busy(database_url) as app:
        samples = await scraped(app)
    pair = {"topic": "orders", "consumer_group": "billing"}
    assert value(samples, "rocketmq_messages_in_total", topic="orders", message_type="normal") == 6
    assert value(samples, "rocketmq_messages_in_total", topic="orders", message_type="delay") == 1
    assert value(samples, "rocketmq_messages_in_total", topic="orders", message_type="transaction") == 3
    assert value(samples, "rocketmq_throughput_in_total", topic="orders", message_type="normal") == 600
    assert value(samples, "rocketmq_message_size_bucket", message_type="normal", le="1024.0") == 6
    assert value(samples, "rocketmq_messages_out_total", **pair, is_retry="false") == 4
    assert value(samples, "rocketmq_messages_out_total", **pair, is_retry="true") is None
    assert value(samples, "rocketmq_throughput_out_total", **pair) == 400
    assert value(samples, "popmq_acked_messages_total", **pair) == 1
    assert value(samples, "popmq_delivery_latency_count", consumer_group="billing") == 4
    assert value(samples, "rocketmq_consumer_ready_messages", **pair) == 3  # two, and the committed one
    assert value(samples, "rocketmq_consumer_inflight_messages", **pair) == 2
    assert value(samples, "rocketmq_consumer_lag_messages", **pair) == 5
    assert value(samples, "popmq_waiting_retry_messages", **pair) == 0
    assert value(samples, "popmq_dead_letters", **pair) == 1
    states = {state: value(samples, "popmq_group_messages", consumer_group="billing", state=state) for state in State}
    assert states == {"READY": 3, "INFLIGHT": 2, "WAITING_RETRY": 0, "DLQ": 1} | dict.fromkeys(
        set(State) - {"READY", "INFLIGHT", "WAITING_RETRY", "DLQ"}
    )
    assert value(samples, "rocketmq_send_to_dlq_messages_total", consumer_group="billing") == 1
    assert value(samples, "popmq_stored_messages", topic="orders") == 7
    assert value(samples, "rocketmq_pop_revive_in_message_total", **pair, revive_message_type="CK") == 4
    assert value(samples, "rocketmq_pop_revive_in_message_total", **pair, revive_message_type="ACK") == 1
    assert value(samples, "rocketmq_pop_revive_retry_messages_total", **pair) == 0
    assert value(samples, "rocketmq_timing_messages", topic="orders") == 1
    assert value(samples, "rocketmq_timer_message_snapshot") == 1
    assert value(samples, "rocketmq_timer_message_snapshot", timer_bound_s="3600") == 1
    assert value(samples, "rocketmq_timer_enqueue_total", topic="orders") == 1
    assert value(samples, "rocketmq_timer_dequeue_total", topic="orders") == 0
    assert value(samples, "rocketmq_delay_message_latency_bucket", topic="orders", le="600.0") == 0
    assert value(samples, "rocketmq_delay_message_latency_bucket", topic="orders", le="3600.0") == 1
    assert value(samples, "rocketmq_finish_message_latency_bucket", topic="orders", le="5.0") == 1
    assert value(samples, "rocketmq_topic_create_execution_time_count", invocation_status="success") == 1
    assert value(samples, "rocketmq_topic_create_execution_time_count", invocation_status="failure") == 0
    assert value(samples, "rocketmq_consumer_group_create_execution_time_count", invocation_status="success") == 1
    assert value(samples, "rocketmq_processor_watermark", processor="reader") == 0
    assert value(samples, "rocketmq_half_messages", topic="orders") == 1
    assert value(samples, "rocketmq_commit_messages_total", topic="orders") == 1
    assert value(samples, "rocketmq_rollback_messages_total", topic="orders") == 1
    assert (value(samples, "rocketmq_consumer_queueing_latency", **pair) or 0) > 0
    assert value(samples, "rocketmq_consumer_group_number") == 1
    assert (value(samples, "rocketmq_storage_size") or 0) > 0
    assert value(samples, "popmq_ready") == 1
    assert value(samples, "popmq_metrics_left_out") == 0
    assert value(samples, "rocketmq_producer_connections", language="python") == 1
    assert value(samples, "rocketmq_consumer_connections", consumer_group="billing", consume_mode="simple") == 1
    sends = {"request_code": "SendMessage", "response_code": "OK", "result": "success"}
    assert value(samples, "rocketmq_rpc_latency_count", **sends) == 5
    assert value(samples, "rocketmq_rpc_latency_count", request_code="AckMessage") == 1
    commits = value(samples, "popmq_commit_seconds_count") or 0
    assert commits > 5
    assert value(samples, "popmq_transaction_seconds_count") == commits
    assert (value(samples, "popmq_transaction_requests_sum") or 0) >= commits


async def test_each_metric_of_the_table_is_exported_with_its_labels(database_url: str) -> None:
    async with busy(database_url) as app:
        page = await get(app.http_endpoint, "/metrics")
    found = {family.name: family for family in text_string_to_metric_families(page.text)}
    unknown = SPACE if database_url.startswith("postgresql") else ()
    ours_here = [each for each in METRICS if each.scope is not Scope.CLIENTS and each.name not in unknown]
    for metric in ours_here:
        family = found[metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name]
        assert family.type == metric.kind
        assert family.documentation == metric.help
        for sample in family.samples:
            assert {*sample.labels} - {"le"} == {*COMMON, *metric.labels}, metric.name
            assert sample.labels["node_id"] == app.endpoint
    ours = {name for name in found if name.startswith(("rocketmq_", "popmq_"))}
    assert ours == {each.name.removesuffix("_total") for each in ours_here}
    assert "process_cpu_seconds" in found


async def test_names_may_end_with_their_units(sqlite_url: str) -> None:
    async with busy(sqlite_url, metric_unit_suffix=True) as app:
        samples = await scraped(app)
    assert (value(samples, "rocketmq_storage_size_bytes") or 0) > 0
    assert (value(samples, "rocketmq_rpc_latency_milliseconds_count", request_code="SendMessage") or 0) > 0
    assert value(samples, "rocketmq_storage_flush_behind_bytes") == 0
    assert value(samples, "rocketmq_storage_size") is None


async def test_what_is_not_known_is_absent(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnavailable("the database does not answer; check that it runs, and repeat")

    async with started(database_url) as app:
        monkeypatch.setattr("popserver.metrics.flow.store_facts", refuse)
        with capture_logs() as said:
            samples = await scraped(app)
        assert value(samples, "rocketmq_topic_number") is None
        assert value(samples, "popmq_store_metrics_age_seconds") is None
        assert value(samples, "popmq_parked_polls") == 0
        assert [each["event"] for each in said].count("no numbers of the store for metrics") == 1
        monkeypatch.undo()
        monkeypatch.setattr(exporters, "REMEMBERED_S", -1.0)
        assert app.monitoring.exporter is not None
        monkeypatch.setattr(app.monitoring.exporter._watch, "_next_s", 0.0)
        assert value(await scraped(app), "rocketmq_topic_number") == 0


SPACE = ("popmq_database_file_bytes", "popmq_wal_bytes", "popmq_disk_free_bytes", "popmq_disk_bytes")


async def test_the_space_of_a_file_is_that_of_the_disk(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(sqlite_url) as app:
        await asyncio.to_thread(_send, app.endpoint, 50)
        assert app.database is not None and app.database.file is not None
        file = app.database.file
        size, wal, free, disk = (value(samples, name) for samples in [await scraped(app)] for name in SPACE)
        assert (size, wal) == (file.stat().st_size, file.with_name(f"{file.name}-wal").stat().st_size)
        assert wal and wal > 50_000, "fifty messages"
        assert free and disk and 0 < free < disk == shutil.disk_usage(file.parent).total
        monkeypatch.setattr(exporters, "REMEMBERED_S", -1.0)
        with hanging_database(monkeypatch):
            samples = await scraped(app)
        assert [value(samples, name) for name in SPACE] == [None] * 4


async def test_the_disk_of_a_postgres_is_not_known(postgres_url: str) -> None:
    async with started(postgres_url) as app:
        samples = await scraped(app)
    assert [value(samples, name) for name in SPACE] == [None] * 4
    assert (value(samples, "rocketmq_storage_size", storage_type="postgres") or 0) > 1 << 20


def _send(endpoint: str, count: int) -> None:
    with popclient.Producer(endpoint) as producer:
        producer.send_many([Message("orders", b"x" * 1_000) for _ in range(count)])


async def test_a_scrape_does_not_wait_for_a_slow_read(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, real = threading.Event(), store_facts

    def slow(*given: Any) -> Any:
        assert let_go.wait(30)
        return real(*given)

    async with started(database_url) as app:
        assert value(await scraped(app), "rocketmq_topic_number") == 0
        monkeypatch.setattr("popserver.metrics.flow.store_facts", slow)
        monkeypatch.setattr(flow, "WAIT_S", 0.05)
        before = await scraped(app)
        assert value(before, "rocketmq_topic_number") == 0  # of the read before
        monkeypatch.setattr(flow, "OLD_S", -1.0)
        assert value(await scraped(app), "rocketmq_topic_number") is None
        let_go.set()


async def test_too_many_series_are_left_out_and_told(sqlite_url: str) -> None:
    async with started(sqlite_url, max_metric_series=500) as app:
        await asyncio.to_thread(_fill, app.endpoint)
        with capture_logs() as said:
            samples = await scraped(app)
    left = {kind: value(samples, "popmq_metrics_left_out", kind=kind) for kind in ("topics", "pairs")}
    shown = {labels for name, labels in samples if name == "rocketmq_consumer_ready_messages"}
    assert left["pairs"] == 60 - len(shown)
    assert 0 < len(shown) < 60
    assert any(("topic", "busy") in labels for labels in shown)  # pairs with messages come first
    assert value(samples, "popmq_group_messages", consumer_group="billing", state="READY") == 1
    ours = [name for name, _ in samples if name.startswith(("rocketmq_", "popmq_"))]
    assert len(ours) <= 500 + 3
    [line] = [each for each in said if each.get("option") == "--max-metric-series"]
    assert line["pairs"] == left["pairs"]


def _fill(endpoint: str) -> None:
    with Admin(endpoint) as admin, popclient.Producer(endpoint) as producer:
        admin.create_group("billing")
        for name in [*(f"t{number:02}" for number in range(59)), "busy"]:
            admin.create_topic(name, queue_count=1)
            with popclient.SimpleConsumer(endpoint, group="billing", topics=name) as consumer:
                consumer.receive(1, await_duration=0)
        producer.send("busy", "one")


async def test_consumers_of_many_groups_take_a_tenth_of_the_series(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(sqlite_url, max_metric_series=500) as app:
        await app.broker.catalog.create_topic(NewTopic(Resource("", "orders"), 1))
        monkeypatch.setattr(app.broker.sessions.clients, "here", _many_clients)
        samples = await scraped(app)
        assert (
            len([name for name, _ in samples if name.endswith(("_consumer_connections", "_producer_connections"))])
            == 50
        )
        assert value(samples, "rocketmq_consumer_connections") == 2_003
        assert value(samples, "rocketmq_consumer_connections", consumer_group="g1999") == 4  # the largest are shown
        assert value(samples, "rocketmq_consumer_connections", consumer_group="other", consume_mode="other") == 1_952
        assert value(samples, "rocketmq_producer_connections", language="other", version="other") == 100
        assert value(samples, "popmq_stored_messages", topic="orders") == 0


def _many_clients() -> list[Client]:
    """The consumers of 2,000 groups, of which the last has four, and producers of 100 versions."""
    roles = [
        Role(Resource("", f"g{number}"), ClientKind.SIMPLE, Subscription(()))
        for number in [*range(2_000), *[1_999] * 3]
    ]
    consumers = [Client(f"c{at}", 0, language="PYTHON", version="1.0", role=role) for at, role in enumerate(roles)]
    return [*consumers, *(Client(f"p{at}", 0, language="PYTHON", version=f"1.{at}") for at in range(100))]


async def test_counts_of_a_deleted_topic_end(sqlite_url: str) -> None:
    async with busy(sqlite_url) as app:
        with Admin(app.endpoint) as admin:
            await asyncio.to_thread(admin.delete_topic, "orders")
        samples = await scraped(app)
        assert value(samples, "rocketmq_messages_in_total", topic="orders") is None
        assert value(samples, "popmq_acked_messages_total", topic="orders") is None
        assert not app.broker.engine.meters.sent
        assert not app.broker.engine.meters.delivered


@pytest.mark.parametrize("kind", ["sent", "ended", "timed", "delivered"])
def test_two_threads_forget_the_counts_of_one_deleted_topic(kind: str) -> None:
    meters = Meters()
    counts = getattr(meters, kind)
    _ = counts[{"sent": (1, MessageType.NORMAL), "delivered": (1, 1)}.get(kind, 1)]

    class NamesOfTwo(Names):
        """Another thread removes the counts at the same moment."""

        def has_lost(self, topic_id: int, group_id: int = 0) -> bool:
            counts.clear()
            return super().has_lost(topic_id, group_id)

    add = add_delivered if kind == "delivered" else add_sent
    names = NamesOfTwo({2: Resource("", "new")}, {})
    assert add(Families(Identity("cluster", "broker", "here"), 500), meters, names) == 0
    assert not counts


@pytest.mark.parametrize(
    ("took_s", "waits_s"), [(0.0, 1.0), (0.003, 1.0), (0.02, 6.0), (0.1, 30.0), (1.0, 30.0), (2.0, 60.0)]
)
def test_reads_that_take_longer_are_rarer(took_s: float, waits_s: float) -> None:
    assert pause_s(took_s) == pytest.approx(waits_s)


async def test_counts_of_a_topic_that_the_last_read_did_not_see_are_kept(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(sqlite_url) as app:
        await scraped(app)
        monkeypatch.setattr(flow, "pause_s", lambda _took_s: 3_600.0)
        await scraped(app)  # the last read for an hour
        async with aio.Producer(app.endpoint) as producer:
            await producer.send("orders", "one")
        assert value(await scraped(app), "rocketmq_messages_in_total") is None
        assert app.monitoring.exporter is not None
        monkeypatch.setattr(app.monitoring.exporter._watch, "_next_s", 0.0)
        assert value(await scraped(app), "rocketmq_messages_in_total", topic="orders") == 1


async def test_both_forms_of_the_text_and_both_sizes(sqlite_url: str) -> None:
    async with started(sqlite_url) as app:
        plain = await get(app.http_endpoint, "/metrics")
        packed = await get(app.http_endpoint, "/metrics", accept_encoding="gzip")
        openmetrics = await get(app.http_endpoint, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body).startswith(b"# HELP")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")


async def test_scrapes_of_one_moment_share_an_answer(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "REMEMBERED_S", 3_600.0)
    reads = 0
    real = store_facts

    def counting(*given: Any) -> Any:
        nonlocal reads
        reads += 1
        return real(*given)

    monkeypatch.setattr("popserver.metrics.flow.store_facts", counting)
    async with started(sqlite_url) as app:
        pages = await asyncio.gather(*(get(app.http_endpoint, "/metrics") for _ in range(10)))
    assert len({page.body for page in pages}) == 1
    assert reads == 1


async def test_whatever_callers_accept_there_are_two_forms(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "REMEMBERED_S", 3_600.0)
    asked = [
        *(f"application/openmetrics-text;version=1.0.{patch}" for patch in range(20)),
        *(f"text/plain;version=1.{minor}.0;escaping=dots" for minor in range(5)),
        *("text/plain;version=abc", "application/openmetrics-text;version=", "*/*;q=0.1", ";;,=,;version"),
        "application/openmetrics-text;version=1.0.0;escaping=values;q=0.5,text/plain;version=0.0.4;q=0.2",
    ]
    async with started(sqlite_url) as app:
        pages = [await get(app.http_endpoint, "/metrics", accept=each) for each in asked]
    assert {page.status for page in pages} == {200}
    assert len({page.headers["content-type"] for page in pages}) == 2
    assert len({page.body for page in pages}) == 2  # each form was written once


async def test_a_text_is_written_once_at_a_time_and_its_age_counts_from_its_end(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "REMEMBERED_S", 1.0)
    begun, let_go, seconds, written = threading.Event(), threading.Event(), 0.0, 0
    monkeypatch.setattr(exporters, "now_s", lambda: seconds)

    def encode(_: Any) -> bytes:
        nonlocal written
        written += 1
        begun.set()
        assert let_go.wait(30)
        return b""

    monkeypatch.setattr(exporters, "choose_encoder", lambda _: (encode, "text/plain"))
    async with started(sqlite_url) as app:
        exporter = app.monitoring.exporter
        assert exporter is not None
        asking = [asyncio.create_task(exporter.text("", compress=False)) for _ in range(5)]
        assert await asyncio.to_thread(begun.wait, 30)
        seconds = 5.0
        asking += [asyncio.create_task(exporter.text("", compress=False)) for _ in range(5)]
        await asyncio.sleep(0)
        let_go.set()
        await asyncio.gather(*asking)
        await exporter.text("", compress=False)
        assert written == 1
        seconds = 6.5
        await exporter.text("", compress=False)
        assert written == 2


async def test_callers_that_are_refused_count(sqlite_url: str) -> None:
    secret = {"auth": True, "admin_access_key": "root", "admin_secret": "a-long-secret-of-the-admin"}
    async with started(sqlite_url, **secret) as app:
        with Admin(app.endpoint) as admin, pytest.raises(popclient.PopError):
            await asyncio.to_thread(admin.status)
        assert (value(await scraped(app), "popmq_rejected_callers_total") or 0) >= 1


def test_what_clients_say_has_no_end_of_labels() -> None:
    clients = [Client(f"c{number}", 0, language="PYTHON", version=f"1.{number}") for number in range(1_000)]
    clients += [Client("odd", 0, language="PYTHON", version='x"}\n' * 100)]
    labels = {(each.language, each.version) for each in exporters.connected(clients)}
    assert len(labels) == exporters.VERSIONS_MAX + 1
    assert ("other", "other") in labels
