"""What a server counts where messages do not pass by a plain send, receive or ack."""

from __future__ import annotations

import asyncio

from sqlalchemy import Engine, create_engine, make_url

from popclient import sql
from popserver.broker.broker import Broker
from popserver.engine.meters import Created, Delivered
from popserver.model.errors import AlreadyExists
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.support.running_broker import RunningBroker, until
from tests.support.wire_bulk import ack, pull_bulk, receive_bulk
from tests.support.wire_pull import make_topic
from tests.support.wire_server import WireServer, a_message, advance
from tests.web.conftest import started


def only(broker: Broker, *, grouped: bool) -> Delivered:
    """The counts of the only pair of a group, or of no group, and a topic."""
    [found] = [each for (group_id, _), each in broker.engine.meters.delivered.items() if bool(group_id) is grouped]
    return found


async def test_a_bulk_pull_counts_what_it_sends(either_wire_server: WireServer) -> None:
    wire_server = either_wire_server
    await make_topic(wire_server)
    await wire_server.send(*(a_message(f"m{number}", body=b"x" * 10) for number in range(3)))
    await pull_bulk(wire_server)
    await pull_bulk(wire_server, columns=["message_id"])
    counted = only(wire_server.broker, grouped=False)  # reading creates no group
    assert (counted.held, counted.bytes, counted.holds) == (6, 30, 0)


async def test_a_bulk_receive_counts_messages_bodies_and_acks(timed_wire_server: WireServer) -> None:
    wire_server = timed_wire_server
    await wire_server.send(*(a_message(f"m{number}", body=b"x" * 10) for number in range(3)))
    await receive_bulk(wire_server)
    await advance(wire_server, 30_000)
    await receive_bulk(wire_server, "lease-2")
    await ack(wire_server, "lease-2")
    counted = only(wire_server.broker, grouped=True)
    assert (counted.held, counted.bytes) == (3, 30)
    assert (counted.retries, counted.retry_bytes) == (3, 30)
    assert (counted.holds, counted.requeued, counted.acks) == (6, 3, 3)


async def test_messages_of_users_transactions_count_when_they_enter_their_queue(postgres_url: str) -> None:
    engine = create_engine(make_url(postgres_url).set(drivername="postgresql+psycopg"))
    async with started(postgres_url) as app:
        await app.broker.catalog.create_topic(
            NewTopic(Resource("", "orders"), 1, (MessageType.NORMAL, MessageType.DELAY))
        )
        meters = app.broker.engine.meters
        await asyncio.to_thread(_enqueue, engine)
        await until(lambda: sum(each.sizes.count for each in meters.sent.values()) == 2)
        found = {kind: (sent.sizes.count, sent.sizes.total) for (_, kind), sent in meters.sent.items()}
        assert found == {MessageType.NORMAL: (1, 8), MessageType.DELAY: (1, 5)}
        [timed] = meters.timed.values()
        assert (timed.delays.count, timed.entered) == (1, 1)
    engine.dispose()


def _enqueue(engine: Engine) -> None:
    with engine.begin() as conn:
        sql.enqueue(conn, "orders", "just now")
        sql.enqueue(conn, "orders", "later", delay=0.1)


async def test_creating_counts_also_if_it_is_refused(broker: RunningBroker) -> None:
    created = broker.broker.engine.meters.created
    before = created[Created.TOPIC][True].count
    catalog = broker.broker.catalog
    await catalog.create_topic(NewTopic(Resource("", "new"), 1))
    (refusal,) = await asyncio.gather(catalog.create_topic(NewTopic(Resource("", "new"), 1)), return_exceptions=True)
    assert isinstance(refusal, AlreadyExists)
    assert created[Created.TOPIC][True].count == before + 1
    assert created[Created.TOPIC][False].count == 1
