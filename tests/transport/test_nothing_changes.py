"""What comes too late, twice, at the wrong port or with the wrong papers gets its code, and nothing changes.

The rest of what may be wrong with a request stands beside the tests of that request.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Rules
from popserver.engine.clock import ManualClock
from popserver.transport import convert
from tests.support.certificates import Authority
from tests.support.signed_server import REQUESTS, give_everything, guarded
from tests.support.signing import DATE, signed
from tests.support.tls_server import caller, certified
from tests.support.wire_server import TOPIC, WireServer, a_message, opened, receive_request

MINUTE = 60_000
SECRET = "correct-horse"


@pytest.mark.user("U26")
@pytest.mark.parametrize("late_ms", [0, 1, MINUTE])
async def test_a_recall_of_what_was_due(tmp_path: Path, late_ms: int) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        message = a_message("m1")
        convert.set_ms(message.system_properties.delivery_timestamp, clock.now_ms() + MINUTE)
        (entry,) = (await wire_server.send(message)).entries
        await clock.advance(MINUTE + late_ms, wire_server.broker.settle)
        before = await wire_server.digest()
        request = wire.RecallMessageRequest(topic=TOPIC, recall_handle=entry.recall_handle)
        answer = await wire_server.call("RecallMessage", request)
        assert answer.status.code == pb.PRECONDITION_FAILED
        assert "'m1'" in answer.status.message
        assert await wire_server.digest() == before
        assert [each.system_properties.message_id for each in await wire_server.receive()] == ["m1"]


async def test_a_signature_that_is_sent_again(tmp_path: Path) -> None:
    """Where signatures grow old, one that was seen on the way opens nothing any more."""
    clock = ManualClock()
    rules = Rules(auth=True, max_age_ms=MINUTE)
    async with guarded(tmp_path, clock=clock, rules=rules) as wire_server:
        await give_everything(wire_server)
        seen = signed("alice", SECRET)
        assert seen["x-mq-date-time"] == DATE
        (fresh,) = await wire_server.statuses("SendMessage", REQUESTS["SendMessage"], headers=seen)
        assert fresh.code == pb.OK
        await clock.advance(MINUTE + 1, wire_server.broker.settle)
        before = await wire_server.digest()
        for method, request in REQUESTS.items():
            (status,) = await wire_server.statuses(method, request, headers=seen)
            assert status.code == pb.UNAUTHORIZED, method
            assert f"at most {MINUTE} ms" in status.message
        assert await wire_server.digest() == before


@pytest.mark.parametrize("name", ["", "no topic", "TBW102"])
async def test_an_illegal_topic_with_a_group_that_is_new(tmp_path: Path, name: str) -> None:
    """The group would be created on first use; but nothing is used."""
    topic, group = pb.Resource(name=name), pb.Resource(name="new")
    async with opened(tmp_path) as wire_server:
        before = await wire_server.digest()
        for method, request in (
            ("QueryAssignment", wire.QueryAssignmentRequest(topic=topic, group=group)),
            ("ReceiveMessage", receive_request(topic=topic, group=group)),
            ("PullMessage", pull_request(topic, group)),
        ):
            codes = [each.code for each in await wire_server.statuses(method, request)]
            assert codes == [pb.ILLEGAL_TOPIC], method
        assert await wire_server.digest() == before


async def test_an_illegal_group_with_a_topic_that_is_new(tmp_path: Path) -> None:
    settings = pb.Settings(client_type=pb.PULL_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="known")))
    async with opened(tmp_path) as wire_server, wire_server.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(settings=settings))
        assert (await stream.read()).HasField("settings")
        before = await wire_server.digest()
        for name in ("", "no group"):
            request = wire.QueryAssignmentRequest(topic=pb.Resource(name="new"), group=pb.Resource(name=name))
            (status,) = await wire_server.statuses("QueryAssignment", request)
            assert status.code == pb.ILLEGAL_CONSUMER_GROUP
        assert await wire_server.digest() == before


def pull_request(topic: pb.Resource, group: pb.Resource) -> wire.PullMessageRequest:
    filtered = pb.FilterExpression(type=pb.TAG, expression="*")
    queue = pb.MessageQueue(topic=topic)
    return wire.PullMessageRequest(group=group, message_queue=queue, batch_size=1, filter_expression=filtered)


async def refused(wire_server: WireServer, *papers: object) -> None:
    """A send that does not get in, and leaves nothing behind."""
    before, clients = await wire_server.digest(), len(wire_server.broker.sessions.clients)
    async with caller(wire_server, *papers) as one:  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await one.send(a_message())
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await wire_server.digest() == before
    assert len(wire_server.broker.sessions.clients) == clients


async def test_plaintext_on_the_port_for_tls(tmp_path: Path, authority: Authority) -> None:
    async with opened(tmp_path, listening=certified(authority, "tls")) as wire_server:
        await refused(wire_server, None)
        async with caller(wire_server, authority.ca) as rightly:
            assert (await rightly.send(a_message())).status.code == pb.OK


async def test_tls_on_the_port_for_plaintext(tmp_path: Path, authority: Authority) -> None:
    authority.issue("server")
    async with opened(tmp_path) as wire_server:
        await refused(wire_server, authority.ca)
        assert (await wire_server.send(a_message())).status.code == pb.OK


@pytest.mark.parametrize("mode", ["permissive", "tls"])
async def test_an_ended_certificate_of_the_server(tmp_path: Path, authority: Authority, mode: str) -> None:
    """The client will not have it; who is already in is not disturbed."""
    listening = certified(authority, mode, ends_in=-timedelta(hours=1))  # type: ignore[arg-type]
    async with opened(tmp_path, listening=listening) as wire_server:
        await refused(wire_server, authority.ca)


async def test_an_ended_certificate_of_a_client(tmp_path: Path, authority: Authority) -> None:
    clients = Authority(tmp_path, "clients-ca")
    async with opened(tmp_path, listening=certified(authority, "tls", client_ca=clients.ca)) as wire_server:
        await refused(wire_server, authority.ca, clients.issue("bob", ends_in=-timedelta(hours=1)))
        await refused(wire_server, authority.ca)
        async with caller(wire_server, authority.ca, clients.issue("alice")) as rightly:
            assert (await rightly.send(a_message())).status.code == pb.OK
