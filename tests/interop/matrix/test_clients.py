"""Every client in every scenario, at every kind of server: the tables of docs/compatibility.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.matrix.conftest import SERVERS, Get
from tests.interop.matrix.faults import FAULTS, fault_at
from tests.interop.matrix.scenarios import SCENARIOS
from tests.interop.matrix.stage import Stage
from tests.interop.official import NoSuchCall, Start
from tests.interop.programs import LANGUAGES

CELLS = [
    pytest.param(
        server, language, scenario, id=f"{server}-{language}-{scenario}", marks=pytest.mark.xdist_group(server)
    )
    for server in SERVERS
    for language in LANGUAGES
    for scenario in SCENARIOS
]


@pytest.mark.row("O8")
@pytest.mark.timeout(900)  # the first of a language builds its program
@pytest.mark.parametrize(("server", "language", "scenario"), CELLS)
def test_a_client_plays_a_scenario(
    servers: Get,
    start_at: Start,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    server: str,
    language: str,
    scenario: str,
) -> None:
    record_property("cell", f"{scenario}/{language}/{server}")
    act, scene = SCENARIOS[scenario]
    fault = fault_at(scenario, language, server)
    if fault is not None:
        request.applymarker(pytest.mark.xfail(reason=FAULTS[fault].reason))
    try:
        act(Stage(servers(server, scene.has_to_sign), scenario, language, scene, start_at))
    except NoSuchCall as missing:
        pytest.skip(f"no call: {missing}")
