"""A broker on a manual clock, and official clients to connect to it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from popserver import embedded
from popserver.in_process import EmbeddedBroker
from tests.interop.official import DEEPLY, Program, Start
from tests.interop.seen import Seen
from tests.support.built_programs import CannotBuild, do_without


@pytest.fixture(params=DEEPLY)
def language(request: pytest.FixtureRequest) -> str:
    """Each official client in turn."""
    return str(request.param)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker in this process whose clock stands still until the test moves it."""
    with embedded(tmp_path / "popmq.db", manual_clock=True, min_invisible="10s") as broker:
        yield broker


@pytest.fixture
def seen(broker: EmbeddedBroker) -> Seen:
    """What the broker says about itself."""
    return Seen(broker)


@pytest.fixture
def start_at(tmp_path: Path) -> Iterator[Start]:
    """Starts a program of official clients for an endpoint; all of them end with the test, without a goodbye.

    With `trusting`, a CA's file, its clients speak TLS; with `signing` (access key, secret) they sign.
    """
    numbers = itertools.count()
    with ExitStack() as programs:

        def start(
            language: str, endpoint: str, *, trusting: Path | None = None, signing: tuple[str, str] | None = None
        ) -> Program:
            home = tmp_path / f"{language}-{next(numbers)}"
            home.mkdir()
            environment = dict(os.environ)
            if trusting is not None:
                environment |= {"OFFICIAL_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trusting)}
            if signing is not None:
                environment |= {"OFFICIAL_ACCESS_KEY": signing[0], "OFFICIAL_ACCESS_SECRET": signing[1]}
            try:
                program = Program(language, endpoint, home, environment)
            except CannotBuild as missing:
                do_without(str(missing))
            programs.callback(program.kill)
            return program

        yield start


@pytest.fixture
def start(start_at: Start, broker: EmbeddedBroker) -> Callable[[str], Program]:
    """Starts a program of official clients for the test's broker."""
    return lambda language: start_at(language, broker.endpoint)


@pytest.fixture
def program(start: Callable[[str], Program], language: str) -> Program:
    """A program of official clients, one test run per language."""
    return start(language)
