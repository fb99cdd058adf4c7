"""Walk all small worlds on SQLite and Postgres: python -m proof.worlds --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from popserver.database import migrate
from popserver.database.database import Database
from proof.totals import replace_totals
from proof.worlds.catalogue import CLOSED, TO_A_DEPTH
from proof.worlds.law import Law, Rules
from proof.worlds.space import explore
from proof.worlds.walk import Found, Walk, walked
from tests.support.postgres import fresh_database, postgres_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.worlds", description=__doc__)
    parser.add_argument(
        "--depth", type=int, default=5, help="events in a world of two messages; 0: until nothing new is found"
    )
    parser.add_argument("--world", choices=[*CLOSED, *TO_A_DEPTH], help="only this one")
    parser.add_argument("--database", choices=["sqlite", "postgres"], help="only this one")
    given = parser.parse_args()
    violations = 0
    for kind in ("sqlite", "postgres") if given.database is None else (given.database,):
        with _database(kind) as database:
            for name, rules in (CLOSED | TO_A_DEPTH).items():
                if given.world in {None, name}:
                    depth = None if name in CLOSED or given.depth == 0 else given.depth
                    violations += _walk(f"{kind}, {name}", database, rules, depth)
    return min(violations, 1)


def _walk(name: str, database: Database, rules: Rules, depth: int | None) -> int:
    """Walk one world, tell its numbers and count them; 1 if a transition differs."""
    space = explore(Law(rules), depth)
    with walked(database) as store:
        walk = Walk(store, rules, space)
        found = walk.run()
    end = "closed" if space.is_closed else f"depth {depth}"
    print(f"{name}: {len(space.steps)} states, {walk.transitions} transitions, {end}", flush=True)
    if found is not None:
        _tell(found)
    counts = {"states": len(space.steps), "transitions": walk.transitions, "violations": int(found is not None)}
    replace_totals("worlds", f"{name}, {'closed' if depth is None else f'depth {depth}'}", counts)
    return counts["violations"]


def _tell(found: Found) -> None:
    print("A transition differs. The way, from an empty topic:")
    for what in found.way:
        print("  ", *(f"{name}={value}" for name, value in what._asdict().items()))
    print(f"The law says:   {found.expected}\nThe store does: {found.actual}", flush=True)


@contextmanager
def _database(kind: str) -> Iterator[Database]:
    if kind == "sqlite":
        database = Database("sqlite://", durability="relaxed", own_process=True)
        migrate.upgrade(database)
        yield database
        database.close()
        return
    with postgres_server() as server, fresh_database(server) as url:
        database = Database(url, durability="relaxed")
        migrate.upgrade(database)
        yield database
        database.close()


if __name__ == "__main__":
    sys.exit(main())
