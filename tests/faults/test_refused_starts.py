"""A server that cannot do its work does not start: exit code 1 and one sentence that says what to do."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from popproto.v2 import definition_pb2 as pb
from popserver.database import migrate
from popserver.database.check import check_integrity
from popserver.database.database import Database
from popserver.model.errors import StoreUnavailable
from tests.support.raw_client import assert_is_a_sentence, raw_client
from tests.support.server_process import refused, served

PAGE = 4_096
MAGIC, PAGE_SIZE, SCHEMA_PAGE = 0, 16, 100


def _overwrite(at: int, data: bytes) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(data)

    return damage


def _truncate(keep: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with file.open("r+b") as opened:
            opened.truncate(keep(file.stat().st_size))

    return damage


def _other_content(data: bytes) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.write_bytes(data)

    return damage


def _every_page(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for page in range(PAGE, len(data), PAGE):
        data[page : page + 64] = random.Random(page).randbytes(64)
    file.write_bytes(data)


DAMAGES = {
    "random bytes": _other_content(random.Random(1).randbytes(100_000)),
    "text": _other_content(b"this is no database\n" * 1_000),
    "its first bytes flipped": _overwrite(MAGIC, b"\x00\x01\x02"),
    "a page size that cannot be": _overwrite(PAGE_SIZE, b"\xff\xff"),
    "its schema overwritten": _overwrite(SCHEMA_PAGE, random.Random(2).randbytes(PAGE - SCHEMA_PAGE)),
    "every page but the first damaged": _every_page,
    "cut after 10 bytes": _truncate(lambda _size: 10),
    "cut after its header": _truncate(lambda _size: 100),
    "cut in half": _truncate(lambda size: size // 2),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_file(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    file = _made(tmp_path)
    damage(file)
    before = file.read_bytes()
    _assert_refused(f"sqlite:///{file}", str(file), "damaged", "backup")
    assert file.read_bytes() == before, "what may still be rescued was written to"


async def test_a_page_that_is_damaged_elsewhere_is_met_later(tmp_path: Path) -> None:
    """The start does not read the whole file; who meets the page is told, and the others are served."""
    file, url = tmp_path / "popmq.db", f"sqlite:///{tmp_path / 'popmq.db'}"
    async with served(url) as server, raw_client(server.endpoint) as here:
        for number in range(40):
            assert (await here.send(f"m{number}", b"body %02d" % number + b"x" * 1_500)).code == pb.OK
    _all_in_the_file(file)
    data = bytearray(file.read_bytes())
    page = data.index(b"body 20xxx") // PAGE * PAGE
    data[page : page + 64] = random.Random(3).randbytes(64)
    file.write_bytes(data)
    async with served(url) as server, raw_client(server.endpoint) as here:
        with pytest.raises(AssertionError, match="is damaged"):
            await here.drain(40)
        assert server.is_running
    with pytest.raises(StoreUnavailable, match="the database file is damaged"):
        database = Database(url, own_process=True)
        try:
            with database.read() as conn:
                check_integrity(conn)
        finally:
            database.close()


async def test_a_second_server_on_the_same_file(sqlite_url: str) -> None:
    async with served(sqlite_url) as first:
        _assert_refused(sqlite_url, "in use by another popmq server", "use another file")
        assert first.is_running


async def test_a_second_server_on_the_same_postgres_is_welcome(postgres_url: str) -> None:
    async with served(postgres_url) as first, served(postgres_url) as second:
        async with raw_client(first.endpoint) as here, raw_client(second.endpoint) as there:
            assert (await here.send("m")).code == pb.OK
            assert set(await there.drain(1)) == {"m"}
        assert first.is_running and second.is_running


def test_a_schema_newer_than_the_code(database_url: str) -> None:
    database = Database(database_url)
    migrate.upgrade(database)
    with database.writing.connect() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    _assert_refused(database_url, "schema 9999", f"newer than this popmq's {migrate.HEAD}", "use the newer popmq")


def test_a_database_of_another_program(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with sqlite3.connect(file) as conn:
        conn.execute("CREATE TABLE message (text TEXT)")
    conn.close()
    _assert_refused(f"sqlite:///{file}", "tables of another program (message)", "choose an empty database")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    _assert_refused(f"sqlite:///{tmp_path / 'nowhere' / 'popmq.db'}", "cannot be opened", "choose a writable folder")


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    _assert_refused(f"sqlite:///{tmp_path}", "cannot be written", "choose a file")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("popmq.db", ("'popmq.db' is malformed", "write sqlite:///popmq.db or postgresql://")),
        ("mysql://localhost/popmq", ("'mysql'", "sqlite and postgresql")),
        ("postgresql://postgres@127.0.0.1:1/popmq", ("127.0.0.1:1", "does not answer")),
    ],
)
def test_a_database_that_cannot_be(url: str, words: tuple[str, ...]) -> None:
    _assert_refused(url, *words)


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async with served(f"sqlite:///{tmp_path / 'one.db'}") as first:
        port = first.endpoint.rpartition(":")[2]
        _assert_refused(f"sqlite:///{tmp_path / 'two.db'}", f"127.0.0.1:{port}", "--port", options=("--port", port))


def _assert_refused(url: str, *words: str, options: tuple[str, ...] = ()) -> None:
    ended = refused(url, *options)
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    sentence = ended.stderr.strip()
    assert sentence.startswith("popmq: "), sentence
    assert_is_a_sentence(sentence)
    for word in words:
        assert word in sentence, f"{word!r} is missing in: {sentence}"


def _made(folder: Path) -> Path:
    """A sound database file of a few dozen pages, closed."""
    file = folder / "popmq.db"
    database = Database(f"sqlite:///{file}")
    migrate.upgrade(database)
    database.close()
    _all_in_the_file(file)
    return file


def _all_in_the_file(file: Path) -> None:
    """Nothing stands in the WAL alone."""
    conn = sqlite3.connect(str(file))
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()
