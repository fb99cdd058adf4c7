"""One run's servers, loads and databases; made when a case first asks, gone at the end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from benchmarks.filling import fill
from benchmarks.generator import Generator
from benchmarks.machine import Cores
from benchmarks.plan import Plan
from benchmarks.postgres import Postgres, postgres
from benchmarks.raw_insert import insert_rate
from benchmarks.servers import Server, Variant

VARIANTS = ("noop", "sqlite", "postgres")


class Bench:
    """What the cases work with. `names` are the variants of this run, in the order of the table."""

    def __init__(
        self, plan: Plan, names: Sequence[str], folder: Path, cores: Cores, postgres_url: str | None = None
    ) -> None:
        self.plan = plan
        self.names = [name for name in VARIANTS if name in names]
        self.cores = cores
        self._folder = folder
        self._log = folder / "servers.log"
        self._postgres_url = postgres_url
        self._closing = ExitStack()
        self._running = ExitStack()
        self._loads: dict[str, Generator] = {}
        self._stocked: set[str] = set()
        self._urls: dict[str, str] = {}
        self._insert_urls: dict[str, str] = {}
        self._filled_urls: dict[tuple[str, int], str] = {}
        self._postgres: Postgres | None = None
        self._case = ""

    def enter(self, case: str) -> None:
        self._case = case

    def say(self, what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{self._case}: {what}", end="", file=sys.stderr, flush=True)

    def load(self, name: str) -> Generator:
        """The load on the variant's server; both start at the first call."""
        if name not in self._loads:
            self._start(name)
        return self._loads[name]

    def stock(self, topic: str) -> None:
        """See that there is something to receive in every variant's store."""
        for name in self.names:
            if name != "noop" and name not in self._stocked:
                # A SQLite file has room for one server only: fill it while that is down.
                self._stop()
                self.say(f"storing {self.plan.stock:,} messages in {name}")
                fill(self._url(name), topic, self.plan.stock, self.plan.body_bytes)
                self._stocked.add(name)

    def insert_rate(self, name: str, rows: int) -> float:
        """Rows per second of the raw insert, see `raw_insert`, on a database that grows like the server's."""
        if name not in self._insert_urls:
            self._insert_urls[name] = self.new_url(name, "insert")
        return insert_rate(self._insert_urls[name], rows, self.plan.insert_seconds, self.cores.server)

    @contextmanager
    def backlog(self, name: str, sizes: Mapping[str, int], topic: str) -> Iterator[dict[str, Generator]]:
        """Servers of their own on stores of these sizes."""
        self._stop()
        with ExitStack() as running:
            yield {
                size: self._run(running, name, self._filled_url(name, count, topic)) for size, count in sizes.items()
            }

    def time_to_ready(self, name: str, topic: str) -> float:
        """Seconds from the start of a server process on the large store to its ready line."""
        self._stop()
        url = self._filled_url(name, self.plan.backlog_large, topic)
        self.say(name)
        with Server(Variant(name, url), self.cores.server, self._log) as server:
            return server.ready_s

    def new_url(self, name: str, purpose: str) -> str:
        """A database of the variant's kind, without what an earlier run left there."""
        if name == "postgres":
            return self.postgres.new_database(f"bench_{purpose}")
        path = self._folder / f"{purpose}.db"
        for suffix in ("", "-wal", "-shm", ".lock"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return f"sqlite:///{path}"

    @property
    def postgres(self) -> Postgres:
        if self._postgres is None:
            self._postgres = self._closing.enter_context(postgres(self._folder, self._postgres_url))
        return self._postgres

    def __enter__(self) -> Bench:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        self._stop()
        self._closing.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, name: str) -> None:
        self._loads[name] = self._run(self._running, name, None if name == "noop" else self._url(name))

    def _run(self, running: ExitStack, name: str, url: str | None) -> Generator:
        server = running.enter_context(Server(Variant(name, url), self.cores.server, self._log))
        return running.enter_context(Generator(server, self.cores.load))

    def _stop(self) -> None:
        self._loads.clear()
        self._running.close()

    def _url(self, name: str) -> str:
        if name not in self._urls:
            self._urls[name] = self.new_url(name, "main")
        return self._urls[name]

    def _filled_url(self, name: str, count: int, topic: str) -> str:
        if (name, count) not in self._filled_urls:
            url = self.new_url(name, f"backlog_{count}")
            self.say(f"storing {count:,} messages in {name}")
            fill(url, topic, count, self.plan.body_bytes)
            self._filled_urls[name, count] = url
        return self._filled_urls[name, count]
