"""A server in this process that all tests of a module share, and a topic of each test's own.

A conftest of clients imports both fixtures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import popserver

_names = itertools.count(1)


@pytest.fixture(scope="module")
def shared() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as broker:
        yield broker


@pytest.fixture
def topic() -> str:
    """A name of its own per test."""
    return f"flights-{next(_names)}"
