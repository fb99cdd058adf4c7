"""Alerts of a real server, told to a real receiver: once, in order, over failures, restarts and several servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

import popserver
from popclient import Producer, SimpleConsumer
from popclient.admin import Admin
from popserver.alerts import flow, told, watch
from popserver.alerts.rules import BEGIN_MS, END_MS, Alert, AlertKind
from popserver.alerts.told import RecordAlerts, record
from popserver.alerts.watch import LOOK_MS, AlertWatch
from popserver.alerts.webhook import Receiver, Sender, Webhook
from popserver.config import GivenConfig
from popserver.engine.clock import ManualClock
from popserver.model.retry import HOUR_MS, SECOND_MS
from tests.alerts.receiver import WebhookServer, a_webhook
from tests.support.builders import GROUP, TOPIC
from tests.support.open_store import OpenStore
from tests.support.running_broker import RunningBroker, running_broker, until
from tests.support.several_brokers import SeveralBrokers, silence
from tests.support.waiting import soon

DEAD = ("dead_letters", "billing")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of a busy machine takes long, and the tests' clock stands still meanwhile."""
    monkeypatch.setattr(watch, "PAUSE_FACTOR", 0)
    monkeypatch.setattr(flow, "REMEMBERED_FACTOR", 0)


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with a_webhook() as found:
        yield found


class Watching:
    """A broker whose alerts are told, and a message that died in it."""

    def __init__(self, broker: RunningBroker, server: WebhookServer, timeout_s: float = 5.0) -> None:
        engine = broker.broker.engine
        webhook = Webhook(Receiver(server.url), Sender("mq", "1", ""), timeout_s)
        self.broker = broker
        self.watch = AlertWatch(
            broker.broker.alerts, webhook, engine.reader, engine.writer, engine.clock, broker.broker.servers
        )
        self.watch.start()

    async def settle(self) -> None:
        for _ in range(2):
            await self.broker.broker.settle()
            await self.watch.idle()

    async def advance(self, by_ms: int) -> None:
        await self.broker.clock.advance(by_ms, self.settle)

    async def let_one_die(self) -> None:
        await self.broker.send(1)
        (held,) = await self.broker.receive(1)
        await self.broker.broker.forward_to_dead_letter_queue(GROUP, TOPIC, held.receipt_handle)


@asynccontextmanager
async def watching(url: str, server: WebhookServer, clock: ManualClock | None = None) -> AsyncIterator[Watching]:
    async with running_broker(url, clock=clock) as broker:
        made = Watching(broker, server)
        try:
            yield made
        finally:
            await made.watch.close()


def of_dead_letters(server: WebhookServer) -> list[str]:
    return [event for event, *about in server.accepted if tuple(about) == DEAD]


async def test_a_begin_and_an_end(database_url: str, server: WebhookServer) -> None:
    async with watching(database_url, server) as it:
        await it.advance(BEGIN_MS + LOOK_MS)
        assert server.got == [], "all is well"
        await it.let_one_die()
        await it.advance(BEGIN_MS + 2 * LOOK_MS)
        assert of_dead_letters(server) == ["begin"]
        await it.advance(HOUR_MS)
        assert of_dead_letters(server) == ["begin"]
        await it.advance(END_MS + 2 * LOOK_MS)
        assert of_dead_letters(server) == ["begin", "end"]
        assert await it.broker.query("SELECT * FROM alert") == []
        begin, end = (each.event for each in server.got)
        assert begin["alert"]["id"] == end["alert"]["id"]
        assert "1 dead letter of billing" in begin["alert"]["sentence"]


async def test_a_receiver_that_fails_is_asked_later_and_logged_once(database_url: str, server: WebhookServer) -> None:
    server.answers = [500, 500, 302, 503, 204]
    async with watching(database_url, server) as it:
        await it.let_one_die()
        with capture_logs() as logs:
            await it.advance(BEGIN_MS + 2 * SECOND_MS)
            assert len(server.got) in (2, 3), "it pauses for 1 s, then for 2 s"
            untold = await it.broker.broker.engine.reader.read(told.untold)
            assert untold.events == 1
            await it.advance(40 * SECOND_MS)
        assert of_dead_letters(server) == ["begin"] * 5, "the same event, until it is accepted"
        assert len({each.event["id"] for each in server.got}) == 1
        lines = [each["event"] for each in logs]
        assert sum("does not accept alerts" in each for each in lines) == 1
        assert sum("accepts alerts again" in each for each in lines) == 1
        assert (await it.broker.broker.engine.reader.read(told.untold)).events == 0


async def test_events_wait_over_a_restart(sqlite_url: str, server: WebhookServer, clock: ManualClock) -> None:
    server.answers = [500]
    async with watching(sqlite_url, server, clock) as it:
        await it.let_one_die()
        await it.advance(BEGIN_MS + LOOK_MS)
        assert of_dead_letters(server)
    server.answers, server.got = [204], []
    async with watching(sqlite_url, server, clock) as it:
        await it.advance(BEGIN_MS + LOOK_MS)
        assert of_dead_letters(server) == ["begin"]
        await it.advance(HOUR_MS + END_MS + 2 * LOOK_MS)
        assert of_dead_letters(server) == ["begin", "end"]


async def test_begun_and_over_while_the_receiver_was_away(database_url: str, server: WebhookServer) -> None:
    server.answers = [500]
    async with watching(database_url, server) as it:
        await it.let_one_die()
        await it.advance(HOUR_MS + END_MS + 3 * LOOK_MS)
        server.answers, server.got = [204], []
        await it.advance(6 * 60 * SECOND_MS)
        assert of_dead_letters(server) == ["begin", "end"]


async def test_one_of_two_servers_tells_and_another_goes_on(servers: SeveralBrokers, server: WebhookServer) -> None:
    await servers.advance(15 * SECOND_MS)
    both = [Watching(each, server) for each in (servers.a, servers.b)]
    async with AsyncExitStack() as closing:
        for each in both:
            closing.push_async_callback(each.watch.close)
        await both[0].let_one_die()
        await servers.clock.advance(BEGIN_MS + 2 * LOOK_MS, lambda: settle(both))
        assert of_dead_letters(server) == ["begin"]
        (leader,) = [each for each in both if each.broker.broker.servers.leads]
        await leader.watch.close()
        silence(leader.broker)
        (other,) = [each for each in both if each is not leader]
        await servers.clock.advance(30 * SECOND_MS, other.settle)
        assert other.broker.broker.servers.leads
        await servers.clock.advance(HOUR_MS + END_MS, other.settle)
        await servers.clock.advance(2 * LOOK_MS, other.settle)
        assert of_dead_letters(server) == ["begin", "end"]


async def settle(both: list[Watching]) -> None:
    for each in both:
        await each.settle()


def test_two_servers_open_an_alert_once(store: OpenStore) -> None:
    alert = Alert(AlertKind.WARNING, "", "", "The disk is full.", "Free some.")
    for _ in range(2):
        assert store.one(record, RecordAlerts([alert], [])) == 0
    assert store.one_value("SELECT COUNT(*) FROM alert") == 1
    store.one(record, RecordAlerts([], [alert.key]))
    store.one(record, RecordAlerts([alert], []))
    assert store.one_value("SELECT COUNT(*) FROM alert") == 2, "it has begun again"


def test_stored_alerts_have_a_limit(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "ALERTS_MAX", 3)
    many = [Alert(AlertKind.DEAD_LETTERS, "", f"g{number}", "", "") for number in range(5)]
    assert store.one(record, RecordAlerts(many, [])) == 2
    assert store.one(record, RecordAlerts(many, [])) == 2
    assert store.one_value("SELECT COUNT(*) FROM alert") == 3


def test_an_admin_sees_that_the_webhook_fails(server: WebhookServer) -> None:
    server.answers = [500]
    with popserver.embedded(manual_clock=True, alert_webhook=server.url, alert_secret="s3cret") as broker:
        with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "billing", "orders") as consumer:
            producer.send("orders", "card 4111", keys="order-77")
            consumer.forward_to_dead_letter_queue(consumer.receive()[0], "card 4111 was refused")
        with Admin(broker.endpoint) as admin:
            assert (admin.alerts().has_webhook, admin.alerts().webhook_failure) == (True, "")

            def has_failed() -> bool:
                broker.clock.advance("15s")
                return bool(admin.alerts().webhook_failure)

            soon(has_failed)
            found = admin.alerts()
    assert found.untold == 1
    assert f"127.0.0.1:{server.port} answered 500" in found.webhook_failure
    (alert,) = found.alerts
    assert (alert.kind, alert.subject, alert.page) == ("dead_letters", "billing", ("dead-letters", "billing"))
    assert "card 4111 was refused" in alert.detail
    sent = b"".join(each.body for each in server.got)
    assert b"billing" in sent
    assert b"4111" not in sent and b"order-77" not in sent
    assert "x-popmq-signature" in server.got[0].headers


async def test_the_overview_and_the_webhook_agree(database_url: str, server: WebhookServer) -> None:
    async with watching(database_url, server) as it:
        await it.let_one_die()
        await it.advance(BEGIN_MS + LOOK_MS)
        await until(lambda: bool(server.got))
        (found,) = await it.broker.broker.alerts.find()
        assert (found.kind, found.subject, found.sentence) == (*DEAD, server.got[0].event["alert"]["sentence"])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"alert_webhook": "hooks.example"}, "write the address as http://HOST:PORT/PATH"),
        ({"alert_webhook": "ftp://hooks.example/"}, "write the address as http://HOST:PORT/PATH"),
        ({"alert_webhook": "https://user:pw@hooks.example/"}, "leave user, password and # out"),
        ({"alert_webhook": "https://hooks.example/a b"}, "encode other characters with %"),
        ({"alert_webhook": "https://hooks.example:99999/"}, "Port out of range"),
        ({"console_url": "mq.example"}, "write the address as http://HOST:PORT/PATH"),
        ({"alert_secret": "s"}, "there is none; set alert_webhook"),
        ({"max_chart_series": 20_001}, "less than or equal to 20000"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        GivenConfig(**given)
