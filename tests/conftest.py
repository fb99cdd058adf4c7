"""What every test may ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from popclient import ClientConfig
from popserver import logs
from popserver.database import migrate
from popserver.database.database import Database
from tests.support.config_defaults import defaults_with
from tests.support.grpc_engine import ChosenEngine
from tests.support.heavy_tests import Full
from tests.support.open_clients import OpenClients
from tests.support.postgres import TEMPLATE_VARIABLE, PostgresServer, fresh_database, postgres_server
from tests.support.requirement_rows import Rows

pytest_plugins = ["tests.support.fixtures"]

# Tests share the machine with others: how long one example takes says nothing.
settings.register_profile("popmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("popmq")


# Clients give up after 3 s by default, which a busy machine may need for an ordinary answer.
PATIENCE_S = 20.0


def pytest_configure(config: pytest.Config) -> None:
    ClientConfig.__init__.__defaults__ = defaults_with(request_timeout=PATIENCE_S)
    assert ClientConfig("127.0.0.1:1").request_timeout == PATIENCE_S
    # As an embedded broker does. Once a test captures its log, structlog counts as configured, and writes to standard
    # output, where other tests expect the words of commands.
    logs.configure("info", "console")
    # The many servers and commands that tests start are read compiled, as an installed package is.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    config.pluginmanager.register(ChosenEngine(), "chosen-engine")
    config.pluginmanager.register(Full(part=os.environ.get("POPMQ_TEST_PART")), "full-tests")
    config.pluginmanager.register(Rows(config), "mission-rows")
    config.pluginmanager.register(OpenClients(), "open-clients")


@pytest.fixture(scope="session")
def open_clients(pytestconfig: pytest.Config) -> Iterator[OpenClients]:
    with pytest.MonkeyPatch.context() as patch:
        clients = pytestconfig.pluginmanager.get_plugin("open-clients")
        assert isinstance(clients, OpenClients)
        clients.watch(patch)
        yield clients


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left_open(open_clients: OpenClients) -> Iterator[None]:
    yield
    assert open_clients.forgotten() == [], "these tests leave clients open; close them"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running Postgres, one per process of the test run. To kill one, start your own: `postgres_server(own=True)`."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An empty SQLite file's URL."""
    return f"sqlite:///{tmp_path / 'popmq.db'}"


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database with the schema and nothing in it: copying it costs half of making another."""
    if given := os.environ.get(TEMPLATE_VARIABLE):
        yield given
        return
    with fresh_database(postgres) as url:
        migrate.upgrade(database := Database(url))
        database.close()
        yield url


@pytest.fixture
def postgres_url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The URL of a Postgres database of the test's own, with the schema and nothing in it."""
    with fresh_database(postgres, like=postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a Postgres database of the test's own, with nothing in it."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty database's URL, once of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
