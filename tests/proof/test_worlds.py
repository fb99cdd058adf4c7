"""Small worlds: the real statements do in every transition what the law says, and a planted fault is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.database import migrate
from popserver.database.database import Database
from proof.worlds.catalogue import CLOSED, TO_A_DEPTH
from proof.worlds.faults import LAWS, STATEMENTS, planted
from proof.worlds.law import Law, Rules
from proof.worlds.space import Space, explore
from proof.worlds.walk import Found, Walk, walked

DEPTH = 7  # where every fault shows


@pytest.fixture(scope="module")
def in_memory() -> Iterator[Database]:
    database = Database("sqlite://", durability="relaxed", own_process=True)
    migrate.upgrade(database)
    yield database
    database.close()


def walk_all(database: Database, law: Law, depth: int | None = None) -> tuple[int, int, Found | None]:
    """The numbers of states and transitions, and the first difference."""
    space = explore(law, depth)
    with walked(database) as store:
        walk = Walk(store, law.rules, space)
        found = walk.run()
    return len(space.steps), walk.transitions, found


def test_a_closed_world(in_memory: Database) -> None:
    assert walk_all(in_memory, Law(CLOSED["push in order"])) == (68, 895, None)


@pytest.mark.parametrize("name", TO_A_DEPTH)
def test_the_first_events_of_two_messages(in_memory: Database, name: str) -> None:
    *_, found = walk_all(in_memory, Law(TO_A_DEPTH[name]), 3)
    assert found is None


@pytest.mark.full
@pytest.mark.parametrize("name", ["simple", "push"])
def test_closed_worlds_on_postgres(postgres_database: Database, name: str) -> None:
    *_, found = walk_all(postgres_database, Law(CLOSED[name]))
    assert found is None


def test_the_numbers_of_closed_spaces() -> None:
    sizes = {name: (len(space.steps), space.transitions) for name, space in _spaces(CLOSED)}
    assert sizes == {
        "simple": (150, 2258),
        "push": (97, 1406),
        "simple in order": (130, 1829),
        "push in order": (68, 895),
    }


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_a_fault_of_the_law_is_found(in_memory: Database, law: type[Law]) -> None:
    rules = LAWS[law]
    *_, found = walk_all(in_memory, law(rules), DEPTH)
    assert found is not None


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_fault_of_a_statement_is_found(in_memory: Database, name: str) -> None:
    with planted(STATEMENTS[name]):
        *_, found = walk_all(in_memory, Law(STATEMENTS[name].rules), DEPTH)
    assert found is not None


def _spaces(worlds: dict[str, Rules]) -> Iterator[tuple[str, Space]]:
    for name, rules in worlds.items():
        yield name, explore(Law(rules))
