"""What comes too late, twice, by the wrong door or with the wrong papers gets its code, and nothing changes.

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
from tests.support.door import TOPIC, Door, a_message, opened, receive_request
from tests.support.guarded import REQUESTS, give_everything, guarded
from tests.support.signing import DATE, signed
from tests.support.tls import caller, certified

MINUTE = 60_000
SECRET = "correct-horse"


@pytest.mark.user("U26")
@pytest.mark.parametrize("late_ms", [0, 1, MINUTE])
async def test_a_recall_of_what_was_due(tmp_path: Path, late_ms: int) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as door:
        message = a_message("m1")
        convert.set_ms(message.system_properties.delivery_timestamp, clock.now_ms() + MINUTE)
        (entry,) = (await door.send(message)).entries
        await clock.advance(MINUTE + late_ms, door.broker.settle)
        before = await door.digest()
        request = wire.RecallMessageRequest(topic=TOPIC, recall_handle=entry.recall_handle)
        answer = await door.call("RecallMessage", request)
        assert answer.status.code == pb.PRECONDITION_FAILED
        assert "'m1'" in answer.status.message
        assert await door.digest() == before
        assert [each.system_properties.message_id for each in await door.receive()] == ["m1"]


async def test_a_signature_that_is_sent_again(tmp_path: Path) -> None:
    """Where signatures grow old, one that was seen on the way opens nothing any more."""
    clock = ManualClock()
    rules = Rules(auth=True, max_age_ms=MINUTE)
    async with guarded(tmp_path, clock=clock, rules=rules) as door:
        await give_everything(door)
        seen = signed("alice", SECRET)
        assert seen["x-mq-date-time"] == DATE
        (fresh,) = await door.statuses("SendMessage", REQUESTS["SendMessage"], headers=seen)
        assert fresh.code == pb.OK
        await clock.advance(MINUTE + 1, door.broker.settle)
        before = await door.digest()
        for method, request in REQUESTS.items():
            (status,) = await door.statuses(method, request, headers=seen)
            assert status.code == pb.UNAUTHORIZED, method
            assert f"at most {MINUTE} ms" in status.message
        assert await door.digest() == before


@pytest.mark.parametrize("name", ["", "no topic", "TBW102"])
async def test_an_illegal_topic_with_a_group_that_is_new(tmp_path: Path, name: str) -> None:
    """The group would be created on first use; but nothing is used."""
    topic, group = pb.Resource(name=name), pb.Resource(name="new")
    async with opened(tmp_path) as door:
        before = await door.digest()
        for method, request in (
            ("QueryAssignment", wire.QueryAssignmentRequest(topic=topic, group=group)),
            ("ReceiveMessage", receive_request(topic=topic, group=group)),
            ("PullMessage", pull_request(topic, group)),
        ):
            codes = [each.code for each in await door.statuses(method, request)]
            assert codes == [pb.ILLEGAL_TOPIC], method
        assert await door.digest() == before


async def test_an_illegal_group_with_a_topic_that_is_new(tmp_path: Path) -> None:
    settings = pb.Settings(client_type=pb.PULL_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="known")))
    async with opened(tmp_path) as door, door.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(settings=settings))
        assert (await stream.read()).HasField("settings")
        before = await door.digest()
        for name in ("", "no group"):
            request = wire.QueryAssignmentRequest(topic=pb.Resource(name="new"), group=pb.Resource(name=name))
            (status,) = await door.statuses("QueryAssignment", request)
            assert status.code == pb.ILLEGAL_CONSUMER_GROUP
        assert await door.digest() == before


def pull_request(topic: pb.Resource, group: pb.Resource) -> wire.PullMessageRequest:
    filtered = pb.FilterExpression(type=pb.TAG, expression="*")
    queue = pb.MessageQueue(topic=topic)
    return wire.PullMessageRequest(group=group, message_queue=queue, batch_size=1, filter_expression=filtered)


async def refused(door: Door, *papers: object) -> None:
    """A send that does not get in, and leaves nothing behind."""
    before, clients = await door.digest(), len(door.broker.sessions.clients)
    async with caller(door, *papers) as one:  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await one.send(a_message())
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await door.digest() == before
    assert len(door.broker.sessions.clients) == clients


async def test_plaintext_on_the_port_for_tls(tmp_path: Path, authority: Authority) -> None:
    async with opened(tmp_path, listening=certified(authority, "tls")) as door:
        await refused(door, None)
        async with caller(door, authority.ca) as rightly:
            assert (await rightly.send(a_message())).status.code == pb.OK


async def test_tls_on_the_port_for_plaintext(tmp_path: Path, authority: Authority) -> None:
    authority.issue("server")
    async with opened(tmp_path) as door:
        await refused(door, authority.ca)
        assert (await door.send(a_message())).status.code == pb.OK


@pytest.mark.parametrize("mode", ["permissive", "tls"])
async def test_an_ended_certificate_of_the_server(tmp_path: Path, authority: Authority, mode: str) -> None:
    """The client will not have it; who is already in is not disturbed."""
    listening = certified(authority, mode, ends_in=-timedelta(hours=1))  # type: ignore[arg-type]
    async with opened(tmp_path, listening=listening) as door:
        await refused(door, authority.ca)


async def test_an_ended_certificate_of_a_client(tmp_path: Path, authority: Authority) -> None:
    clients = Authority(tmp_path, "clients-ca")
    async with opened(tmp_path, listening=certified(authority, "tls", client_ca=clients.ca)) as door:
        await refused(door, authority.ca, clients.issue("bob", ends_in=-timedelta(hours=1)))
        await refused(door, authority.ca)
        async with caller(door, authority.ca, clients.issue("alice")) as rightly:
            assert (await rightly.send(a_message())).status.code == pb.OK
