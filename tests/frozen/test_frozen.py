"""Each statement has the text and the plan that its file has: what only moves a statement changes no plan.

A tour does what clients, operators and servers do, to one seeded store on each database. See `tour` and `acts_of_…`.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import popserver
from popserver.engine.transaction import Request
from tests.frozen.tour import HERE, Tour, on_postgres, on_sqlite

# Operations of the writer that the tour leaves out, and why.
LEFT_OUT = {
    "popserver.cluster.sql.announce_wants": "it executes no statement: the writer notifies the other servers",
    "popserver.cluster.sql.notify_late": "the same",
    "popserver.engine.transaction.read": "it executes queries that it is given, which the acts of readers ask",
}


def skip_on_others(file: str) -> Any:
    """For each version plans may differ."""
    frozen = (HERE / file).read_text().partition("\n")[0]

    def check(version: str) -> None:
        if version != frozen:
            pytest.skip(f"the plans in {file} are those of {frozen}, and this is {version}")

    return check


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def tours(request: pytest.FixtureRequest) -> list[Tour]:
    if request.param == "sqlite":
        return on_sqlite(skip_on_others("sqlite.txt"))
    return on_postgres(skip_on_others("postgres.txt"))


def test_texts_and_plans(tours: list[Tour]) -> None:
    changes = [line for each in tours for line in changes_of(each)]
    if changes:
        change = "\n".join(changes)
        pytest.fail(
            f"Statements or plans have changed:\n{change}\nIf that is meant, `make freeze` writes the files anew. A"
            " statement that was only moved keeps its plan.",
            pytrace=False,
        )


def changes_of(tour: Tour) -> Iterator[str]:
    frozen = tour.file.read_text().splitlines()
    return difflib.unified_diff(frozen, tour.text.splitlines(), tour.file.name, "executed now", lineterm="", n=6)


def test_the_tour_calls_every_operation(tours: list[Tour]) -> None:
    for each in tours:
        assert {name(operation) for operation in operations() - each.reached} == set(LEFT_OUT)


def operations() -> set[Any]:
    """All functions `(tx, requests)` of the server's writer; tests may have their own."""
    for module in pkgutil.walk_packages(popserver.__path__, "popserver."):
        importlib.import_module(module.name)
    kinds: list[type[Any]] = [Request]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = {kind.operation for kind in kinds if hasattr(kind, "operation")}
    return {each for each in found if each.__module__.startswith("popserver.")}


def name(operation: Any) -> str:
    return f"{operation.__module__}.{operation.__name__}"
