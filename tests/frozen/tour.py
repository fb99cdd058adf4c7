"""Tours through seeded stores, and the files that say what was executed. `python -m tests.frozen.tour` writes them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from popserver.database import migrate
from popserver.database.database import Database
from popserver.sqlite.library import sqlite_module
from tests.frozen import acts_of_clients, acts_of_operators, acts_of_readers
from tests.frozen.acts import ACTS, TouredStore
from tests.frozen.catching import Catcher
from tests.frozen.seed import World, seeded, wear
from tests.support.postgres import fresh_database, postgres_server

HERE = Path(__file__).parent
ORDER = [each.__name__ for each in (acts_of_clients, acts_of_readers, acts_of_operators)]


class Tour(NamedTuple):
    """What one tour executed, as its file has it, and which operations of the writer it called."""

    file: Path
    text: str
    reached: set[Any]


OnVersion = Callable[[str], object]  # called with the database's version, before anything is done


def on_sqlite(starts: OnVersion) -> list[Tour]:
    version = f"SQLite {sqlite_module(own_process=True).sqlite_version}"
    starts(version)
    with tempfile.TemporaryDirectory() as folder, opened(f"sqlite:///{folder}/popmq.db") as database:
        migrate.upgrade(database)
        store = TouredStore(database)
        return [_tour("sqlite", version, store, seeded(store))]


def on_postgres(starts: OnVersion) -> list[Tour]:
    """On two copies of one seeded database; beside the second tour a reader's transaction stays open."""
    # A server of its own: with a given one's settings Postgres may choose other plans, and so it may while it vacuums.
    with postgres_server(own=True, settings=("autovacuum=off",)) as server, fresh_database(server) as seeded_url:
        with psycopg.connect(server.url) as conn:
            version = f"Postgres {conn.info.server_version // 10_000}"
        starts(version)
        with opened(seeded_url) as database:
            migrate.upgrade(database)
            store = TouredStore(database)
            world = seeded(store)
            store.conn.close()
        tours: list[Tour] = []
        for name in ("postgres", "postgres-beside-a-transaction"):
            with (
                fresh_database(server, like=seeded_url) as url,
                opened(url) as database,
                psycopg.connect(url) as reader,
            ):
                if tours:
                    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    reader.execute("SELECT count(*) FROM queue")
                else:
                    reader.close()
                but = tours[0].text if tours else ""
                tours.append(_tour(name, version, TouredStore(database, store.now_ms), world, but))
        return tours


@contextmanager
def opened(url: str) -> Iterator[Database]:
    """The database as it is served."""
    database = Database(url, durability="relaxed", own_process=True)
    try:
        yield database
    finally:
        database.close()


def _tour(name: str, version: str, store: TouredStore, world: World, but: str = "") -> Tour:
    """Without the statements that `but`, the text of another tour, has with the same plans."""
    wear(store)
    catcher = Catcher()
    for each in sorted(ACTS, key=lambda each: ORDER.index(each.__module__)):
        with catcher.act(each.__name__.replace("_", " "), store.database):
            each(store, world)
    store.check()
    store.conn.close()
    blocks = catcher.blocks(but=but.split("\n\n"))
    parts = (
        "\n\n".join((f"== {act}", *(shown for _, shown in of_act))) for act, of_act in groupby(blocks, itemgetter(0))
    )
    return Tour(HERE / f"{name}.txt", "\n\n".join((version, *parts)) + "\n", store.reached)


def main() -> None:
    for go in (on_sqlite, on_postgres):
        for each in go(lambda version: print(f"A tour on {version} ...")):
            each.file.write_text(each.text)
            print(f"{each.file.relative_to(Path.cwd())}: {len(each.text)} characters")


if __name__ == "__main__":
    sys.exit(main())
