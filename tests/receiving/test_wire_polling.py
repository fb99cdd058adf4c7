"""How long a receive waits, and what ends the wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.engine.clock import ManualClock
from popserver.model.errors import BadRequest, IllegalPollingTime, PopError
from popserver.transport.calls import poll_ms_of
from popserver.transport.limits import CallLimits
from tests.support.receiving import FakeCaller
from tests.support.wire_server import a_message, opened, parked, receive_request

KNOWS = "5.0.3"


@pytest.mark.row("A12")
@pytest.mark.parametrize(
    ("wanted_ms", "remaining_ms", "expected_ms"),
    [
        (15_000, None, 15_000),
        (15_000, 60_000, 15_000),
        (0, 60_000, 5_000),
        (-1, 60_000, 5_000),
        (4_999, 60_000, 5_000),
        (5_000, 60_000, 5_000),
        (20_000, 60_000, 20_000),
        (20_001, 60_000, 20_000),
        (3_600_000, 60_000, 20_000),
        # The deadline counts where it comes first, and a margin before it.
        (20_000, 20_000, 19_500),
        (20_000, 20_400, 19_900),
        (20_000, 12_000, 11_500),
        (40_000, 40_000, 20_000),
        (20_000, 5_000, 4_500),
        # No wish: what the deadline leaves, less half an ordinary call's time.
        (None, None, 20_000),
        (None, 30_000, 20_000),
        (None, 18_000, 16_500),
        (None, 6_000, 5_000),
        (None, 5_000, 4_500),
    ],
)
def test_the_poll_time_is_clamped(wanted_ms: int | None, remaining_ms: int | None, expected_ms: int) -> None:
    request = receive_request(poll_ms=wanted_ms)
    assert poll_ms_of(request, FakeCaller(remaining_ms), CallLimits()) == expected_ms  # type: ignore[arg-type]


@pytest.mark.row("A12")
@pytest.mark.parametrize(
    ("open_polls", "remaining_ms", "expected_ms"),
    [
        (0, 20_000, 19_500),
        (10_000, 20_000, 14_500),
        (10_000, 60_000, 20_000),
        # However many there are, a poll may wait for half of what its deadline leaves.
        (100_000, 20_000, 9_500),
    ],
)
def test_the_more_polls_are_open_the_earlier_before_its_deadline_one_ends(
    open_polls: int, remaining_ms: int, expected_ms: int
) -> None:
    request = receive_request(poll_ms=20_000)
    assert poll_ms_of(request, FakeCaller(remaining_ms), CallLimits(), open_polls) == expected_ms  # type: ignore[arg-type]


async def test_a_poll_beside_another_ends_earlier_before_its_deadline(tmp_path: Path) -> None:
    limits, clock = CallLimits(poll_margin_us_each=15_000_000), ManualClock()
    async with opened(tmp_path, limits=limits, clock=clock) as wire_server:
        polls = []
        for number in range(2):
            call = wire_server.statuses("ReceiveMessage", receive_request(poll_ms=20_000), timeout=30)
            polls.append(asyncio.create_task(call))
            await parked(wire_server, number + 1)
        await clock.advance(15_000, wire_server.broker.settle)
        assert [each.code for each in await polls[1]] == [pb.MESSAGE_NOT_FOUND]
        assert wire_server.broker.consuming.open == 1
        await clock.advance(5_000, wire_server.broker.settle)
        assert [each.code for each in await polls[0]] == [pb.MESSAGE_NOT_FOUND]
        assert wire_server.broker.consuming.open == 0


@pytest.mark.row("A12")
@pytest.mark.parametrize(
    ("version", "error"),
    [
        ("", BadRequest),
        ("5.0.2", BadRequest),
        ("1.0.8", BadRequest),
        (KNOWS, IllegalPollingTime),
        ("5.1.2", IllegalPollingTime),
        ("5.0.10", BadRequest),  # compared as text, like the field does
    ],
)
@pytest.mark.parametrize("wanted_ms", [5_000, None])
def test_too_short_a_deadline_is_refused_by_version(wanted_ms: int | None, version: str, error: type[PopError]) -> None:
    with pytest.raises(PopError) as refused:
        poll_ms_of(receive_request(poll_ms=wanted_ms), FakeCaller(4_999, version), CallLimits())  # type: ignore[arg-type]
    assert type(refused.value) is error
    assert "4999 ms" in refused.value.sentence
    assert "5000 ms" in refused.value.sentence


@pytest.mark.row("A12")
@pytest.mark.parametrize(("version", "code"), [("5.0.2", pb.BAD_REQUEST), (KNOWS, pb.ILLEGAL_POLLING_TIME)])
async def test_too_short_a_deadline_on_the_wire(tmp_path: Path, version: str, code: int) -> None:
    async with opened(tmp_path, limits=CallLimits()) as wire_server:
        before = await wire_server.digest()
        headers = {"x-mq-client-version": version}
        request = receive_request(poll_ms=5_000)
        (status,) = await wire_server.statuses("ReceiveMessage", request, timeout=3, headers=headers)
        assert status.code == code
        assert await wire_server.digest() == before


@pytest.mark.row("A4")
async def test_an_empty_poll_ends_at_its_time_not_before(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, limits=CallLimits(), clock=clock) as wire_server:
        poll = asyncio.create_task(wire_server.statuses("ReceiveMessage", receive_request(poll_ms=15_000)))
        await parked(wire_server)
        await clock.advance(14_999, wire_server.broker.settle)
        assert wire_server.broker.engine.wakeups.parked == 1
        await clock.advance(1, wire_server.broker.settle)
        (status,) = await poll
        assert status.code == pb.MESSAGE_NOT_FOUND


@pytest.mark.row("A4")
@pytest.mark.row("A6")
async def test_a_new_message_ends_the_wait_at_once(tmp_path: Path) -> None:
    """The clock stands still: nothing but the message can have woken the poll."""
    async with opened(tmp_path, limits=CallLimits(), clock=ManualClock()) as wire_server:
        poll = asyncio.create_task(wire_server.receive(poll_ms=20_000))
        await parked(wire_server)
        await wire_server.send(a_message())
        (received,) = await poll
        assert received.system_properties.message_id == "m1"


async def test_a_client_that_leaves_frees_its_poll(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=CallLimits(), clock=ManualClock()) as wire_server:
        poll = asyncio.create_task(wire_server.receive(poll_ms=20_000))
        await parked(wire_server)
        poll.cancel()
        await parked(wire_server, 0)
        await wire_server.send(a_message())
        assert len(await wire_server.receive()) == 1


async def test_a_refused_go_push_client_is_made_to_wait(tmp_path: Path) -> None:
    """It asks again 20 ms after any refusal (protocol 1.7)."""
    async with opened(tmp_path, limits=CallLimits(push_refusal_pause_ms=100)) as wire_server:
        started = asyncio.get_running_loop().time()
        request = receive_request(push=True, batch_size=0)
        (status,) = await wire_server.statuses("ReceiveMessage", request, headers={"x-mq-language": "GO"})
        assert status.code == pb.BAD_REQUEST
        assert asyncio.get_running_loop().time() - started >= 0.1


@pytest.mark.row("A7")
async def test_a_message_of_another_tag_leaves_the_poll_waiting(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=CallLimits(), clock=ManualClock()) as wire_server:
        wanted = pb.FilterExpression(expression="B")
        poll = asyncio.create_task(wire_server.receive(poll_ms=20_000, expression=wanted))
        await parked(wire_server)
        await wire_server.send(a_message("m1", tag="A"))
        await wire_server.broker.settle()
        await parked(wire_server)
        assert not poll.done()
        await wire_server.send(a_message("m2", tag="B"))
        (received,) = await poll
        assert received.system_properties.message_id == "m2"


@pytest.mark.row("A9")
async def test_more_polls_than_a_group_may_hold_are_answered_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=CallLimits(), clock=ManualClock()) as wire_server:
        polls = [asyncio.create_task(wire_server.receive(poll_ms=20_000)) for _ in range(1_024)]
        await parked(wire_server, 1_024)
        (status,) = await wire_server.statuses("ReceiveMessage", receive_request(poll_ms=20_000))
        assert status.code == pb.TOO_MANY_REQUESTS
        assert "1024 polls are waiting" in status.message
        await wire_server.broker.drain()
        assert await asyncio.gather(*polls) == [[]] * 1_024


@pytest.mark.row("A10")
async def test_a_hold_that_ends_ends_the_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, limits=CallLimits(), clock=clock) as wire_server:
        await wire_server.send(a_message())
        assert len(await wire_server.receive(invisible_ms=10_000)) == 1
        poll = asyncio.create_task(wire_server.receive(poll_ms=20_000))
        await parked(wire_server)
        await clock.advance(9_999, wire_server.broker.settle)
        assert wire_server.broker.engine.wakeups.parked == 1
        await clock.advance(1, wire_server.broker.settle)
        (again,) = await poll
        assert again.system_properties.delivery_attempt == 2
