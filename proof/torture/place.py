"""Where a round happens: a database, the servers on it, and the proxies before the servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from proof.torture.client_processes import ClientProcess
from proof.torture.proxy import FaultyProxy
from proof.torture.spark_process import SparkProcess
from tests.support.postgres import PostgresServer, fresh_database
from tests.support.server_process import ServerProcess, served

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
    """A running layout. Clients of a round with proxies only know the proxies."""

    database_url: str
    servers: list[ServerProcess]
    postgres: PostgresServer | None = None
    proxies: list[FaultyProxy] = field(default_factory=list)
    programs: list[ClientProcess] = field(default_factory=list)
    spark: SparkProcess | None = None
    is_planted: bool = False  # servers run under a command that plants a fault

    @property
    def endpoints(self) -> list[str]:
        return [each.endpoint for each in self.proxies or self.servers]


@asynccontextmanager
async def open_place(
    layout: Layout,
    folder: Path,
    postgres: PostgresServer | None,
    *,
    with_proxies: bool,
    under: Sequence[str] = (),
    more: Sequence[str] = (),
) -> AsyncIterator[Place]:
    """A new database in the folder, or on this Postgres; all is gone afterwards. `more`: options of the servers."""
    async with AsyncExitStack() as stack:
        if layout.on_postgres:
            assert postgres is not None, "this layout needs a Postgres"
            url = stack.enter_context(fresh_database(postgres))
        else:
            url = f"sqlite:///{folder / 'torture.db'}"
        options = (*OPTIONS, *more)
        servers = [await stack.enter_async_context(served(url, *options, under=under)) for _ in range(layout.servers)]
        place = Place(url, servers, postgres if layout.on_postgres else None, is_planted=bool(under))
        if with_proxies:
            place.proxies = [await stack.enter_async_context(FaultyProxy(each.endpoint)) for each in servers]
        yield place
