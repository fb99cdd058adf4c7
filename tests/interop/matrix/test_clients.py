"""Every client in every scenario, at every kind of server: the tables of docs/compatibility.md."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.matrix import rocketmq
from tests.interop.matrix.conftest import SERVERS, Get
from tests.interop.matrix.faults import FAULTS, Fault, fault_at
from tests.interop.matrix.lite import LITE
from tests.interop.matrix.page import NO_CALL
from tests.interop.matrix.scenarios import SCENARIOS
from tests.interop.matrix.stage import Act, Stage
from tests.interop.official import NoSuchCall, Start
from tests.interop.programs import BUILDS, LANGUAGES

# What CI runs: those whose clients other tests do not go into, what is hard or new for each, and popclient at RocketMQ.
_HARD = ("restart", "kill", *LITE)
_AT_ROCKETMQ = ("send", "fifo", "delay", "transaction", "push", "retry", "tag", "sql")


def _is_chosen(server: str, language: str, scenario: str) -> bool:
    fault = fault_at(scenario, language, server)
    if fault is not None and not (FAULTS[fault].is_constant and language in BUILDS):
        return False
    if server == "SQLite":
        return language in BUILDS or scenario in _HARD
    if server == "two servers":
        return scenario == "kill"
    return server == rocketmq.NAME and language == "popclient" and scenario in _AT_ROCKETMQ


def _cells() -> Iterator[Any]:
    for cell in itertools.product(SERVERS, LANGUAGES, SCENARIOS):
        marks = [pytest.mark.xdist_group(cell[0])] + ([] if _is_chosen(*cell) else [pytest.mark.matrix])
        yield pytest.param(*cell, id="-".join(cell), marks=marks)


@pytest.mark.row("O8")
@pytest.mark.timeout(900)  # the first of a language builds its program
@pytest.mark.parametrize(("server", "language", "scenario"), list(_cells()))
def test_a_client_plays_a_scenario(
    servers: Get,
    start_at: Start,
    record_property: Callable[[str, object], None],
    server: str,
    language: str,
    scenario: str,
) -> None:
    act, scene = SCENARIOS[scenario]
    stage = Stage(servers(server, scene.needs), scenario, language, scene, start_at)
    record_property("cell", f"{scenario}/{language}/{server}")  # servers that do not start say nothing of a client
    fault = fault_at(scenario, language, server)
    if fault is None:
        _play(act, stage)
    else:
        _fails(act, stage, FAULTS[fault])


def _play(act: Act, stage: Stage) -> None:
    try:
        act(stage)
    except NoSuchCall as missing:
        pytest.skip(f"{NO_CALL}{missing}")


def _fails(act: Act, stage: Stage, fault: Fault) -> None:
    try:
        _play(act, stage)
    except (*fault.raises,) as failure:
        if not fault.explains(failure):
            raise
        pytest.xfail(fault.reason)
    if fault.is_constant:
        pytest.fail(f"it passes; take it out of faults.py: {fault.reason}")
