"""The transport under kombu's own API: what it refuses, and what it does without Celery."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue
from kombu.exceptions import ConnectionError as KombuConnectionError
from kombu.exceptions import OperationalError

import popclient.frameworks.kombu
import popserver
from popclient import Producer
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.server_process import ServerProcess, served
from tests.support.waiting import eventually, soon


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[Connection]:
    with connected(broker.endpoint) as opened:
        yield opened


def connected(endpoint: str, path: str = "", **more: Any) -> Connection:
    return Connection(f"popmq://{endpoint}/{path}", transport_options={"group": "g", "invisible_duration": 1}, **more)


def send(connection: Connection, queue: Queue, *bodies: str, **fields: Any) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key=queue.name, declare=[queue], **fields)


def drained(connection: Connection, queue: Queue, count: int, **options: Any) -> list[Any]:
    """The first `count` messages, acked."""
    found: list[Any] = []

    def receive(body: Any, message: Any) -> None:
        found.append(body)
        if not options.get("no_ack"):
            message.ack()

    with connection.Consumer(queue, callbacks=[receive], **options):
        while len(found) < count:
            connection.drain_events(timeout=20)
    return found


@pytest.mark.parametrize("body", ["text", {"a": [1, "é"]}, b"\x00\xff"])
def test_a_body_comes_as_it_was_sent(connection: Connection, body: Any) -> None:
    queue = Queue("orders")
    send(connection, queue, body)
    assert drained(connection, queue, 1) == [body]


def test_compression_and_pickle(connection: Connection) -> None:
    queue = Queue("orders")
    send(connection, queue, "é" * 1_000, compression="zlib", serializer="pickle")
    assert drained(connection, queue, 1, accept=["pickle"]) == ["é" * 1_000]


def test_no_message_is_a_timeout(connection: Connection) -> None:
    with connection.Consumer(Queue("orders"), callbacks=[lambda *_: None]), pytest.raises(socket.timeout):
        connection.drain_events(timeout=0.1)


def test_without_acks(connection: Connection, broker: EmbeddedBroker) -> None:
    queue = Queue("orders")
    send(connection, queue, "a", "b")
    assert sorted(drained(connection, queue, 2, no_ack=True)) == ["a", "b"]
    with Admin(broker.endpoint) as admin:
        soon(lambda: all(each.inflight == 0 for each in admin.list_lag("g", "orders")))


def test_the_prefetch_count_limits_what_is_held(connection: Connection, broker: EmbeddedBroker) -> None:
    queue, held = Queue("orders"), list[Any]()
    send(connection, queue, *map(str, range(10)))
    connection.default_channel.basic_qos(0, 3, False)
    with Admin(broker.endpoint) as admin, connection.Consumer(queue, on_message=held.append):
        while len(held) < 3:
            connection.drain_events(timeout=20)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.2)
        assert len(admin.list_holds("g")) == 3
        held[0].ack()
        connection.drain_events(timeout=20)
    assert len(held) == 4


def test_a_requeued_message_comes_again_at_once(connection: Connection) -> None:
    queue, seen = Queue("orders"), []

    def receive(_: Any, message: Any) -> None:
        seen.append(message.delivery_info["redelivered"])
        message.ack() if len(seen) == 2 else message.requeue()

    send(connection, queue, "a")
    with connection.Consumer(queue, callbacks=[receive]):
        while len(seen) < 2:
            connection.drain_events(timeout=20)
    assert seen == [False, True]


def test_purge(connection: Connection, broker: EmbeddedBroker) -> None:
    queue = Queue("orders")
    send(connection, queue, "a", "b", "c")
    with Admin(broker.endpoint) as admin:
        admin.create_group("g")
        assert queue(connection.default_channel).purge() == 3
        assert not any(each.ready for each in admin.list_lag("g", "orders"))


def test_a_direct_exchange(connection: Connection) -> None:
    queue = Queue("parcels", Exchange("shop", "direct"), routing_key="parcel")
    with connection.Producer() as producer:
        producer.publish("a", exchange="shop", routing_key="parcel", declare=[queue])
        with pytest.raises(ValueError, match="knows no queue of exchange 'shop' with routing key 'letter'"):
            producer.publish("b", exchange="shop", routing_key="letter")
        with pytest.raises(ValueError, match="knows no queue of exchange 'nowhere'"):
            producer.publish("b", exchange="nowhere", routing_key="letter")
    assert drained(connection, queue, 1) == ["a"]


@pytest.mark.parametrize("kind", ["topic", "fanout"])
def test_other_exchanges_are_refused(connection: Connection, kind: str) -> None:
    queue = Queue("parcels", Exchange("shop", kind), routing_key="parcel.#")
    with pytest.raises(ValueError, match=f"exchange 'shop' of type '{kind}', and PopMQ has only direct ones"):
        queue(connection.default_channel).declare()


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        (Queue("reply", auto_delete=True), "queue 'reply' is for one process"),
        (Queue("reply", exclusive=True), "queue 'reply' is for one process"),
        (Queue("orders", message_ttl=5), "arguments .* x-message-ttl; remove them"),
        (Queue("orders", queue_arguments={"x-dead-letter-exchange": "dead"}), "arguments .* x-dead-letter-exchange"),
    ],
)
def test_queues_that_no_topic_can_be_are_refused(connection: Connection, queue: Queue, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        queue(connection.default_channel).declare()


def test_a_name_that_no_topic_can_have_is_refused(connection: Connection) -> None:
    with pytest.raises(popclient.BadRequest, match=r"topic name 'a\.b' has a character that is not allowed"):
        send(connection, Queue("a.b"), "x")


def test_an_unreachable_server() -> None:
    with pytest.raises(OperationalError), connected("127.0.0.1:1") as closed:
        closed.ensure_connection(max_retries=1, interval_start=0, timeout=1)


def test_a_refusal_reaches_the_loop() -> None:
    """Celery connects again then, and ends with the refusal if it stays."""
    queue = Queue("orders")
    with popserver.embedded(auto_create=False) as broker, Admin(broker.endpoint) as admin:
        admin.create_group("g")
        with connected(broker.endpoint) as connection:
            with pytest.raises(popclient.NotFound, match="topic 'orders' does not exist"):
                connection.Consumer(queue, on_message=print).consume()
            admin.create_topic("orders")
            with connection.Consumer(queue, on_message=print):
                admin.delete_topic("orders")
                with pytest.raises(KombuConnectionError, match="TOPIC_NOT_FOUND"):
                    connection.drain_events(timeout=60)


def test_options_of_the_url(broker: EmbeddedBroker) -> None:
    config = popclient.frameworks.kombu.config_of(
        Connection("popmq://me:s%2Fcret@[::1]:9000/shop", ssl={"ca": "a.pem"})
    )
    assert (config.endpoints, config.namespace) == ("[::1]:9000", "shop")
    assert (config.access_key, config.access_secret) == ("me", "s/cret")
    assert config.tls == popclient.Tls(ca="a.pem")
    queue = Queue("orders")
    with connected(broker.endpoint, "shop") as ours, Producer(broker.endpoint) as producer:
        producer.send("orders", "of nobody")
        send(ours, queue, "of the shop")
        assert drained(ours, queue, 1) == ["of the shop"]


async def test_a_server_that_restarts(tmp_path: Path) -> None:
    """Holds and acks of a connection survive it."""
    async with served(f"sqlite:///{tmp_path}/popmq.db", "--min-invisible", "1s") as server:
        await restarted(server)


async def restarted(server: ServerProcess) -> None:
    queue, held = Queue("orders"), list[Any]()
    with Connection(f"popmq://{server.endpoint}/", transport_options={"group": "g"}) as connection:
        send(connection, queue, "a")
        with connection.Consumer(queue, on_message=held.append):
            while not held:
                connection.drain_events(timeout=20)
            await server.kill()
            held[0].ack()
            await server.start()

            async def is_acked() -> bool:
                with Admin(server.endpoint) as admin, suppress(popclient.PopError):
                    return admin.list_holds("g") == []
                return False

            await eventually(is_acked, "the ack", within_s=60)
            send(connection, queue, "b")
            while len(held) < 2:
                connection.drain_events(timeout=20)
    assert held[1].decode() == "b"
