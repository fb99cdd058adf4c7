"""The servers of the table, each started when the first scenario asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.interop.matrix import popmq, rocketmq
from tests.interop.matrix.page import Cell, Cells, Tables
from tests.interop.matrix.scenarios import SCENARIOS
from tests.interop.matrix.stage import Needs, Servers
from tests.interop.programs import LANGUAGES
from tests.spark.conftest import spark as spark
from tests.support.built_programs import do_without
from tests.support.postgres import GivenServer, PostgresServer, fresh_database, postgres_server

SERVERS = ("SQLite", "Postgres", "two servers", rocketmq.NAME)


class Get(Protocol):
    """Servers by their kind (a column of the table), and what they have to be able to do."""

    def __call__(self, kind: str, needs: Needs = Needs()) -> Servers: ...  # noqa: B008 - a value, not a place


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--page", action="store_true", help="write the outcomes into docs/compatibility.md")
    parser.addoption("--at", choices=("popmq", "rocketmq"), help="run only the tests at these servers")
    parser.addoption("--missing", action="store_true", help="run only the cells that have no explained outcome there")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--page", default=False) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Cells(SERVERS), "compatibility")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = items
    if at := config.getoption("--at", default=None):
        kept = [item for item in kept if is_at_rocketmq(item) == (at == "rocketmq")]
    if config.getoption("--missing", default=False):
        tables = Tables.of_page(SERVERS)
        kept = [item for item in kept if not tables.has_explained(cell_of(item))]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def is_at_rocketmq(item: pytest.Item) -> bool:
    return any(rocketmq.NAME in mark.args for mark in item.iter_markers("xdist_group"))


def cell_of(item: pytest.Item) -> Cell | None:
    """The cell that a test fills; None for a test of something else."""
    values: dict[str, Any] = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    return (values["scenario"], values["language"], values["server"]) if "scenario" in values else None


# Not of the session: after a transaction, a thread of RocketMQ 5.5.0 keeps a core busy.
@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """Servers by their kind and what is needed of them; PopMQ has lite topics always."""
    started: dict[tuple[str, Needs], Servers] = {}
    failed: dict[tuple[str, Needs], Exception] = {}  # tried once: a start that fails takes its time
    postgres: PostgresServer | GivenServer | None = None
    missing: list[str] = []  # looked for once: a registry without an answer takes its time
    with ExitStack() as ended:

        def get(kind: str, needs: Needs = Needs()) -> Servers:  # noqa: B008 - a value, not a place
            nonlocal postgres
            if kind == rocketmq.NAME and missing:
                do_without(missing[0])
            key = (kind, needs if kind == rocketmq.NAME else needs._replace(has_lite=False))
            if key in failed:
                raise RuntimeError(f"the servers {key} did not start before") from failed[key]
            if key not in started:
                folder = tmp_path_factory.mktemp("servers")
                url = f"sqlite:///{folder}/popmq.db"
                if kind in ("Postgres", "two servers"):
                    # Not the fixture `postgres`, which would end before these servers do.
                    postgres = postgres or ended.enter_context(postgres_server())
                    url = ended.enter_context(fresh_database(postgres))
                try:
                    started[key] = ended.enter_context(_running(*key, url, folder))
                except rocketmq.Missing as reason:
                    missing.append(str(reason))
                    do_without(missing[0])
                except Exception as failure:
                    failed[key] = failure
                    raise
            return started[key]

        yield get


def _running(kind: str, needs: Needs, url: str, folder: Path) -> AbstractContextManager[Servers]:
    if kind != rocketmq.NAME:
        return popmq.running(kind, url, folder, count=2 if kind == "two servers" else 1, needs=needs)
    scenes = [
        (name, language, scene)
        for name, (_, scene) in SCENARIOS.items()
        for language in LANGUAGES
        if scene.needs == needs
    ]
    return rocketmq.running(folder, scenes, needs)
