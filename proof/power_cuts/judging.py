"""Opens what a power cut has left as the product does, and judges it by what clients had seen until then."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import DBAPIError

from popserver.database.database import Database
from popserver.model.errors import PopError
from popserver.model.message import id_from_bytes
from proof.history.events import CommitOffset, DelayedSend, Pull, ReadOffset, Redrive
from proof.history.scenes import Scene, judge
from proof.power_cuts.recording import Image, Recording
from proof.torture.loads import TOPIC, SceneLoad
from proof.torture.place import OPTIONS, Place
from proof.torture.round import DRAIN_TIMEOUT_S, drain
from tests.support.checker import Call, History, Outcome, Receive, Violation
from tests.support.final_state import final, looking
from tests.support.postgres import PostgresServer, give_to_postgres, new_folder
from tests.support.server_process import served

_MEMORY = Path("/dev/shm")  # images are written there if it is there
# What processes share while they run; it is gone with them, or made anew.
_SHARED_MEMORY = "-shm"
_OF_PROCESSES = {"postmaster.pid"}
_DELAYED = "SELECT message_id FROM pending WHERE kind = 'DELAY'"
_OFFSETS = """
SELECT g.name, q.number, p.next_offset
FROM progress p JOIN consumer_group g ON g.group_id = p.group_id
JOIN queue q ON q.queue_id = p.queue_id JOIN topic t ON t.topic_id = q.topic_id
WHERE g.mode = 'PULL' AND t.name = :topic
"""


class Finding(NamedTuple):
    """An image that broke a promise."""

    image: int
    keep: str
    violations: list[Violation]


def judge_images(
    folder: Path, seed: int, cuts: Sequence[int], serve_every: int = 0
) -> tuple[Counter[str], list[Finding]]:
    """Judge the images of these cuts; what was counted, and what was found.

    `serve_every`: of so many images, a server is started on one, and all is consumed; 0: on none.
    """
    recording = Recording(folder)
    counts: Counter[str] = Counter()
    findings: list[Finding] = []
    for image in recording.images(seed, cuts):
        is_served = bool(serve_every) and image.number % serve_every == 0
        violations = judge_image(recording, image, is_served=is_served)
        counts["postgres_images" if recording.on_postgres else "images"] += 1
        counts["served"] += is_served
        if violations:
            findings.append(Finding(image.number, image.keep, violations))
    return counts, findings


def judge_image(recording: Recording, image: Image, *, is_served: bool = False) -> list[Violation]:
    """Every broken promise of one image."""
    scene, whole = recording.history
    history = until(whole, image.at_ms)
    try:
        with _opened(recording, image) as url:
            violations = _judge_store(url, scene, history, image.at_ms)
            if is_served and not violations:
                violations = asyncio.run(_serve(url, scene, history))
    except (PopError, DBAPIError, AssertionError) as error:
        return [Violation("I13", f"{type(error).__name__}: {error}")]
    return violations


@contextmanager
def _opened(recording: Recording, image: Image) -> Iterator[str]:
    """The URL of the image's database, on a server of its own where it is Postgres."""
    within = _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())
    if not recording.on_postgres:
        with tempfile.TemporaryDirectory(prefix="popmq-image-", dir=within) as place:
            _write(Path(place), image)
            yield f"sqlite:///{place}/{recording.database}"
        return
    folder = new_folder(within)
    server = PostgresServer(folder, durable=False)
    try:
        for each in recording.empty_folders:
            (server.data / each).mkdir(parents=True)
        _write(server.data, image)
        server.data.chmod(0o700)
        give_to_postgres(folder)
        server.restart()
        yield make_url(server.url).set(database=recording.database).render_as_string(hide_password=False)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, image: Image) -> None:
    for path, content in image.files.items():
        if not path.endswith(_SHARED_MEMORY) and path not in _OF_PROCESSES:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


@contextmanager
def _looking(url: str) -> Iterator[Connection]:
    """A SQLite file is opened as a server opens it."""
    if not url.startswith("sqlite"):
        with looking(url) as conn:
            yield conn
        return
    database = Database(url, must_exist=True, own_process=True)
    try:
        with database.connect_writer() as conn:
            yield conn
    finally:
        database.close()


def _judge_store(url: str, scene: Scene, history: History, at_ms: float) -> list[Violation]:
    """What the database holds, before any server has started on it."""
    with _looking(url) as conn:
        end = dataclasses.replace(final(conn, TOPIC), drained=False)
        delayed = {id_from_bytes(row.message_id) for row in conn.execute(text(_DELAYED))}
        offsets = {(row.name, row.number): row.next_offset for row in conn.execute(text(_OFFSETS), {"topic": TOPIC})}
    committed = {(call.group, call.queue) for call in history.calls if isinstance(call, CommitOffset)}
    reads = [ReadOffset(Outcome.OK, at_ms, at_ms, *key, offsets.get(key, -1)) for key in sorted(committed)]
    # What is delayed is stored elsewhere, and nobody consumes anything, so I14 says nothing.
    known = [call for call in history.calls if not (isinstance(call, DelayedSend) and call.message_id in delayed)]
    found = judge(scene, History([*known, *reads]), end)
    return [each for each in found if each.invariant != "I14"]


async def _serve(url: str, scene: Scene, history: History) -> list[Violation]:
    """Start a server on it, and consume all."""
    load = SceneLoad(scene, seed=0)
    load.history = history
    async with served(url, *OPTIONS) as server:
        drained = await drain(load, Place(url, [server]), DRAIN_TIMEOUT_S)
    with looking(url) as conn:
        return judge(scene, load.history, dataclasses.replace(final(conn, TOPIC), drained=drained))


def until(history: History, at_ms: float) -> History:
    """What clients knew at that moment: a call without its answer may have happened or not."""
    return History([_cut_off(call, at_ms) for call in history.calls if call.invoked_ms < at_ms])


def _cut_off(call: Call, at_ms: float) -> Call:
    if call.completed_ms <= at_ms:
        return call
    unknown = dataclasses.replace(call, outcome=Outcome.UNKNOWN, completed_ms=at_ms)
    match unknown:
        case Receive():
            return dataclasses.replace(unknown, deliveries=())
        case Pull():
            return dataclasses.replace(unknown, messages=())
        case Redrive():
            return dataclasses.replace(unknown, sent_ids=())
    return unknown
