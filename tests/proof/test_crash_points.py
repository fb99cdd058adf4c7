"""Each point at which a server can kill itself is there, and a server that has come to one continues afterwards."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from pathlib import Path

import pytest

from proof.history.scenes import Scene, judge
from proof.torture import crash_points
from proof.torture.crash_points import POINTS
from proof.torture.loads import TOPIC, SceneLoad
from proof.torture.place import LAYOUTS, open_place
from proof.torture.round import drain
from tests.support.final_state import final, looking

# What a load of plain messages comes to on SQLite.
REACHED = (
    "after BEGIN",
    "after COMMIT, before the answers",
    "before COMMIT",
    "before effects and answers",
    "messages stored",
    "after new grants",
    "after acks",
)


@pytest.mark.parametrize("name", POINTS)
def test_it_names_a_function(name: str) -> None:
    point = POINTS[name]
    found = importlib.import_module(point.module)
    for part in point.function.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.timeout(300)
@pytest.mark.full
@pytest.mark.parametrize("name", REACHED)
async def test_a_server_dies_there_and_breaks_no_promise(name: str, tmp_path: Path) -> None:
    async with open_place(LAYOUTS["sqlite"], tmp_path, None, with_proxies=False) as place:
        (server,) = place.servers
        load = SceneLoad(Scene.PLAIN, seed=7)
        await load.prepare(server.endpoint)
        await server.kill()
        await server.start((sys.executable, "-m", crash_points.__name__, name, "40"))
        working = asyncio.create_task(load.run(server.endpoint))
        assert await server.ended() == -signal.SIGKILL
        await server.start()
        load.stop()
        await working
        drained = await drain(load, place, 120.0)
        with looking(place.database_url) as conn:
            end = final(conn, TOPIC)
        end.drained = drained
        assert judge(Scene.PLAIN, load.history, end) == []
