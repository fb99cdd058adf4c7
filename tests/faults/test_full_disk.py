"""A disk that fills up: every call gets a clear answer, the server goes on, and works again when space returns."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from popproto.v2 import definition_pb2 as pb
from popserver import embedded
from popserver.database.check import check_integrity
from tests.support.final_state import looking
from tests.support.raw_client import RawClient, assert_says, raw_client
from tests.support.server_process import served

BODY = bytes(32 * 1024)
BALLAST = bytes(1024 * 1024)
MORE_THAN_FITS = 400


async def test_a_full_disk(tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(BALLAST)
        url = f"sqlite:///{disk / 'popmq.db'}"
        async with served(url) as server, raw_client(server.endpoint) as client:
            await _lives_through(client, ballast.unlink)
            assert await server.stop() == 0
        with looking(url) as conn:
            check_integrity(conn)


async def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The same answer from SQLite, where no small disk can be made."""
    url = f"sqlite:///{tmp_path / 'popmq.db'}"
    with _pages_limited(1_000) as limit_pages, embedded(url) as broker:
        async with raw_client(broker.endpoint) as client:
            await _lives_through(client, lambda: limit_pages(1_000_000))
    with looking(url) as conn:
        check_integrity(conn)


async def _lives_through(client: RawClient, make_space: Callable[[], None]) -> None:
    assert (await client.send("before")).code == pb.OK
    _, held = await client.receive()
    stored, refused = await _fill(client)
    # It says so again and again, and goes on answering what needs no space.
    for _ in range(5):
        assert_says(await client.send(refused, BODY), "full", "nothing was stored", "free some space")
    assert (await client.route()).code == pb.OK
    acked = (await client.ack(*held))[0]
    if acked.code != pb.OK:
        assert_says(acked, "full")
    make_space()
    assert (await client.send(refused, BODY)).code == pb.OK
    assert [status.code for status in await client.ack(*held)] == [pb.OK]
    wanted = dict.fromkeys([*stored, refused], BODY)
    assert await client.drain(len(wanted)) == wanted


async def _fill(client: RawClient) -> tuple[list[str], str]:
    """Send until there is no room; what was stored, and the one that was refused."""
    stored: list[str] = []
    for number in range(MORE_THAN_FITS):
        status = await client.send(f"m{number}", BODY)
        if status.code != pb.OK:
            assert_says(status, "full")
            return stored, f"m{number}"
        stored.append(f"m{number}")
    raise AssertionError(f"{MORE_THAN_FITS} messages of {len(BODY)} bytes had room")


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 4 MiB in memory."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def _pages_limited(count: int) -> Iterator[Callable[[int], None]]:
    """Limits the pages of every database opened meanwhile; yields what sets another limit for the open ones."""
    opened: list[Any] = []

    def limit(connection: Any, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {count}")
        opened.append(connection)

    def limit_all(new_count: int) -> None:
        for connection in opened:
            with suppress(connection.ProgrammingError):  # closed meanwhile
                connection.execute(f"PRAGMA max_page_count = {new_count}")

    event.listen(Engine, "connect", limit)
    try:
        yield limit_all
    finally:
        event.remove(Engine, "connect", limit)
