"""Fixtures of the tests of every room: a store, a broker, a server in this process or apart, several servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from popclient import ClientConfig
from popclient._session import session as sessions
from popserver.database.database import Database
from popserver.engine.clock import ManualClock
from tests.support import admin_server as admin_servers
from tests.support.admin_server import AdminServer
from tests.support.certificates import Authority
from tests.support.config_defaults import defaults_with
from tests.support.emptied_database import a_database, emptied
from tests.support.open_store import OpenStore, open_store
from tests.support.postgres import PostgresServer
from tests.support.running_broker import RunningBroker, running_broker
from tests.support.several_brokers import SeveralBrokers, several_brokers
from tests.support.wire_server import WireServer, opened


@pytest.fixture
def short_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients wait 0.2 s for the settings of a server, and a minute for its connection."""
    monkeypatch.setattr(sessions, "HANDSHAKE_PATIENCE", 0.2)
    monkeypatch.setattr(ClientConfig.__init__, "__defaults__", defaults_with(wait_for_server=60.0))


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """An empty store, once on each database."""
    if request.param == "sqlite":
        with open_store(request.getfixturevalue("sqlite_url")) as opened_store:
            yield opened_store
    else:
        with emptied(request.getfixturevalue("postgres_database")) as opened_store:
            yield opened_store


@pytest.fixture(scope="session")
def postgres_database(postgres: PostgresServer) -> Iterator[Database]:
    """One database for all of these tests: emptying it is ten times cheaper than making another."""
    with a_database(postgres) as database:
        yield database


@pytest.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    """A broker in memory."""
    async with running_broker() as running:
        yield running


@pytest.fixture
async def strict_broker() -> AsyncIterator[RunningBroker]:
    """A broker in memory that makes no topic and no group by itself."""
    async with running_broker(auto_create=False) as running:
        yield running


@pytest.fixture
async def either_broker(database_url: str) -> AsyncIterator[RunningBroker]:
    """A broker, once on each database."""
    async with running_broker(database_url) as running:
        yield running


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[SeveralBrokers]:
    """Two brokers on one Postgres."""
    async with several_brokers(postgres_url) as several:
        yield several


@pytest.fixture
async def lone_server(postgres_url: str) -> AsyncIterator[SeveralBrokers]:
    """One broker that shares a Postgres with no other yet."""
    async with several_brokers(postgres_url, 1) as several:
        yield several


@pytest.fixture
async def wire_server(tmp_path: Path) -> AsyncIterator[WireServer]:
    """A server on a SQLite file, and a client's end of it."""
    async with opened(tmp_path) as opened_server:
        yield opened_server


@pytest.fixture
def clock() -> ManualClock:
    """A server's clock that stands still until the test moves it."""
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgres"])
async def timed_wire_server(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[WireServer]:
    """A server on a clock that stands still, once on each database."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, clock=clock, postgres_url=url) as opened_server:
        yield opened_server


@pytest.fixture
async def strict_wire_server(tmp_path: Path) -> AsyncIterator[WireServer]:
    """A server that makes no topic and no group by itself."""
    async with opened(tmp_path, auto_create=False) as opened_server:
        yield opened_server


@pytest.fixture(params=["sqlite", "postgres"])
async def either_wire_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WireServer]:
    """A server, once on each database."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, postgres_url=url) as opened_server:
        yield opened_server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A CA of the test's own."""
    return Authority(tmp_path)


@pytest.fixture
def admin_server() -> Iterator[AdminServer]:
    """A server in memory, and its administration."""
    with admin_servers.opened() as opened_server:
        yield opened_server


@pytest.fixture
def either_admin_server(database_url: str) -> Iterator[AdminServer]:
    """A server and its administration, once on each database."""
    with admin_servers.opened(database_url) as opened_server:
        yield opened_server
