"""A run of clients on a database whose writes and syncs are recorded; images of power cuts are made from it."""

from __future__ import annotations

import asyncio
import bisect
import json
import random
import shutil
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from proof.history.lines import read_history, write_history
from proof.history.scenes import Scene
from proof.power_cuts.disk import Disk, Keep
from proof.power_cuts.trace import Event, has_ended, read_trace, tracer
from proof.torture.loads import SceneLoad
from proof.torture.place import OPTIONS
from tests.support.checker import History, Outcome
from tests.support.postgres import PostgresServer, fresh_database, new_folder
from tests.support.server_process import served
from tests.support.waiting import eventually
from tests.support.workload import now_ms

SCENES = tuple(each for each in Scene if each is not Scene.SPARK)  # a query keeps its own state, on its own disk
CALLS = 1_500  # of one run that are OK: the log of the database is full, and checkpointed, several times
ENDS_WITHIN_S = 600.0
CLOCK_EVERY_S = 0.05
# Of Postgres: the log goes on in other files, and checkpoints come during a run.
SMALL_LOG = ("max_wal_size=4MB", "min_wal_size=2MB", "checkpoint_timeout=30s")
SEGMENT_MIB = 1


class Durability(StrEnum):
    """What is synced: all that an OK stands for, only what keeps a database whole, or nothing."""

    FULL = "full"
    RELAXED = "relaxed"
    NONE = "none"


class Plan(NamedTuple):
    """What a run is."""

    seed: int
    on_postgres: bool = False
    scene: Scene | None = None  # None: by the seed
    durability: Durability = Durability.FULL
    calls: int = CALLS

    @property
    def played(self) -> Scene:
        return self.scene or random.Random(f"scene {self.seed}").choice(SCENES)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.played} on {'Postgres' if self.on_postgres else 'SQLite'}"


class Image(NamedTuple):
    """What a power cut has left: files by their paths, and when it came (ms of the machine's monotonic clock)."""

    number: int
    at_ms: float
    keep: Keep
    files: dict[str, bytes]


class Recording:
    """A run in a folder: `trace`, `history.jsonl`, `run.json`, and for Postgres `base`, what the disk held before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        facts = json.loads((folder / "run.json").read_text())
        self.on_postgres: bool = facts["on_postgres"]
        self.database: str = facts["database"]  # its name; with SQLite the file's
        self._root = Path(facts["root"])  # the folder whose files were recorded
        self._worked_ms: tuple[float, float] = tuple(facts["worked_ms"])  # when clients began and ended
        self._clocks: list[tuple[float, float]] = [tuple(pair) for pair in facts["clocks"]]
        self._base = _files(folder / "base")

    @cached_property
    def history(self) -> tuple[Scene, History]:
        scene, history, _ = read_history(self.folder / "history.jsonl")
        return scene, history

    @property
    def empty_folders(self) -> list[str]:
        """Postgres does not start without them."""
        base = self.folder / "base"
        return [str(path.relative_to(base)) for path in base.rglob("*") if path.is_dir() and not any(path.iterdir())]

    def images(self, seed: int, cuts: Iterable[int]) -> Iterator[Image]:
        """Images of power cuts while clients worked; of each cut one for each way of keeping changes.

        `cuts`: their numbers; when a cut of a number comes follows from the seed.
        """
        begins_ms, ends_ms = self._worked_ms
        lines = [event.line for event in self._events if begins_ms < self._ms_of(event.at_s) < ends_ms]
        chosen = deque(sorted((random.Random(f"cut {seed} {cut}").choice(lines), cut) for cut in cuts))
        disk = Disk(self._base)
        for event in self._events:
            while chosen and chosen[0][0] <= event.line:
                yield from _images_now(disk, chosen.popleft()[1], self._ms_of(event.at_s), seed)
            disk.apply(event.line, event.change)

    @cached_property
    def _events(self) -> list[Event]:
        sizes = {path: len(content) for path, content in self._base.items()}
        return list(read_trace(self.folder / "trace", self._root, sizes))

    def _ms_of(self, at_s: float) -> float:
        """The monotonic time of a time of the wall clock, which may have been set meanwhile."""
        place = bisect.bisect_right(self._clocks, at_s, key=lambda pair: pair[0])
        wall_s, monotonic_ms = self._clocks[max(0, place - 1)]
        return monotonic_ms + (at_s - wall_s) * 1_000


def _images_now(disk: Disk, cut: int, at_ms: float, seed: int) -> Iterator[Image]:
    """Without changes that may be lost there is only one."""
    for place, keep in enumerate(Keep if disk.waiting else (Keep.NOTHING,)):
        number = cut * len(Keep) + place
        yield Image(number, at_ms, keep, disk.image(keep, random.Random(f"image {seed} {number}")))


async def record(plan: Plan, folder: Path) -> Recording:
    """Let clients work until so many calls are OK. Raises RuntimeError where programs cannot be traced."""
    load = SceneLoad(plan.played, plan.seed)
    trace = folder / "trace"
    clocks: list[tuple[float, float]] = []
    options = (*OPTIONS, "--durability", "full" if plan.durability is Durability.FULL else "relaxed")
    place = (_postgres if plan.on_postgres else _sqlite)(trace, folder, plan.durability)
    async with place as (url, root, under), served(url, *options, under=under) as server:
        await load.prepare(server.endpoint)
        begins_ms = now_ms()
        looking = asyncio.create_task(_look_at_clocks(clocks))
        working = asyncio.create_task(load.run(server.endpoint))
        try:
            await eventually(lambda: _succeeded(load.history, working, plan.calls), "calls", within_s=ENDS_WITHIN_S)
        finally:
            load.stop()
            await working
            ends_ms = now_ms()
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking
    facts = {
        "on_postgres": plan.on_postgres,
        "database": url.rpartition("/")[2],
        "root": str(root),
        "worked_ms": (begins_ms, ends_ms),
        "clocks": clocks,
    }
    (folder / "run.json").write_text(json.dumps(facts))
    write_history(folder / "history.jsonl", plan.played, load.history, None)
    return Recording(folder)


@asynccontextmanager
async def _sqlite(trace: Path, folder: Path, durability: Durability) -> AsyncIterator[tuple[str, Path, list[str]]]:
    """A new file, whose server is recorded."""
    root = folder / "database"
    root.mkdir()
    under = [*tracer(trace), sys.executable, "-m", "proof.power_cuts.server", durability]
    yield f"sqlite:///{root / 'power.db'}", root, under
    await _written(trace)


@asynccontextmanager
async def _postgres(trace: Path, folder: Path, durability: Durability) -> AsyncIterator[tuple[str, Path, list[str]]]:
    """A Postgres that is recorded, with a new database."""
    place = new_folder()
    server = PostgresServer(place, durable=durability is not Durability.NONE, settings=SMALL_LOG)
    try:
        server.create(segment_mib=SEGMENT_MIB)
        with fresh_database(server) as url:
            server.stop()
            shutil.copytree(server.data, folder / "base")
            server.under = tracer(trace)
            server.restart()
            yield url, server.data, []
    finally:
        server.stop()
        await _written(trace)
        shutil.rmtree(place, ignore_errors=True)


async def _written(trace: Path) -> None:
    """Wait until strace has written all."""
    await eventually(lambda: asyncio.to_thread(has_ended, trace), "the recording ends", within_s=60)


async def _look_at_clocks(clocks: list[tuple[float, float]]) -> None:
    """Times of the recording are of the wall clock, those of a history of the monotonic one."""
    while True:
        clocks.append((time.time(), now_ms()))
        await asyncio.sleep(CLOCK_EVERY_S)


async def _succeeded(history: History, working: asyncio.Task[None], count: int) -> bool:
    return working.done() or sum(call.outcome is Outcome.OK for call in history.calls) >= count


def _files(folder: Path) -> dict[str, bytes]:
    """All files below a folder by their paths from there; none if it is not there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
