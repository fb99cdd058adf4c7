"""A short torture: servers are killed, stopped and cut off under load, and no promise breaks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from proof.history.events import (
    CommitOffset,
    Consume,
    DelayedSend,
    EndTransaction,
    HalfSend,
    LiteReceive,
    LiteSync,
    OrderedSend,
    ProgramEnded,
    Pull,
    Pulled,
    QueueBatch,
    ReadOffset,
)
from proof.history.scenes import Scene
from proof.torture.client_processes import (
    GROUP,
    KINDS,
    LITE,
    PUSH,
    SIMPLE,
    ClientProcess,
    calls_of,
    is_there,
    with_ids,
)
from proof.torture.place import LAYOUTS
from proof.torture.round import Plan, run_round
from proof.totals import FAULT
from tests.support.built_programs import do_without
from tests.support.checker import Ack, Call, Delivered, Final, History, Outcome, Receive, Send, Stored
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.waiting import eventually

OK = Outcome.OK


@pytest.mark.timeout(540)
async def test_a_round_on_sqlite(tmp_path: Path) -> None:
    result = await run_round(Plan(1, LAYOUTS["sqlite"], Scene.PLAIN, with_proxies=True, accidents=5), tmp_path, None)
    assert result.violations == []
    assert result.counts["kills"] + result.counts["network_faults"] + result.counts["pauses"] == 5
    assert result.counts["sends"] > 0
    assert result.counts["deliveries"] > 0


@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_round_with_two_servers(tmp_path: Path) -> None:
    with postgres_server(own=True) as postgres:
        assert isinstance(postgres, PostgresServer)
        result = await run_round(
            Plan(1, LAYOUTS["two"], Scene.PLAIN, with_proxies=True, accidents=4), tmp_path, postgres
        )
    assert result.violations == []


@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_round_of_lite_topics_by_grpcio(tmp_path: Path) -> None:
    plan = Plan(1, LAYOUTS["sqlite"], Scene.LITE, with_proxies=True, accidents=4, engine="grpcio")
    result = await run_round(plan, tmp_path)
    assert result.violations == []
    assert result.counts["rounds_on_grpcio"] == 1


# Each kind in the scene that asks most of it; the others run for minutes.
QUICK = {("java", Scene.TRANSACTIONS), ("go", Scene.FIFO), ("push", Scene.FIFO), ("member", Scene.QUEUES)} | {
    ("popclient", Scene.TRANSACTIONS), ("official", Scene.DELAY), ("lite", Scene.LITE),
    ("lite push", Scene.LITE), ("java push", Scene.FIFO),
    ("go lite", Scene.LITE),
}  # fmt: skip
PROGRAMS = [(kind, scene) for scene, kinds in KINDS.items() for kind in dict.fromkeys(kinds)]


@pytest.mark.parametrize(
    ("kind", "scene"),
    [pytest.param(*each, marks=pytest.mark.full if each in QUICK else pytest.mark.slow) for each in PROGRAMS],
)
@pytest.mark.timeout(540)
async def test_a_round_with_programs(tmp_path: Path, kind: str, scene: Scene) -> None:
    """A program of each kind in each of its scenes, killed and started again."""
    if not is_there(kind):
        do_without(f"{kind}: a tool is missing, or the registry of its packages does not answer")
    plan = Plan(2, LAYOUTS["sqlite"], scene, with_proxies=False, accidents=3, programs=(kind,))
    result = await run_round(plan, tmp_path)
    assert result.violations == []
    assert result.counts[f"{FAULT}kill client {kind}"] >= 2


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ({"call": "Send", "digest": "d", "message_id": "m"}, Send(OK, 1, 2, "m", "d")),
        (
            {"call": "Send", "digest": "d", "message_id": "m", "message_group": "g"},
            OrderedSend(OK, 1, 2, "m", "d", "g"),
        ),
        ({"call": "Send", "digest": "d", "message_id": "m", "due_ms": 9}, DelayedSend(OK, 1, 2, "m", "d", 9)),
        ({"call": "HalfSend", "digest": "d", "message_id": "m"}, HalfSend(OK, 1, 2, "m", "d")),
        ({"call": "EndTransaction", "message_id": "m", "commits": False}, EndTransaction(OK, 1, 2, "m", False)),
        ({"call": "Ack", "message_id": "m", "handle": "h"}, Ack(OK, 1, 2, GROUP, "m", "h")),
        ({"call": "ReadOffset", "queue": 1, "offset": 3}, ReadOffset(OK, 1, 2, GROUP, 1, 3)),
        ({"call": "CommitOffset", "queue": 1, "offset": 3}, CommitOffset(OK, 1, 2, GROUP, 1, 3)),
        (
            {"call": "Poll", "pulls": [{"queue": 1, "offset": 3, "next_offset": 4, "messages": [[3, "m", "d"]]}]},
            Pull(OK, 1, 2, GROUP, 1, 3, 4, (Pulled(3, "m", "d"),)),
        ),
        (
            {"call": "Batch", "queue": 1, "client": "c", "messages": [[3, "m", "d"]]},
            QueueBatch(OK, 1, 2, GROUP, 1, "c", (Pulled(3, "m", "d"),)),
        ),
        ({"call": "Consume", "message_id": "m", "client": "c"}, Consume(OK, 1, 2, GROUP, "m", "c")),
        (
            {"call": "LiteSync", "client": "c", "names": ["a"], "adds": True},
            LiteSync(OK, 1, 2, GROUP, "c", ("a",), adds=True),
        ),
        (
            {"call": "Receive", "client": "c", "held_ms": 9.0, "may_hide": False},
            LiteReceive(OK, 1, 2, GROUP, 9.0, (), "c"),
        ),
    ],
)
def test_what_programs_say(said: dict[str, Any], call: Call) -> None:
    assert calls_of({**said, "invoked_ms": 1, "completed_ms": 2}, OK) == [call]


@pytest.mark.parametrize(("may_hide", "count", "hidden"), [(True, 8, 1), (True, 7, 0), (True, 0, 1), (False, 8, 0)])
def test_a_receive_of_a_program(may_hide: bool, count: int, hidden: int) -> None:
    """It promises a hold; if it was full, the client may have received ahead."""
    each = {"message_id": "m", "digest": "d", "attempt": 1, "handle": "h"}
    said = {"call": "Receive", "held_ms": 1_000.0, "may_hide": may_hide, "deliveries": [each] * count}
    first, *rest = calls_of({**said, "invoked_ms": 1, "completed_ms": 2}, OK)
    assert first == Receive(OK, 1, 2, GROUP, 1_000.0, (Delivered("m", "d", 1, "h"),) * count)
    assert rest == [Receive(Outcome.UNKNOWN, 1, 2, GROUP, 0.0)] * hidden


async def test_a_program_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    """It has no process any more, so the next start is not after a kill."""
    history = History()
    ends = (sys.executable, "-c", "import sys; sys.exit('no more')")
    program = ClientProcess(history, Scene.PLAIN, "127.0.0.1:1", "orders", ("popclient",), tmp_path, under=ends)
    await program.start()
    await eventually(lambda: _noticed(history), "its end is noticed", within_s=30)
    await program.kill()
    (call,) = history.calls
    assert isinstance(call, ProgramEnded)
    assert (call.kind, call.why.strip()) == ("popclient", "no more")


async def _noticed(history: History) -> bool:
    return bool(history.calls)


def test_a_half_message_of_a_killed_program_gets_its_id() -> None:
    history = History([HalfSend(Outcome.UNKNOWN, 1, 2, "", "there"), HalfSend(Outcome.UNKNOWN, 1, 2, "", "not there")])
    final = Final([Stored("m", "there")], [], [], 16)
    assert with_ids(history, final).calls == [HalfSend(Outcome.UNKNOWN, 1, 2, "m", "there")]


def test_the_seed_decides() -> None:
    assert Plan.of(5) == Plan.of(5)
    plans = [Plan.of(seed) for seed in range(400)]
    assert {plan.layout.name for plan in plans} == set(LAYOUTS)
    assert {kind for plan in plans for kind in plan.programs} == {kind for kinds in KINDS.values() for kind in kinds}
    assert {plan.at_once for plan in plans} == {0, 1, 2}
    assert 60 < sum(plan.engine == "grpcio" for plan in plans) < 140
    assert Plan.of(5, "two").layout is LAYOUTS["two"]


def test_kinds_of_a_group_do_not_mix() -> None:
    """A pull of all queues beside members that share them would be a fault of the test."""
    for plan in map(Plan.of, range(400)):
        assert len(plan.programs) < 2 or any({*plan.programs} <= {*family} for family in (SIMPLE, PUSH, LITE)), plan


def test_without_a_tool_its_program_is_left_out() -> None:
    for seed in range(100):
        assert "java" not in Plan.of(seed, kinds=set(SIMPLE) - {"java"}).programs
