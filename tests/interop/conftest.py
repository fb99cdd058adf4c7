"""A broker on a manual clock, and official clients to connect to it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from popserver import embedded
from popserver.in_process import EmbeddedBroker
from tests.interop.official import HERE, LANGUAGES, Program, Start
from tests.interop.seen import Seen
from tests.support.built import do_without

NODE = HERE / "node"


@pytest.fixture(params=LANGUAGES)
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
def start_at(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a program of official clients for an endpoint; all of them end with the test, without a goodbye.

    With `trusting`, a CA's file, its clients speak TLS; with `signing` (access key, secret) they sign.
    """
    with ExitStack() as programs:

        def start(
            language: str, endpoint: str, *, trusting: Path | None = None, signing: tuple[str, str] | None = None
        ) -> Program:
            if language == "node":
                request.getfixturevalue("node_modules")
            # The official clients write their logs below HOME.
            environment = {**os.environ, "HOME": str(tmp_path)}
            if trusting is not None:
                environment |= {"OFFICIAL_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trusting)}
            if signing is not None:
                environment |= {"OFFICIAL_ACCESS_KEY": signing[0], "OFFICIAL_ACCESS_SECRET": signing[1]}
            program = Program(language, endpoint, environment)
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


@pytest.fixture(scope="session")
def node_modules() -> None:
    """The official Node client, installed once from the package registry."""
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if missing:
        do_without(f"{' and '.join(missing)} not found; install Node.js 18 or newer for the Node client's tests")
    command = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    with (Path(tempfile.gettempdir()) / "popmq-node-modules.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes start at once
        if (NODE / "node_modules" / ".package-lock.json").exists():  # npm writes it last
            return
        installed = subprocess.run(command, cwd=NODE, capture_output=True, text=True, check=False)
    if installed.returncode:
        do_without(f"npm could not install the official Node client: {installed.stderr.strip()[-500:]}")
