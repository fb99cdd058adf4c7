"""Pulls over the wire, by both calls: frames, statuses, every rule of the request, what rides along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.message import StoredMessage
from popserver.model.names import Resource
from popserver.pulling.rpc import EXTRAS_HEADER
from popserver.pulling.rules import PullFlag
from popserver.transport import convert
from popserver.transport.calls import poll_ms_of
from popserver.transport.limits import CallLimits
from tests.support import builders, wire_pull
from tests.support.receiving import FOREIGN_TYPE, FakeCaller, sql, tags
from tests.support.running_broker import until
from tests.support.wire_pull import Answer, get_offset, make_topic, queue, settle, update_offset
from tests.support.wire_server import TOPIC, WireServer, a_message, opened, receive_request

pytestmark = pytest.mark.timeout(14)  # a pull that is broken may wait for ever

COMMIT, SUSPEND, SUBSCRIPTION, CLASS = 1, 2, 4, 8
Pull = Callable[..., Coroutine[Any, Any, Answer]]


@pytest.fixture(params=[wire_pull.pull, wire_pull.pull_batch], ids=["PullMessage", "PullBatch"])
def pull(request: pytest.FixtureRequest) -> Pull:
    return cast("Pull", request.param)


@pytest.mark.row("B4")
def test_the_bits_of_a_sys_flag() -> None:
    assert [flag.value for flag in PullFlag] == [1, 2, 4, 8, 16]
    assert PullFlag(13) == PullFlag.COMMIT_OFFSET | PullFlag.SUBSCRIPTION | PullFlag.CLASS_FILTER


@pytest.mark.row("B3")
async def test_what_a_pull_finds(pull: Pull, wire_server: WireServer) -> None:
    await make_topic(wire_server, queues=2)
    await wire_server.send(
        *(a_message(f"m{number}", tag="t", keys=["k"], user_properties={"p": "v"}) for number in range(3))
    )
    number = (await wire_server.broker.catalog.topic(Resource("", TOPIC.name))).queues[0].number
    answer = await pull(wire_server, 1, message_queue=queue(number), batch_size=1)
    assert (answer.code, answer.next_offset) == (pb.OK, 2)
    (found,) = answer.messages
    system = found.system_properties
    assert (found.topic, found.body, dict(found.user_properties)) == (TOPIC, b"body", {"p": "v"})
    assert (system.message_id, system.tag, list(system.keys)) == ("m1", "t", ["k"])
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (number, 1, 1)
    assert system.body_digest.checksum == convert.DIGESTS[system.body_digest.type](b"body")
    assert system.message_type == pb.NORMAL
    assert not system.HasField("receipt_handle"), "nobody holds it"
    assert not system.HasField("invisible_duration")


@pytest.mark.parametrize(
    ("topic", "properties", "attempt"),
    [
        ("%RETRY%counters", {"RECONSUME_TIME": "3"}, 4),
        ("%RETRY%counters", {}, 1),
        ("flights", {"RECONSUME_TIME": "3"}, 1),
    ],
)
def test_a_retry_copy_knows_which_attempt_it_is(topic: str, properties: dict[str, str], attempt: int) -> None:
    sent = builders.a_message(Resource("", topic), properties=properties)
    filled, common = pb.Message(), convert.common_fields(pb.Resource(name=topic), "host")
    convert.fill_pulled(filled, StoredMessage(sent, 1, 0, 0, 0), common)
    assert filled.system_properties.delivery_attempt == attempt


@pytest.mark.row("B14")
@pytest.mark.parametrize(
    ("offset", "code", "next_offset", "sentence"),
    [
        (3, pb.MESSAGE_NOT_FOUND, 3, "queue 0 of topic 'flights' ends at 3; pull there again"),
        (
            0,
            pb.MESSAGE_NOT_FOUND,
            3,
            "the filter accepts no message of queue 0 of topic 'flights' from 0 to 3; continue there",
        ),
        (
            999,
            pb.ILLEGAL_OFFSET,
            3,
            "offset 999 is not in queue 0 of topic 'flights', which begins at 0 and ends at 3; continue at 3",
        ),
        (-1, pb.ILLEGAL_OFFSET, 0, "offset -1 is not in queue 0"),
    ],
)
async def test_the_statuses_of_one_that_finds_nothing(
    pull: Pull, wire_server: WireServer, offset: int, code: int, next_offset: int, sentence: str
) -> None:
    await make_topic(wire_server)
    await wire_server.send(*(a_message(f"m{number}", tag="B") for number in range(3)))
    assert (await update_offset(wire_server, 0)).code == pb.OK, "the group has been here: its offsets are of this topic"
    answer = await pull(wire_server, offset, filter_expression=tags("A"))
    assert (answer.code, answer.next_offset, answer.messages) == (code, next_offset, [])
    assert answer.status.message.startswith(sentence)


async def test_on_postgres_it_is_the_same(pull: Pull, tmp_path: Path, postgres_url: str) -> None:
    async with opened(tmp_path, postgres_url=postgres_url) as wire_server:
        await make_topic(wire_server)
        await wire_server.send(a_message("m0", body=b"\x00\xff"), a_message("m1", tag="A"))
        answer = await pull(wire_server)
        assert (answer.code, answer.ids, answer.next_offset) == (pb.OK, ["m0", "m1"], 2)
        assert answer.messages[0].body == b"\x00\xff"
        assert (await pull(wire_server, 3)).code == pb.ILLEGAL_OFFSET


@pytest.mark.row("B12")
async def test_more_than_160_counts_as_160(pull: Pull, wire_server: WireServer) -> None:
    await make_topic(wire_server)
    for start in range(0, 170, 85):
        await wire_server.send(*(a_message(f"m{start + number}") for number in range(85)))
    for batch_size, count in ((1, 1), (32, 32), (160, 160), (161, 160), (2**31 - 1, 160)):
        assert len((await pull(wire_server, batch_size=batch_size)).messages) == count


@pytest.mark.parametrize("batch_size", [0, -1, -(2**31)])
async def test_no_batch_is_a_bad_request(pull: Pull, wire_server: WireServer, batch_size: int) -> None:
    await make_topic(wire_server)
    answer = await pull(wire_server, batch_size=batch_size)
    assert (answer.code, answer.next_offset) == (pb.BAD_REQUEST, None)
    assert f"the batch size is {batch_size}; ask for 1 to 160" in answer.status.message


@pytest.mark.parametrize("number", [2, -1, 2**31 - 1])
async def test_an_unknown_queue_is_named(pull: Pull, wire_server: WireServer, number: int) -> None:
    await make_topic(wire_server, queues=2)
    answer = await pull(wire_server, message_queue=queue(number))
    assert answer.code == pb.BAD_REQUEST
    assert f"topic 'flights' has no queue {number}; it has 2, numbered 0 to 1" in answer.status.message


async def test_an_unknown_topic_is_named(pull: Pull, strict_wire_server: WireServer) -> None:
    assert (await pull(strict_wire_server)).code == pb.CONSUMER_GROUP_NOT_FOUND
    assert (await pull(strict_wire_server, group=pb.Resource())).code == pb.ILLEGAL_CONSUMER_GROUP


@pytest.mark.row("M5")
@pytest.mark.parametrize("expression", [tags("Aa"), sql("TAGS = 'Aa'")])
async def test_the_server_filters(pull: Pull, either_wire_server: WireServer, expression: pb.FilterExpression) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(a_message("m0", tag="Aa"), a_message("m1", tag="BB"), a_message("m2", tag="Aa"))
    assert (await pull(either_wire_server, filter_expression=expression)).ids == ["m0", "m2"]


@pytest.mark.row("M19")
@pytest.mark.parametrize("extras", [None, {"sys_flag": CLASS | SUBSCRIPTION}])
async def test_class_filters_are_refused(pull: Pull, wire_server: WireServer, extras: dict[str, int] | None) -> None:
    await make_topic(wire_server)
    answer = await pull(wire_server, filter_expression=FOREIGN_TYPE, extras=extras)
    assert answer.code == pb.UNSUPPORTED
    assert "class filter" in answer.status.message


@pytest.mark.row("B22")
async def test_without_a_filter_it_wants_what_its_settings_say(pull: Pull, wire_server: WireServer) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("a", tag="A"), a_message("b", tag="B"))
    async with wire_server.telemetry() as stream:
        agreed = await settle(stream, flights=tags("A"))
        assert agreed.status.code == pb.OK
        assert (await pull(wire_server)).ids == ["a"]
        assert (await pull(wire_server, extras={"sys_flag": 0})).ids == ["a"]
        assert (await pull(wire_server, filter_expression=tags("B"))).ids == ["b"], "its own comes first"
        not_in_the_request = {"sys_flag": SUSPEND}
        assert (await pull(wire_server, filter_expression=tags("B"), extras=not_in_the_request)).ids == ["a"]
        assert (await pull(wire_server, group=pb.Resource(name="others"))).ids == ["a", "b"]
        assert (await pull(wire_server, client_id="somebody-else")).ids == ["a", "b"]


@pytest.mark.row("B22")
async def test_a_pull_of_an_older_subscription_is_refused(pull: Pull, either_wire_server: WireServer) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(a_message("a", tag="A"), a_message("b", tag="B"))
    async with either_wire_server.telemetry() as stream:
        await settle(stream, {"popmq.subscription_version": "1000"}, flights=tags("A"))
        await settle(stream, {"popmq.subscription_version": "2000"}, flights=tags("B"))
        late = await pull(
            either_wire_server, extras={"sys_flag": SUBSCRIPTION, "sub_version": 1_999}, filter_expression=tags("A")
        )
        assert (late.code, late.messages) == (pb.PRECONDITION_FAILED, [])
        assert "has subscription version 1999, but its client's settings have 2000" in late.status.message
        for version in (2_000, 0):
            assert (await pull(either_wire_server, extras={"sub_version": version})).ids == ["b"]


@pytest.mark.row("B22")
async def test_a_pull_of_a_newer_subscription_does_not_go_by_the_older_settings(
    pull: Pull, wire_server: WireServer
) -> None:
    """Else it would be told that nothing is wanted where something is."""
    await make_topic(wire_server)
    await wire_server.send(a_message("a", tag="A"), a_message("b", tag="B"))
    async with wire_server.telemetry() as stream:
        await settle(stream, {"popmq.subscription_version": "1000"}, flights=tags("A"))
        assert (await pull(wire_server, extras={"sub_version": 1_001}, filter_expression=tags("B"))).ids == ["b"]
        refused = await pull(wire_server, extras={"sub_version": 1_001})
        assert refused.code == pb.PRECONDITION_FAILED
        assert "send the settings first" in refused.status.message
    assert (await pull(wire_server, client_id="new", extras={"sub_version": 1}, filter_expression=tags("A"))).ids == [
        "a"
    ]
    assert (await pull(wire_server, client_id="new", extras={"sys_flag": 0}, filter_expression=tags("A"))).ids == ["a"]


@pytest.mark.parametrize("version", ["", "yesterday", "-1", "1.5", "²"])
async def test_a_subscription_version_that_is_none(wire_server: WireServer, version: str) -> None:
    async with wire_server.telemetry() as stream:
        refused = await settle(stream, {"popmq.subscription_version": version}, flights=tags("*"))
        assert refused.status.code == pb.INVALID_CLIENT_PROPERTIES
        assert f"'{version}'" in refused.status.message


@pytest.mark.row("B21")
@pytest.mark.parametrize(
    ("sys_flag", "committed"), [(COMMIT | SUSPEND, 77), (COMMIT, None), (SUSPEND, None), (COMMIT | SUBSCRIPTION, None)]
)
async def test_a_commit_rides_along_where_the_pull_may_be_held(
    pull: Pull, either_wire_server: WireServer, sys_flag: int, committed: int | None
) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(*(a_message(f"m{number}") for number in range(100)))
    answer = await pull(either_wire_server, 90, extras={"sys_flag": sys_flag, "commit_offset": 77})
    assert len(answer.messages) == 10
    expected = (pb.OFFSET_NOT_FOUND, 0) if committed is None else (pb.OK, committed)
    assert await get_offset(either_wire_server) == expected


@pytest.mark.row("B21")
async def test_a_commit_that_is_refused_does_not_concern_its_pull(pull: Pull, wire_server: WireServer) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    for offset in (2, -1):
        answer = await pull(wire_server, extras={"sys_flag": COMMIT | SUSPEND, "commit_offset": offset})
        assert answer.ids == ["m0"]
    assert await get_offset(wire_server) == (pb.OFFSET_NOT_FOUND, 0)


@pytest.mark.row("B21")
async def test_what_rode_along_before_is_not_written_again(pull: Pull, wire_server: WireServer) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    commits: list[object] = []
    writer: Any = wire_server.broker.engine.writer
    submit = writer.submit
    writer.submit = lambda request, **o: commits.append(request.operation.__name__) or submit(request, **o)
    for offset in (1, 1, 1):
        await pull(wire_server, 1, extras={"sys_flag": COMMIT | SUSPEND, "commit_offset": offset})
    assert commits.count("commit") == 1
    assert await get_offset(wire_server) == (pb.OK, 1)


async def test_extras_that_are_none_are_refused(wire_server: WireServer) -> None:
    await make_topic(wire_server)
    request = wire.PullMessageRequest(group=pb.Resource(name="g"), message_queue=queue(), batch_size=1)
    (status,) = await wire_server.statuses("PullMessage", request, headers={EXTRAS_HEADER: b"\xff\xff\xff"})
    assert status.code == pb.BAD_REQUEST
    assert "the 3 bytes of header popmq-pull-bin are no popmq.v1.PullExtras" in status.message


@pytest.mark.row("A4")
@pytest.mark.parametrize(
    ("poll_ms", "extras", "is_held"),
    [
        (60_000, None, True),
        (60_000, {"sys_flag": SUSPEND}, True),
        (60_000, {"sys_flag": SUBSCRIPTION}, False),
        (0, None, False),
        (None, None, False),
        (-1, {"sys_flag": SUSPEND}, False),
    ],
)
async def test_it_is_held_where_it_says_for_how_long(
    pull: Pull, wire_server: WireServer, poll_ms: int | None, extras: dict[str, int] | None, is_held: bool
) -> None:
    await make_topic(wire_server)
    pulling = asyncio.create_task(pull(wire_server, poll_ms=poll_ms, extras=extras))
    if is_held:
        await until(lambda: wire_server.broker.parked == 1)
        await wire_server.send(a_message("m0"))
        assert (await pulling).ids == ["m0"]
    else:
        assert (await pulling).code == pb.MESSAGE_NOT_FOUND


@pytest.mark.row("A12")
@pytest.mark.parametrize(
    ("wanted_ms", "remaining_ms", "expected_ms"),
    [(15_000, 30_000, 15_000), (1, 60_000, 5_000), (3_600_000, 60_000, 20_000), (20_000, 12_000, 11_500)],
)
def test_the_polling_time_is_clamped_like_that_of_a_receive(
    wanted_ms: int, remaining_ms: int, expected_ms: int
) -> None:
    request = wire.PullMessageRequest()
    request.long_polling_timeout.MergeFrom(receive_request(poll_ms=wanted_ms).long_polling_timeout)
    assert poll_ms_of(request, FakeCaller(remaining_ms), CallLimits()) == expected_ms  # type: ignore[arg-type]


@pytest.mark.row("A12")
async def test_a_deadline_that_leaves_no_time_to_be_held(pull: Pull, tmp_path: Path) -> None:
    async with opened(tmp_path, limits=CallLimits()) as wire_server:
        await make_topic(wire_server)
        newest = {"x-mq-client-version": "5.1.2"}
        answer = await pull(wire_server, poll_ms=15_000, headers=newest, timeout=4)
        assert answer.code == pb.ILLEGAL_POLLING_TIME


@pytest.mark.row("A9")
@pytest.mark.row("B19")
async def test_too_many_are_told_to_come_later(
    pull: Pull, wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.pulling.parked.PARKED_PER_TOPIC_AND_GROUP_MAX", 0)
    await make_topic(wire_server)
    answer = await pull(wire_server, poll_ms=60_000)
    assert answer.code == pb.TOO_MANY_REQUESTS
    assert "pull again later" in answer.status.message


@pytest.mark.row("B12")
async def test_a_pull_may_limit_its_bytes(pull: Pull, wire_server: WireServer) -> None:
    await make_topic(wire_server)
    await wire_server.send(*(a_message(f"m{number}", body=b"x" * 400) for number in range(5)))

    async def ids(max_bytes: int, filter_expression: pb.FilterExpression | None = None) -> list[str]:
        extras = {"sys_flag": SUBSCRIPTION, "max_bytes": max_bytes}
        return (await pull(wire_server, extras=extras, filter_expression=filter_expression)).ids

    assert await ids(1_000) == await ids(1_000, sql("TRUE")) == ["m0", "m1"]
    assert await ids(1) == ["m0"], "one comes always"
    assert len(await ids(0)) == len(await ids(2**31 - 1)) == 5
    refused = await pull(wire_server, extras={"sys_flag": SUBSCRIPTION, "max_bytes": -1})
    assert refused.code == pb.BAD_REQUEST
    assert refused.status.message.startswith("max_bytes is -1; ask for 1 to 262144 bytes")
