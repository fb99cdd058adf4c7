"""python -m proof.soak: a server under load for so many minutes, on SQLite and then on Postgres; see `--help`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from proof.soak.level import HEADING
from proof.soak.run import Result, Told, hold, soak
from proof.totals import add_totals
from tests.support.postgres import PostgresServer, fresh_database, postgres_server

HARNESS = "soak"
DATABASES = ("sqlite", "postgres")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m proof.soak",
        description="Run a server under steady load, and find what grows: memory, open files, threads, tasks, log,"
        " tables, costs.",
    )
    parser.add_argument("--minutes", type=float, default=10, help="of each database; 0: none (10)")
    parser.add_argument(
        "--held",
        type=float,
        default=0,
        metavar="MINUTES",
        help="then, on Postgres, beside a transaction that stays open for so long (0: not)",
    )
    parser.add_argument("--before", type=float, default=5, metavar="MINUTES", help="of load before that (5)")
    parser.add_argument("--database", choices=DATABASES, help="only this one")
    parser.add_argument("--seed", type=int, default=1, help="of the choices of clients (1)")
    parser.add_argument("--samples", metavar="FILE", help="write each sample there, a line of JSON (none)")
    parser.add_argument("--no-totals", action="store_true", help="leave proof/totals alone")
    return parser.parse_args(words)


async def run(options: argparse.Namespace, postgres: PostgresServer | None) -> int:
    """The exit code: 1 if something grew."""
    violations = 0
    told = _writer(options.samples)
    for database in DATABASES if options.database is None else (options.database,):
        if options.minutes:
            with _database(database, postgres) as url:
                result = await soak(url, options.minutes, seed=options.seed, told=told)
            violations += _tell(
                f"{options.minutes:g} minutes on {database}", result, options, {"minutes": options.minutes}
            )
    if postgres is not None and options.held:
        with _database("postgres", postgres) as url:
            result = await hold(url, options.held, seed=options.seed, before_minutes=options.before, told=told)
        violations += _tell(
            f"beside a transaction that is open for {options.held:g} minutes", result, options,
            {"minutes_beside_an_open_transaction": options.held},
        )  # fmt: skip
    return int(violations > 0)


def _writer(file: str | None) -> Told:
    def write(sample: dict[str, float]) -> None:
        if file is not None:
            with Path(file).open("a") as lines:
                lines.write(json.dumps({"at_s": round(time.time(), 1), **sample}) + "\n")

    return write


def _tell(what: str, result: Result, options: argparse.Namespace, minutes: dict[str, float]) -> int:
    print(f"\n{what}: {', '.join(f'{count:,} {name}' for name, count in sorted(result.counts.items()))}")
    print("\n".join([HEADING, *map(str, result.growths)]), flush=True)
    violations = len(result.violations)
    if result.fails:
        violations += 1
        print("Clients fail.", flush=True)
    if result.violations:
        named = f" --database {options.database}" if options.database else ""
        print(f"It grows. Repeat: python -m proof.soak --minutes {options.minutes:g} --held {options.held:g}"
              f" --seed {options.seed}{named}", flush=True)  # fmt: skip
    if not options.no_totals:
        counts = {name: round(each) for name, each in minutes.items()}
        add_totals(HARNESS, counts | {"messages": result.counts["messages"], "violations": violations})
    return violations


@contextlib.contextmanager
def _database(name: str, postgres: PostgresServer | None) -> Iterator[str]:
    if name == "postgres":
        assert postgres is not None
        with fresh_database(postgres) as url:
            yield url
    else:
        with tempfile.TemporaryDirectory(prefix="popmq-soak-") as folder:
            yield f"sqlite:///{Path(folder) / 'soak.db'}"


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    logging.getLogger("popclient").setLevel(logging.ERROR)  # it names each message that a listener fails on purpose
    with contextlib.ExitStack() as stack:
        postgres = None
        if options.database != "sqlite":
            # As Postgres has it by default; that of tests is smaller.
            postgres = stack.enter_context(postgres_server(own=True, settings=("shared_buffers=128MB",)))
            assert isinstance(postgres, PostgresServer)
        return asyncio.run(run(options, postgres))


if __name__ == "__main__":
    sys.exit(main())
