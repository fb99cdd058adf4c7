"""One run's servers, loads and databases. They are made on first use and removed at the end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from benchmarks.filling import (
    fill,
    fill_delayed,
    fill_for_filters,
    fill_held,
    fill_in_order,
    fill_over_time,
    read_through,
)
from benchmarks.generator import Generator
from benchmarks.machine import Cores, cpu_seconds
from benchmarks.plan import Plan
from benchmarks.postgres import Postgres, postgres
from benchmarks.raw_insert import insert_rate
from benchmarks.servers import Server, Variant

VARIANTS = ("noop", "sqlite", "postgres")


class Way(NamedTuple):
    """A way to connect: the mode of the port, whether the load uses TLS, and what speaks gRPC."""

    tls: str = "plaintext"
    over_tls: bool = False
    engine: str = "builtin"


DOORS = {
    "plaintext": Way(),
    "permissive": Way("permissive"),
    "permissive+tls": Way("permissive", over_tls=True),
    "tls": Way("tls", over_tls=True),
}
ENGINES = {"builtin": Way(), "grpcio": Way(engine="grpcio")}


class Bench:
    """The environment of the cases. `names` are the variants of this run, in the order of the table."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        folder: Path,
        cores: Cores,
        postgres_url: str | None = None,
        popmqs: Mapping[str, Path] | None = None,
    ) -> None:
        self.plan = plan
        # The installations to measure, by their name in the table; without given ones, this checkout.
        self.given_popmqs = popmqs or {}
        self.popmqs = self.given_popmqs or {"this": Path(sys.executable).with_name("popmq")}
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
        self._filled_urls: dict[tuple[str, str], str] = {}
        self._postgres: Postgres | None = None
        self._case = ""

    @property
    def stores(self) -> list[str]:
        """The variants with a database."""
        return [name for name in self.names if name != "noop"]

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

    def load_over_time(self, name: str, topic: str, count: int) -> Generator:
        """The load on a server with `count` small messages, stored over a day."""
        key = f"{name}, {count}"
        if key not in self._loads:
            self._loads[key] = self._run(self._running, name, self._over_time_url(name, topic, count))
        # Each time, because the system may drop a file from its cache that was not read for a minute.
        self.say(f"reading {count:,} messages in {name}")
        read_through(self._over_time_url(name, topic, count))
        return self._loads[key]

    def stock(self, topic: str) -> None:
        """Make sure that every variant's database has messages to receive."""
        for name in self.stores:
            if name not in self._stocked:
                # A SQLite file can have only one server: fill it while the server is down.
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
        """Separate servers, on databases of these sizes."""
        self._stop()
        with ExitStack() as running:
            urls = {size: self._filled_url(name, count, topic) for size, count in sizes.items()}
            yield {size: self._run(running, name, url) for size, url in urls.items()}

    @contextmanager
    def doors(self, ways: Mapping[str, Way], topic: str) -> Iterator[dict[str, Generator]]:
        """A server on SQLite and a load for each way to connect; each has messages in the topic, unless it is empty."""
        self._stop()
        with ExitStack() as running:
            yield {name: self._run_door(running, name, way, topic) for name, way in ways.items()}

    @contextmanager
    def far_from_due(self, name: str, load: str) -> Iterator[Generator]:
        """A separate server on a database with many messages that are not due soon: delayed, or held."""
        self._stop()
        kind, fill_with = ("delayed", fill_delayed) if load == "due.delay" else ("held", fill_held)
        url = self.new_url(name, kind)
        self.say(f"storing {self.plan.far_from_due:,} {kind} messages in {name}")
        fill_with(url, f"bench-far-{kind}", self.plan.far_from_due, self.plan.body_bytes)
        with ExitStack() as running:
            yield self._run(running, name, url)

    @contextmanager
    def in_order(self, name: str, topics: Mapping[str, int]) -> Iterator[Generator]:
        """A separate server on topics whose messages are in this many message groups (0: in none)."""
        self._stop()
        url = self.new_url(name, "fifo")
        for topic, groups in topics.items():
            self.say(f"storing {self.plan.stock:,} messages in {groups:,} message groups in {name}")
            if groups:
                fill_in_order(url, topic, self.plan.stock, self.plan.body_bytes, groups)
            else:
                fill(url, topic, self.plan.stock, self.plan.body_bytes)
        with ExitStack() as running:
            yield self._run(running, name, url)

    @contextmanager
    def for_filters(self, name: str, topic: str) -> Iterator[Generator]:
        """A separate server on a database whose messages have properties."""
        self._stop()
        url = self.new_url(name, "filter")
        self.say(f"storing {self.plan.stock:,} messages with properties in {name}")
        fill_for_filters(url, topic, self.plan.stock, self.plan.body_bytes)
        with ExitStack() as running:
            yield self._run(running, name, url)

    def time_to_ready(self, name: str, topic: str) -> float:
        """Seconds from the start of a server process on the large store to its ready line."""
        self._stop()
        url = self._filled_url(name, self.plan.backlog_large, topic)
        self.say(name)
        # With default options: with the front, and a certificate to read.
        with Server(Variant(name, url, ("--tls", "permissive")), self.cores.server, self._log) as server:
            return server.ready_s

    def new_url(self, name: str, purpose: str) -> str:
        """A new database of the variant's kind; an older one with the same name is removed."""
        if name == "postgres":
            return self.postgres.new_database(f"bench_{purpose}")
        path = self._folder / f"{purpose}.db"
        for suffix in ("", "-wal", "-shm", ".lock"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return f"sqlite:///{path}"

    @contextmanager
    def serving(self, name: str, url: str) -> Iterator[Server]:
        """A separate server on a database that is filled already, without a load."""
        self._stop()
        with Server(Variant(name, url), self.cores.server, self._log) as server:
            yield server

    @contextmanager
    def alone(self, variant: Variant) -> Iterator[Server]:
        """This server without a load, on any core."""
        self._stop()
        with Server(variant, None, self._log) as server:
            yield server

    @contextmanager
    def folder(self, purpose: str) -> Iterator[Path]:
        """An empty folder next to the databases."""
        made = self._folder / purpose
        made.mkdir()
        yield made
        shutil.rmtree(made)

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
        return self._run_variant(running, Variant(name, url))

    @contextmanager
    def running(self) -> Iterator[ExitStack]:
        """Servers and loads of one case, which end with it."""
        self._stop()
        with ExitStack() as running:
            yield running

    def server(self, name: str, url: str) -> Server:
        """A server on this database, on any core, without TLS. The caller ends it."""
        return Server(Variant(name, url, ("--tls", "plaintext")), None, self._log)

    def postgres_cpu_s(self) -> float:
        """CPU seconds that Postgres' processes have used so far; 0 if it runs on another machine."""
        return sum(map(cpu_seconds, self.postgres.pids()))

    def _run_door(self, running: ExitStack, name: str, way: Way, topic: str) -> Generator:
        options: tuple[str, ...] = ("--tls", way.tls, "--grpc-engine", way.engine)
        folder = self._folder / f"tls_{name}"
        if way.tls != "plaintext":
            options += ("--tls-dir", str(folder))
        url = self.new_url("sqlite", f"door_{name}")
        if topic:
            fill(url, topic, self.plan.stock, self.plan.body_bytes)
        return self._run_variant(running, Variant(name, url, options, folder / "cert.pem" if way.over_tls else None))

    def _run_variant(self, running: ExitStack, variant: Variant) -> Generator:
        server = running.enter_context(Server(variant, self.cores.server, self._log))
        return running.enter_context(Generator(server, self.cores.load))

    def _stop(self) -> None:
        self._loads.clear()
        self._running.close()

    def _url(self, name: str) -> str:
        if name not in self._urls:
            self._urls[name] = self.new_url(name, "main")
        return self._urls[name]

    def _over_time_url(self, name: str, topic: str, count: int) -> str:
        size = self.plan.small_body_bytes
        return self.filled(name, f"over_time_{count}", lambda url: fill_over_time(url, topic, count, size))

    def _filled_url(self, name: str, count: int, topic: str) -> str:
        return self.filled(name, f"backlog_{count}", lambda url: fill(url, topic, count, self.plan.body_bytes))

    def filled(self, name: str, purpose: str, fill_with: Callable[[str], object]) -> str:
        """The URL of a database that is filled for the first case; later cases get it as the earlier ones left it."""
        if (name, purpose) not in self._filled_urls:
            url = self.new_url(name, purpose)
            self.say(f"storing messages in {name} ({purpose})")
            fill_with(url)
            self._filled_urls[name, purpose] = url
        return self._filled_urls[name, purpose]
