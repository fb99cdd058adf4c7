"""Routes and assignments lead clients to every server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.clients.routes import RouteMethods
from popserver.cluster.sql import HEARTBEAT_MS, SERVER_LAPSE_MS
from popserver.model.names import Resource
from popserver.transport import convert
from popserver.transport.call import Call
from popserver.transport.calls import Caller
from popserver.transport.listen import split_address
from tests.support.running_broker import RunningBroker, until
from tests.support.several_brokers import SeveralBrokers, silence

A, B, C = "10.0.0.1:8081", "10.0.0.2:8081", "[fd00::3]:9000"
ALIAS = "mq.example:443"
CALLER = Caller(cast("Call", SimpleNamespace(headers={"x-mq-client-id": "c1"})))


def endpoints(*addresses: str) -> pb.Endpoints:
    listed = [convert.endpoints(*split_address(each)) for each in addresses]
    return pb.Endpoints(scheme=listed[0].scheme, addresses=[each.addresses[0] for each in listed])


def written(broker: pb.Broker) -> tuple[str, ...]:
    return tuple(f"{each.host}:{each.port}" for each in broker.endpoints.addresses)


def routing(broker: RunningBroker) -> RouteMethods:
    own = endpoints("127.0.0.1:1")
    parts = broker.broker
    return RouteMethods(parts.catalog, parts.sessions.clients, parts.servers, parts.sessions.group_members, own)


async def route(broker: RunningBroker, *dialled: str, topic: str = "orders") -> list[pb.MessageQueue]:
    request = wire.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints(*dialled))
    return list((await routing(broker).query_route(request, CALLER)).message_queues)


async def assigned(broker: RunningBroker, *dialled: str) -> list[pb.MessageQueue]:
    request = wire.QueryAssignmentRequest(
        topic=pb.Resource(name="orders"), group=pb.Resource(name="billing"), endpoints=endpoints(*dialled)
    )
    answer = await routing(broker).query_assignment(request, CALLER)
    return [each.message_queue for each in answer.assignments]


@pytest.fixture
async def listed(servers: SeveralBrokers) -> SeveralBrokers:
    """The two are at A and B, and know it of each other; the topic has four queues."""
    await servers.a.topic(queues=4)
    await servers.a.broker.servers.list_at(A)
    await servers.b.broker.servers.list_at(B)
    await until(lambda: all(len(each.broker.servers.reachable()) == 2 for each in (servers.a, servers.b)))
    return servers


async def test_queues_are_spread_over_the_servers(listed: SeveralBrokers) -> None:
    queues = await route(listed.a, A)
    assert [(each.id, each.broker.name) for each in queues] == [
        (0, f"popmq-{A}"),
        (1, f"popmq-{B}"),
        (2, f"popmq-{A}"),
        (3, f"popmq-{B}"),
    ]
    assert {each.broker.id for each in queues} == {0}
    assert {written(each.broker) for each in queues} == {("10.0.0.1:8081",), ("10.0.0.2:8081",)}


async def test_both_servers_say_the_same(listed: SeveralBrokers) -> None:
    assert await route(listed.a, A) == await route(listed.b, B)


async def test_every_server_has_a_queue(listed: SeveralBrokers) -> None:
    await listed.a.topic(Resource("", "narrow"))
    queues = await route(listed.a, A, topic="narrow")
    assert [(each.id, each.broker.name) for each in queues] == [(0, f"popmq-{A}"), (0, f"popmq-{B}")]


async def test_what_was_dialled_stands_for_who_was_dialled(listed: SeveralBrokers) -> None:
    assert {written(each.broker) for each in await route(listed.b, ALIAS)} == {(ALIAS,), ("10.0.0.1:8081",)}


async def test_who_asks_one_server_for_anothers_address_gets_both(listed: SeveralBrokers) -> None:
    """Some clients name the address they began with, whomever they ask."""
    assert {written(each.broker) for each in await route(listed.b, A)} == {("10.0.0.1:8081",), ("10.0.0.2:8081",)}


async def test_the_address_of_one_that_is_gone_is_given_to_nobody(listed: SeveralBrokers) -> None:
    silence(listed.a)
    await listed.advance(SERVER_LAPSE_MS + HEARTBEAT_MS)
    assert {written(each.broker) for each in await route(listed.b, A)} == {("10.0.0.2:8081",)}
    assert {each.broker.name for each in await route(listed.b, B)} == {"popmq"}


async def test_who_names_several_addresses_knows_the_servers(listed: SeveralBrokers) -> None:
    queues = await route(listed.a, A, B)
    assert {written(each.broker) for each in queues} == {("10.0.0.1:8081", "10.0.0.2:8081")}
    assert {each.broker.name for each in queues} == {"popmq"}


async def test_a_push_consumer_polls_every_server(listed: SeveralBrokers) -> None:
    queues = await assigned(listed.a, A)
    assert [(each.id, each.broker.name) for each in queues] == [(-1, f"popmq-{A}"), (-1, f"popmq-{B}")]
    assert queues == await assigned(listed.b, B)


async def test_a_server_that_names_no_address_is_reached_by_who_dials_it(servers: SeveralBrokers) -> None:
    await servers.b.broker.servers.list_at(B)
    await servers.settle()
    assert {written(each.broker) for each in await route(servers.b, B)} == {("10.0.0.2:8081",)}
    await until(lambda: len(servers.a.broker.servers.reachable()) == 2)
    assert {written(each.broker) for each in await route(servers.a, ALIAS)} == {(ALIAS,), ("10.0.0.2:8081",)}


async def test_a_server_that_came_back_at_its_address_is_one(listed: SeveralBrokers) -> None:
    silence(listed.a)
    again = await listed.one_more()
    await again.broker.servers.list_at(A)
    await until(lambda: again.broker.servers.server_id in {each.server_id for each in listed.b.broker.servers.others})
    assert len(listed.b.broker.servers.reachable()) == 2
    assert len({each.broker.name for each in await route(again, A)}) == 2


async def test_workers_of_one_address_take_over_no_clients_of_each_other(servers: SeveralBrokers) -> None:
    for each in (servers.a, servers.b):
        await each.broker.servers.list_at(A)
    await until(lambda: [each.address for each in servers.a.broker.servers.others] == [A])
    assert not servers.a.broker.servers.can_hand_over


async def test_servers_that_name_no_address_are_different_ones(servers: SeveralBrokers) -> None:
    """A load balancer has them."""
    assert servers.a.broker.servers.can_hand_over


@pytest.mark.parametrize("address", [A, C, "mq.example:1", "localhost:65535"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    host, port = split_address(address)
    assert address == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


@pytest.mark.parametrize("wrong", ["", "mq", "mq:", ":8081", "mq:0", "mq:65536", "fd00::3:80", "a b:80", "http://a:80"])
def test_what_is_no_address_is_said(wrong: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not HOST:PORT with a port from 1 to 65535; write it like mq-1\.example:8081"
    ):
        split_address(wrong)


async def test_one_that_leaves_is_named_by_none_and_serves_on(listed: SeveralBrokers) -> None:
    """Also after its next heartbeats. Without another server it has only its own address to give."""
    assert listed.a.broker.servers.can_hand_over
    assert listed.b.broker.servers.can_hand_over
    await listed.a.broker.servers.leave()
    await until(lambda: len(listed.b.broker.servers.reachable()) == 1)
    assert not listed.b.broker.servers.can_hand_over, "nobody stays but this one"
    for _ in range(2):
        assert {written(each.broker) for each in await route(listed.b, B)} == {("10.0.0.2:8081",)}
        assert {written(each.broker) for each in await route(listed.a, A)} == {("10.0.0.2:8081",)}
        await listed.advance(2 * HEARTBEAT_MS)
    await listed.a.send()
    assert len(await listed.a.receive()) == 1
    silence(listed.b)
    await listed.advance(SERVER_LAPSE_MS + HEARTBEAT_MS)
    assert {written(each.broker) for each in await route(listed.a, ALIAS)} == {(ALIAS,)}
