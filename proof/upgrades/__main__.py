"""python -m proof.upgrades: every earlier version's stores, servers and clients beside those of this checkout."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from popserver.database.migrate import FIRST
from proof.totals import add_totals
from proof.upgrades import pairs
from proof.upgrades.upgrade import Result, too_old, two_at_once, upgrade
from proof.upgrades.versions import Version, found, next_one, take_out, this_one
from tests.support.postgres import GivenServer, PostgresServer, fresh_database, postgres_server

HARNESS = "upgrades"
DATABASES = ("sqlite", "postgres")
# Where the first of two servers stops, if the migration has so many statements.
STOPS = (4, 12, 20, 28)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.upgrades",
        description="Fill stores with earlier versions' own servers and clients, upgrade them with a kill before every"
        " statement of the migration, and judge them; refuse what must be refused; play clients against servers.",
    )
    parser.add_argument("--revision", help="only the version of this schema (all)")
    parser.add_argument("--database", choices=DATABASES, help="only on this one (both)")
    parser.add_argument("--every", type=int, default=1, help="kill before each N-th statement (1)")
    parser.add_argument("--no-totals", action="store_true", help="leave proof/totals alone")
    return parser.parse_args(words)


class Run:
    """All parts, one after the other; each has a store of its own."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, postgres: PostgresServer | GivenServer | None
    ) -> None:
        self._options, self._folder, self._postgres = options, folder, postgres
        self._numbers = 0
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def version(self, version: Version) -> None:
        self.counts["versions"] += 1
        for database in DATABASES:
            if self._options.database in {None, database}:
                self._on(version, database)

    def _on(self, version: Version, database: str) -> None:
        if version.revision < FIRST:
            self._part(version, database, "refused", too_old)
        else:
            self.upgraded(version, this_one(), database)
        self._part(version, database, "its client here", pairs.old_client)
        self._part(version, database, "this client there", pairs.new_client)

    def upgraded(self, version: Version, to: Version, database: str) -> None:
        """Its stores become those of the other version."""
        every = self._options.every
        done = self._part(version, database, f"upgraded to {to}", functools.partial(upgrade, to=to, every=every))
        statements = (done.counts["kills_in_mid_migration"] - 1) * every + 1  # at least
        for at in (each for each in STOPS if database == "postgres" and each <= statements):
            for killed in (False, True):
                part = functools.partial(two_at_once, to=to, at=at, killed=killed)
                self._part(version, database, f"two at once, {at}{', killed' * killed}", part)

    def _part(self, version: Version, database: str, name: str, part: Callable[[Version, str], Result]) -> Result:
        with self._store(database) as url:
            result = part(version, url)
        self.counts += result.counts
        self.violations += result.violations
        words = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in result.counts.items())
        print(f"{version} on {database}, {name}: {words}, {len(result.violations)} violations", flush=True)
        print("".join(f"  {each[:1_000]}\n" for each in result.violations[:20]), end="", flush=True)
        return result

    @contextlib.contextmanager
    def _store(self, database: str) -> Iterator[str]:
        self._numbers += 1
        if database == "sqlite":
            yield f"sqlite:///{self._folder}/store-{self._numbers}.db"
        else:
            assert self._postgres is not None
            with fresh_database(self._postgres) as url:
                yield url


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    versions = [each for each in found() if options.revision in {None, each.revision}]
    if not versions:
        print("No earlier version is in this clone's history; a shallow one becomes whole with: git fetch --unshallow")
        if options.revision:
            return 2
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="popmq-upgrades-")))
        postgres = None if options.database == "sqlite" else stack.enter_context(postgres_server())
        run = Run(options, folder, postgres)
        for each in versions:
            run.version(take_out(each, folder))
        if options.revision is None:
            planted = next_one(folder)
            for database in (each for each in DATABASES if options.database in {None, each}):
                run.upgraded(this_one(), planted, database)
    print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(run.counts.items())))
    if run.violations:
        print(f"{len(run.violations)} violations; repeat those of a version with: make upgrades ARGS='--revision 0100'")
    if not (options.no_totals or options.revision or options.database or options.every > 1):
        del run.counts["versions"]  # each run has the same
        add_totals(HARNESS, {**run.counts, "violations": len(run.violations)})
    return 1 if run.violations else 0


if __name__ == "__main__":
    sys.exit(main())
