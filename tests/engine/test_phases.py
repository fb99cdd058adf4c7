"""The order of operations in a transaction: each kind of request has one, and they share a phase only under a lock."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import popserver
from popserver.engine.transaction import Phase, Request

# All operations of these take a lock before anything else: that of the catalog, or of the places that they move.
SHARED = {Phase.CATALOG, Phase.SUBSCRIBE, Phase.RESET}


def subclasses(kind: type[Any]) -> Iterator[type[Request[Any]]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("popserver."):
            yield each
        yield from subclasses(each)


@pytest.fixture(scope="module")
def kinds() -> set[type[Request[Any]]]:
    for module in pkgutil.walk_packages(popserver.__path__, "popserver."):
        importlib.import_module(module.name)
    # A dataclass with slots is made twice, and only the second one is bound.
    return {each for each in subclasses(Request) if "operation" in vars(each)}


def test_every_request_is_carried_out_by_an_operation_that_takes_it(kinds: set[type[Request[Any]]]) -> None:
    named = {each.__qualname__ for each in subclasses(Request)}
    # A common base of several kinds has no operation of its own.
    bases = {base.__qualname__ for kind in kinds for base in kind.__mro__}
    assert {each.__qualname__ for each in kinds} <= named <= bases
    for kind in kinds:
        # A sequence of requests, or one request where the operation takes each by itself.
        _, asked, *_ = get_type_hints(kind.operation).values()
        (taken,) = get_args(asked) if get_origin(asked) is Sequence else (asked,)
        operands = (taken, get_origin(taken), *get_args(taken))
        assert any(isinstance(each, type) and issubclass(kind, each) for each in operands)


def test_every_phase_has_one_operation(kinds: set[type[Request[Any]]]) -> None:
    operations = defaultdict(set)
    for kind in kinds:
        operations[kind.phase].add(kind.operation)
    assert operations.keys() == set(Phase)
    assert {phase for phase, found in operations.items() if len(found) > 1} == SHARED


def test_operations_that_share_a_phase_have_an_order(kinds: set[type[Request[Any]]]) -> None:
    assert len({kind.sort_key for kind in kinds}) == len({kind.operation for kind in kinds})
