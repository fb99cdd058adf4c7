"""QueryRoute and QueryAssignment: what a client needs to know where to send and to poll."""

from __future__ import annotations

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.group import NewGroup
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message

DIALLED = [
    pb.Endpoints(
        scheme=pb.IPv4, addresses=[pb.Address(host="10.0.0.1", port=80), pb.Address(host="10.0.0.2", port=81)]
    ),
    pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="mq.example", port=443)]),
    pb.Endpoints(scheme=pb.IPv6, addresses=[pb.Address(host="::1", port=8081)]),
]


async def route(
    wire_server: WireServer, topic: pb.Resource = TOPIC, endpoints: pb.Endpoints | None = None
) -> list[pb.MessageQueue]:
    answer = await wire_server.call("QueryRoute", wire.QueryRouteRequest(topic=topic, endpoints=endpoints))
    assert answer.status.code == pb.OK, answer.status.message
    return list(answer.message_queues)


async def test_a_route_names_every_queue(wire_server: WireServer) -> None:
    queues = await route(wire_server)
    assert [queue.id for queue in queues] == list(range(8))
    for queue in queues:
        assert queue.topic == TOPIC
        assert queue.permission == pb.READ_WRITE
        assert (queue.broker.id, queue.broker.name) == (0, "popmq")
        # All that every official client can read (protocol 1.2).
        assert list(queue.accept_message_types) == [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]


@pytest.mark.row("N3")
async def test_a_route_creates_no_topic(either_wire_server: WireServer) -> None:
    """The first message does, so that one of a type that such a topic does not take is refused and creates none."""
    wire_server = either_wire_server
    assert len(await route(wire_server)) == 8
    assert await wire_server.broker.catalog.known_topic(Resource("", TOPIC.name)) is None
    refused = await wire_server.send(a_message("m1", lite_topic="a"))
    assert refused.status.code == pb.TOPIC_NOT_FOUND
    assert "popmq topic create flights --type LITE" in refused.status.message
    assert (await wire_server.send(a_message("m1"))).status.code == pb.OK
    assert [queue.id for queue in await route(wire_server)] == list(range(8))


@pytest.mark.parametrize("prefix", ["%DLQ%", "%RETRY%"])
async def test_a_route_to_a_groups_own_topic_creates_neither(wire_server: WireServer, prefix: str) -> None:
    """A mistyped name would leave a group behind."""
    topic = pb.Resource(name=f"{prefix}tpyo")
    before = await wire_server.digest()
    would_have = await route(wire_server, topic)
    assert await wire_server.digest() == before
    assert await wire_server.receive(topic=topic) == []
    assert await route(wire_server, topic) == would_have
    assert [queue.id for queue in would_have] == [0]


@pytest.mark.row("N3")
async def test_without_creation_on_first_use_only_a_known_groups_own_topics_have_a_route(
    wire_server: WireServer,
) -> None:
    await wire_server.broker.catalog.create_group(NewGroup(Resource("", "counters")))
    wire_server.broker.catalog._auto_create = False
    assert [queue.id for queue in await route(wire_server, pb.Resource(name="%DLQ%counters"))] == [0]
    refused = await wire_server.call("QueryRoute", wire.QueryRouteRequest(topic=pb.Resource(name="%DLQ%tpyo")))
    assert refused.status.code == pb.CONSUMER_GROUP_NOT_FOUND


@pytest.mark.row("N3")
async def test_a_route_creates_the_topic_of_who_owns_queues(either_wire_server: WireServer) -> None:
    """Its next calls are about offsets, which create nothing."""
    wire_server = either_wire_server
    settings = pb.Settings(client_type=pb.PULL_CONSUMER, subscription=pb.Subscription(group=GROUP))
    async with wire_server.telemetry("one") as stream:
        await stream.write(wire.TelemetryCommand(settings=settings))
        await stream.read()
        await wire_server.call("QueryRoute", wire.QueryRouteRequest(topic=TOPIC), client_id="one")
    assert await wire_server.broker.catalog.known_topic(Resource("", TOPIC.name)) is not None


@pytest.mark.parametrize("endpoints", DIALLED, ids=lambda each: pb.AddressScheme.Name(each.scheme))
async def test_a_route_leads_where_the_client_came_from(wire_server: WireServer, endpoints: pb.Endpoints) -> None:
    assert {str(queue.broker.endpoints) for queue in await route(wire_server, endpoints=endpoints)} == {str(endpoints)}


@pytest.mark.parametrize(
    "endpoints", [None, pb.Endpoints(), pb.Endpoints(scheme=pb.IPv4)], ids=["none", "empty", "bare"]
)
async def test_who_names_no_endpoint_gets_the_servers(wire_server: WireServer, endpoints: pb.Endpoints | None) -> None:
    own = (await route(wire_server, endpoints=endpoints))[0].broker.endpoints
    assert own.scheme == pb.IPv4
    assert [(address.host, address.port) for address in own.addresses] == [("127.0.0.1", wire_server.server.port)]


async def test_a_route_keeps_the_namespace_as_written(wire_server: WireServer) -> None:
    inside = pb.Resource(resource_namespace="north", name="t")
    assert {queue.topic.resource_namespace for queue in await route(wire_server, inside)} == {"north"}


@pytest.mark.parametrize(
    "accepts", [(MessageType.NORMAL,), (MessageType.LITE,), (MessageType.NORMAL, MessageType.FIFO)]
)
async def test_a_route_lists_what_the_topic_was_made_for(
    wire_server: WireServer, accepts: tuple[MessageType, ...]
) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", "made"), 1, accepts))
    (queue,) = await route(wire_server, pb.Resource(name="made"))
    assert [pb.MessageType.Name(kind) for kind in queue.accept_message_types] == list(accepts)


async def test_a_dead_letter_topic_is_read_and_write(wire_server: WireServer) -> None:
    queues = await route(wire_server, pb.Resource(name="%DLQ%counters"))
    assert {queue.permission for queue in queues} == {pb.READ_WRITE}
    assert all(list(queue.accept_message_types) for queue in queues)


@pytest.mark.parametrize("method", ["QueryRoute", "QueryAssignment"])
@pytest.mark.parametrize("name", ["", " ", "a b", "t" * 128, "TBW102", "rmq_sys_x"])
async def test_an_illegal_topic_is_refused(wire_server: WireServer, method: str, name: str) -> None:
    request = getattr(wire, f"{method}Request")(topic=pb.Resource(name=name))
    if method == "QueryAssignment":
        request.group.CopyFrom(GROUP)
        await wire_server.receive()
    before = await wire_server.digest()
    (status,) = await wire_server.statuses(method, request)
    assert status.code == pb.ILLEGAL_TOPIC
    assert await wire_server.digest() == before


@pytest.mark.row("K1")
async def test_every_member_is_assigned_every_queue(wire_server: WireServer) -> None:
    for number in range(32):
        await wire_server.send(a_message(f"m{number}"))
    request = wire.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=DIALLED[0])
    assigned = [await wire_server.call("QueryAssignment", request, client_id=member) for member in ("one", "two")]
    assert assigned[0] == assigned[1]
    assert assigned[0].status.code == pb.OK
    (assignment,) = assigned[0].assignments
    queue = assignment.message_queue
    assert (queue.topic, queue.id, queue.permission) == (TOPIC, -1, pb.READ_WRITE)
    assert (queue.broker.name, queue.broker.endpoints) == ("popmq", DIALLED[0])

    seen: dict[str, list[int]] = {"one": [], "two": []}
    for member in ("one", "two") * 8:
        receive = wire.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=2, auto_renew=True)
        receive.long_polling_timeout.seconds = 0
        frames = await wire_server.frames("ReceiveMessage", receive, client_id=member)
        seen[member] += [frame.message.system_properties.queue_id for frame in frames if frame.HasField("message")]
    assert sorted(seen["one"] + seen["two"]) == sorted(list(range(8)) * 4)
    for queues in seen.values():
        assert len(set(queues)) > 1, "no queue belongs to one member"


async def test_an_assignment_needs_a_legal_group(wire_server: WireServer) -> None:
    before = await wire_server.digest()
    request = wire.QueryAssignmentRequest(topic=TOPIC, group=pb.Resource(name="a b"))
    (status,) = await wire_server.statuses("QueryAssignment", request)
    assert status.code == pb.ILLEGAL_CONSUMER_GROUP
    assert await wire_server.digest() == before
