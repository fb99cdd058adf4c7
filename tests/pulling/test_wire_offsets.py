"""Offsets over the wire, of both protocols."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from popproto.v1 import legacy_pb2 as words
from popproto.v1.legacy_pb2_grpc import LegacyStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.access.flow import Rules
from popserver.access.rules import implied_right
from popserver.transport import convert
from popserver.transport.call import Call
from popserver.transport.calls import Caller
from tests.support.signed_server import SECRET, give, guarded
from tests.support.signing import signed
from tests.support.wire_pull import get_offset, legacy, make_topic, pull, query_offset, queue, queue_name, update_offset
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, opened

POPPING = pb.Resource(name="popping")


@pytest.mark.row("H5")
async def test_the_offset_that_is_stored_is_the_next_one(either_wire_server: WireServer) -> None:
    await make_topic(either_wire_server, queues=8)
    for start in range(8):
        await either_wire_server.send(*(a_message(f"m{start}-{number}") for number in range(128)))
    assert await get_offset(either_wire_server, 6) == (pb.OFFSET_NOT_FOUND, 0)
    assert (await update_offset(either_wire_server, 103, 6)).code == pb.OK
    assert await get_offset(either_wire_server, 6) == (pb.OK, 103)
    assert (await update_offset(either_wire_server, 5, 6)).code == pb.OK, "late, and no error"
    assert await get_offset(either_wire_server, 6) == (pb.OK, 103)


@pytest.mark.parametrize("offset", [4, -1, 2**63 - 1])
async def test_an_offset_outside_of_its_queue_is_refused(wire_server: WireServer, offset: int) -> None:
    await make_topic(wire_server)
    await wire_server.send(*(a_message(f"m{number}") for number in range(3)))
    before = await wire_server.digest()
    status = await update_offset(wire_server, offset)
    assert status.code == pb.ILLEGAL_OFFSET
    assert f"offset {offset} is not in queue 0 of topic 'flights', which ends at 3" in status.message
    rows = await get_offset(wire_server)
    assert rows == (pb.OFFSET_NOT_FOUND, 0)
    assert before != await wire_server.digest(), "but the group has been used, in mode PULL"


@pytest.mark.parametrize(
    ("topic", "number", "code"),
    [("nosuch", 0, pb.TOPIC_NOT_FOUND), ("flights", 3, pb.BAD_REQUEST), (" ", 0, pb.ILLEGAL_TOPIC)],
)
async def test_what_does_not_exist_is_named(wire_server: WireServer, topic: str, number: int, code: int) -> None:
    await make_topic(wire_server)
    named = queue(number, pb.Resource(name=topic))
    answers = [
        await wire_server.call("UpdateOffset", wire.UpdateOffsetRequest(group=GROUP, message_queue=named)),
        await wire_server.call("GetOffset", wire.GetOffsetRequest(group=GROUP, message_queue=named)),
        await wire_server.call("QueryOffset", wire.QueryOffsetRequest(message_queue=named)),
    ]
    assert [answer.status.code for answer in answers] == [code] * 3


async def test_an_unknown_group_is_named(strict_wire_server: WireServer) -> None:
    await make_topic(strict_wire_server)
    assert (await update_offset(strict_wire_server, 0)).code == pb.CONSUMER_GROUP_NOT_FOUND
    assert (await get_offset(strict_wire_server))[0] == pb.CONSUMER_GROUP_NOT_FOUND


async def test_the_ends_of_a_queue(wire_server: WireServer) -> None:
    await make_topic(wire_server)
    await wire_server.send(*(a_message(f"m{number}") for number in range(3)))
    assert (await query_offset(wire_server, pb.BEGINNING)).offset == 0
    assert (await query_offset(wire_server, pb.END)).offset == 3


@pytest.mark.row("I3")
async def test_an_offset_by_time(either_wire_server: WireServer) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(a_message("m0"))
    stored = (await pull(either_wire_server)).messages[0].system_properties.store_timestamp
    stored_ms = stored.seconds * 1_000 + stored.nanos // 1_000_000
    found = [(await query_offset(either_wire_server, pb.TIMESTAMP, stored_ms + each)).offset for each in (-1_000, 0, 1)]
    assert found == [0, 0, 1]
    missing = await query_offset(either_wire_server, pb.TIMESTAMP)
    assert missing.status.code == pb.BAD_REQUEST
    unknown = await query_offset(either_wire_server, 7)
    assert unknown.status.code == pb.BAD_REQUEST
    assert "query_offset_policy 7" in unknown.status.message


@pytest.mark.row("K8")
async def test_a_group_has_one_mode(either_wire_server: WireServer) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(a_message("m0"))
    assert len(await either_wire_server.receive(group=POPPING)) == 1
    refused = await update_offset(either_wire_server, 1, group=POPPING)
    assert refused.code == pb.BAD_REQUEST
    assert "'popping' consumes in mode POP" in refused.message
    assert (await get_offset(either_wire_server, group=POPPING))[0] == pb.BAD_REQUEST
    assert (await pull(either_wire_server, group=POPPING)).ids == ["m0"], "reading is free"
    assert (await update_offset(either_wire_server, 1)).code == pb.OK
    assert await either_wire_server.receive() == []
    assert await get_offset(either_wire_server) == (pb.OK, 1)


async def test_several_offsets_at_once(wire_server: WireServer) -> None:
    await make_topic(wire_server, queues=2)
    for number in range(2):
        await wire_server.send(a_message(f"a{number}"), a_message(f"b{number}"))
    wishes = [
        words.QueueOffset(queue=queue_name(0), offset=2),
        words.QueueOffset(queue=queue_name(1), offset=9),
        words.QueueOffset(queue=queue_name(5), offset=1),
        words.QueueOffset(queue=queue_name(0, pb.Resource(name="nosuch")), offset=1),
    ]
    done = await legacy(wire_server, "CommitOffsets", words.CommitOffsetsRequest(group=GROUP, offsets=wishes))
    codes = [each.status.code for each in done.results]
    assert codes == [pb.OK, pb.ILLEGAL_OFFSET, pb.BAD_REQUEST, pb.TOPIC_NOT_FOUND]
    assert done.status.code == pb.MULTIPLE_RESULTS
    assert [each.stored.offset for each in done.results] == [2, -1, -1, -1]
    fetched = await legacy(
        wire_server, "FetchOffsets", words.FetchOffsetsRequest(group=GROUP, queues=[queue_name(1), queue_name(0)])
    )
    assert fetched.status.code == pb.OK
    assert [(each.queue.topic, each.queue.queue_id, each.offset, each.resets) for each in fetched.offsets] == [
        (TOPIC, 1, -1, 0),
        (TOPIC, 0, 2, 0),
    ]


async def test_no_queue_and_too_many_are_refused(wire_server: WireServer) -> None:
    for count in (0, 1_025):
        queues = [queue_name()] * count
        fetched = await legacy(wire_server, "FetchOffsets", words.FetchOffsetsRequest(group=GROUP, queues=queues))
        offsets = [words.QueueOffset(queue=each) for each in queues]
        committed = await legacy(wire_server, "CommitOffsets", words.CommitOffsetsRequest(group=GROUP, offsets=offsets))
        assert {fetched.status.code, committed.status.code} == {pb.BAD_REQUEST}
        assert f"the request names {count} queues; allowed: 1 to 1024" in fetched.status.message


async def test_the_legacy_service_wants_to_know_who_calls(wire_server: WireServer) -> None:
    fetched = await legacy(wire_server, "FetchOffsets", words.FetchOffsetsRequest(group=GROUP), client_id=None)
    assert fetched.status.code == pb.CLIENT_ID_REQUIRED


LEGACY_REQUESTS: dict[str, Any] = {
    "ListMembers": words.ListMembersRequest(group=GROUP),
    "LockQueues": words.LockQueuesRequest(group=GROUP, queues=[queue_name()]),
    "UnlockQueues": words.UnlockQueuesRequest(group=GROUP, queues=[queue_name()]),
    "FetchOffsets": words.FetchOffsetsRequest(group=GROUP, queues=[queue_name()]),
    "CommitOffsets": words.CommitOffsetsRequest(group=GROUP, offsets=[words.QueueOffset(queue=queue_name())]),
    "SendBack": words.SendBackRequest(group=GROUP, queue=queue_name()),
    "PullBatch": words.PullBatchRequest(group=GROUP, queue=queue_name(), batch_size=1),
}


async def test_the_legacy_service_asks_for_rights(tmp_path: Path) -> None:
    """Of the group, and of every topic that a request names."""
    methods = {each.name for each in words.DESCRIPTOR.services_by_name["Legacy"].methods}
    assert LEGACY_REQUESTS.keys() == methods, "every verb stands in the table"
    topic, group = f"ALLOW SUB topic:{TOPIC.name}", f"ALLOW SUB group:{GROUP.name}"
    cases: dict[str, tuple[list[str], set[str]]] = {
        "nobody": ([], set()),
        "reader": ([topic], set()),
        "member": ([group], {"ListMembers"}),
        "worker": ([topic, group], methods),
    }
    async with guarded(tmp_path, users=tuple(cases), rules=Rules(auth=True)) as wire_server:
        await make_topic(wire_server)
        await wire_server.broker.catalog.group(convert.resource(GROUP, ""))
        stub = LegacyStub(wire_server.channel)
        for user, (policies, let_in) in cases.items():
            for policy in policies:
                await give(wire_server, policy, user)
            metadata = (("x-mq-client-id", "c"), *signed(user, SECRET).items())
            codes = {
                method: (await getattr(stub, method)(request, metadata=metadata)).status.code
                for method, request in LEGACY_REQUESTS.items()
            }
            assert {method for method, code in codes.items() if code != pb.FORBIDDEN} == let_in, user
        # All of it was done, but no message is there to be pulled or sent back.
        assert {codes.pop("SendBack"), codes.pop("PullBatch")} == {pb.MESSAGE_NOT_FOUND}
        assert set(codes.values()) == {pb.OK}


def test_a_retry_topic_needs_the_right_of_its_group() -> None:
    caller = Caller(cast("Call", SimpleNamespace(headers={})))
    retry = pb.Resource(name=f"%RETRY%{GROUP.name}")
    assert implied_right(rights.sub(retry, caller)) == rights.sub_group(GROUP, caller)


@pytest.mark.row("H12")
async def test_progress_is_there_after_a_restart(tmp_path: Path, postgres_url: str) -> None:
    async with opened(tmp_path, postgres_url=postgres_url) as wire_server:
        await make_topic(wire_server)
        (sent,) = (await wire_server.send(a_message("m0"))).entries
        assert (await pull(wire_server, sent.offset)).ids == ["m0"]
        assert (await update_offset(wire_server, sent.offset + 1)).code == pb.OK
    async with opened(tmp_path, postgres_url=postgres_url) as wire_server:
        assert await get_offset(wire_server) == (pb.OK, sent.offset + 1)
