"""Where a round happens: a database, the servers on it, and the proxies before the servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import make_url

from proof.history.events import ClockStep
from proof.surroundings import ALONE, Surroundings
from proof.torture.client_processes import ClientProcess
from proof.torture.commands import command_of, slow_postgres
from proof.torture.proxy import FaultyProxy
from proof.torture.server_clock import set_clock
from proof.torture.spark_process import SparkProcess
from tests.postgres.pgbouncer import pgbouncer
from tests.support.checker import Outcome
from tests.support.hostile_settings import UNHARMED, hostile_database
from tests.support.postgres import PostgresServer
from tests.support.server_process import ServerProcess, served
from tests.support.workload import now_ms

# Holds of less than a second, so that many of them end while something is killed or stopped.
OPTIONS = ("--min-invisible", "0s", "--tls", "plaintext", "--transaction-timeout", "1s",
           "--transaction-check-interval", "1s", "--transaction-checks", "3")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How many servers there are, and on which database."""

    name: str
    on_postgres: bool
    servers: int


LAYOUTS = {
    each.name: each
    for each in (
        Layout("sqlite", on_postgres=False, servers=1),
        Layout("postgres", on_postgres=True, servers=1),
        Layout("two", on_postgres=True, servers=2),
        Layout("three", on_postgres=True, servers=3),
    )
}


@dataclass
class Place:
    """A running layout. Clients of a round with proxies only know the proxies.

    database_url: for who looks on, whatever servers find around them. clock: the file of their system clock, if it is
    one that can be set.
    """

    database_url: str
    servers: list[ServerProcess]
    postgres: PostgresServer | None = None
    proxies: list[FaultyProxy] = field(default_factory=list)
    programs: list[ClientProcess] = field(default_factory=list)
    spark: SparkProcess | None = None
    clock: Path | None = None
    clock_steps: list[ClockStep] = field(default_factory=list)
    sets_clock: bool = False
    is_planted: bool = False  # servers run under a command that plants a fault

    @property
    def endpoints(self) -> list[str]:
        return [each.endpoint for each in self.proxies or self.servers]

    def set_clock(self, wrong_ms: float) -> None:
        """The servers' system clock is wrong by so much from now on."""
        assert self.clock is not None
        before_ms = sum(each.by_ms for each in self.clock_steps)
        began_ms = now_ms()
        set_clock(self.clock, wrong_ms)
        self.clock_steps.append(ClockStep(Outcome.OK, began_ms, now_ms(), wrong_ms - before_ms))


@asynccontextmanager
async def open_place(
    layout: Layout,
    folder: Path,
    postgres: PostgresServer | None,
    *,
    with_proxies: bool,
    under: Sequence[str] = (),
    around: Surroundings = ALONE,
    more: Sequence[str] = (),
) -> AsyncIterator[Place]:
    """A new database in the folder, or on this Postgres; all is gone afterwards. `more`: options of the servers."""
    async with AsyncExitStack() as stack:
        if layout.on_postgres:
            assert postgres is not None, "this layout needs a Postgres"
            stack.enter_context(_slow_disk(postgres, around.flush_ms))
            looking, serving = stack.enter_context(_database(postgres, around))
        else:
            looking = serving = f"sqlite:///{folder / 'torture.db'}"
        place = Place(looking, [], postgres if layout.on_postgres else None, is_planted=bool(under))
        place.sets_clock = around.sets_clock
        if around.sets_clock or around.apart:
            place.clock = folder / "clock"
            place.set_clock(around.clock_ms)
        for number in range(layout.servers):
            command = [*command_of(around, number, place.clock, on_postgres=layout.on_postgres), *under]
            place.servers.append(await stack.enter_async_context(served(serving, *OPTIONS, *more, under=command)))
        if with_proxies:
            place.proxies = [await stack.enter_async_context(FaultyProxy(each.endpoint)) for each in place.servers]
        yield place


@contextmanager
def _database(postgres: PostgresServer, around: Surroundings) -> Iterator[tuple[str, str]]:
    """The URLs of a new database: for who looks on, and for servers."""
    with ExitStack() as stack:
        own = stack.enter_context(hostile_database(postgres, around.way, dict(around.settings)))
        looking = make_url(own).set(username=make_url(postgres.url).username, query={"options": UNHARMED})
        if around.has_pooler:
            own = stack.enter_context(pgbouncer(looking.set(query={}).render_as_string(hide_password=False), "session"))
        yield looking.render_as_string(hide_password=False), own


@contextmanager
def _slow_disk(postgres: PostgresServer, flush_ms: int) -> Iterator[None]:
    if not flush_ms:
        yield
        return
    postgres.under = slow_postgres(flush_ms)
    postgres.restart()
    try:
        yield
    finally:
        postgres.under = ()
        postgres.restart()
