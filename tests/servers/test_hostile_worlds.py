"""Two servers on a Postgres whose database, or role, has settings that are the worst for PopMQ: no promise breaks.

Plain, ordered, delayed and transactional messages at once, judged by the history of what clients saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing

import psycopg
import pytest
from sqlalchemy.engine import make_url

from popserver.database import migrate
from popserver.database.database import Database
from proof.history.scenes import Scene, judge
from proof.torture.loads import SceneLoad
from proof.torture.place import OPTIONS
from tests.support.checker import Outcome, Receive
from tests.support.final_state import all_have_begun, final, looking, unfinished
from tests.support.hostile_settings import HOSTILE, SEARCH_PATH, UNHARMED, WAYS, alter, hostile_database
from tests.support.postgres import postgres_server
from tests.support.server_process import served
from tests.support.waiting import eventually

SCENES = (Scene.PLAIN, Scene.FIFO, Scene.DELAY, Scene.TRANSACTIONS)
CALLS = 150  # that are OK, of each scene, before the load ends
WITHIN_S = 120.0


@pytest.mark.timeout(540)
@pytest.mark.parametrize("way", WAYS)
async def test_all_settings_at_once(way: str) -> None:
    await _work(way, {**HOSTILE, "search_path": SEARCH_PATH})


@pytest.mark.timeout(540)
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_an_isolation(isolation: str) -> None:
    await _work("database", {"default_transaction_isolation": isolation}, calls=4 * CALLS)


@pytest.mark.slow
@pytest.mark.timeout(540)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("setting", [*HOSTILE, "search_path"])
async def test_one_setting(setting: str, way: str) -> None:
    await _work(way, {setting: SEARCH_PATH if setting == "search_path" else HOSTILE[setting]})


@pytest.mark.timeout(540)
@pytest.mark.parametrize("locale", ["ICU_LOCALE 'en-US' LOCALE_PROVIDER icu", "LOCALE 'C.utf8'"], ids=["icu", "libc"])
async def test_a_collation(locale: str) -> None:
    with postgres_server(own=True) as postgres:
        with psycopg.connect(postgres.url, autocommit=True) as conn:
            conn.execute(f"CREATE DATABASE other {locale} ENCODING 'UTF8' TEMPLATE template0".encode())
        await _load(make_url(postgres.url).set(database="other").render_as_string(hide_password=False), CALLS)


async def _work(way: str, settings: Mapping[str, str], *, calls: int = CALLS) -> None:
    later = {name: value for name, value in settings.items() if name == "search_path"}
    first = {name: value for name, value in settings.items() if name not in later}
    with postgres_server(own=True) as postgres, hostile_database(postgres, way, first) as url:
        if later:  # the tables are there before
            with closing(Database(url)) as database:
                migrate.upgrade(database)
            alter(url, way, later)
        await _load(url, calls)
        assert postgres.deadlocks() == []


async def _load(url: str, calls: int) -> None:
    loads = {
        scene: SceneLoad(scene, seed=7, groups=(f"{scene}-billing", f"{scene}-shipping"), topic=scene.value)
        for scene in SCENES
    }
    async with AsyncExitStack() as running:
        servers = [await running.enter_async_context(served(url, *OPTIONS)) for _ in range(2)]
        endpoints = [each.endpoint for each in servers]
        await asyncio.gather(*(each.prepare(endpoints[0]) for each in loads.values()))
        working = [asyncio.create_task(each.run(*endpoints)) for each in loads.values()]
        await eventually(lambda: _all_have(loads, calls), "enough calls are OK", within_s=WITHIN_S)
        await _end(loads, working)
        draining = [asyncio.create_task(each.run_consumers(*endpoints)) for each in loads.values()]
        await eventually(lambda: asyncio.to_thread(_all_done, url, loads), "all consumed", within_s=WITHIN_S)
        await _end(loads, draining)
        assert [await each.stop() for each in servers] == [0, 0]
        assert [line for each in servers for line in each.mistakes] == []
    violations = []
    for scene, load in loads.items():
        with looking(_unharmed(url)) as conn:
            violations += judge(scene, load.history, final(conn, scene.value))
    assert violations == []


async def _end(loads: Mapping[Scene, SceneLoad], tasks: list[asyncio.Task[None]]) -> None:
    for each in loads.values():
        each.stop()
    await asyncio.gather(*tasks)


async def _all_have(loads: Mapping[Scene, SceneLoad], calls: int) -> bool:
    """Whether each scene has so many calls that are OK, and some messages that were received."""
    return all(
        sum(call.outcome is Outcome.OK for call in load.history.calls) >= calls
        and any(isinstance(call, Receive) and call.deliveries for call in load.history.calls)
        for load in loads.values()
    )


def _all_done(url: str, loads: Mapping[Scene, SceneLoad]) -> bool:
    with looking(_unharmed(url)) as conn:
        return all(
            unfinished(conn, scene.value) == 0 and all_have_begun(conn, scene.value, load.groups)
            for scene, load in loads.items()
        )


def _unharmed(url: str) -> str:
    """For the test's own look, by the superuser."""
    own = make_url(url).set(username="postgres").update_query_dict({"options": UNHARMED})
    return own.render_as_string(hide_password=False)
