"""README as a newcomer follows it: this checkout's wheel in a new environment, and every program as printed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.built_programs import CannotBuild, do, do_without
from tests.support.documentation_pages import ADDRESS, Block, blocks

ROOT = Path(__file__).parents[2]
README = blocks(ROOT / "README.md")
SETUP = README[0]
# The one of Spark is run by test_readme.py: this wheel is installed without Spark.
ON_SPARK = "from popclient.spark import"
PROGRAMS = [block for block in README if block.language == "python" and ON_SPARK not in block.text]
PATIENCE_S = 300
ON_AN_EMBEDDED_BROKER = f"""
import popserver
with popserver.embedded() as broker:
    exec(open("sending.py").read().replace("{ADDRESS}", broker.endpoint))
"""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with this checkout's wheel, as README installs it, and mypy."""
    folder = tmp_path_factory.mktemp("installed")
    programs = folder / "environment" / "bin"
    try:
        do(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
            folder,
        )
        [wheel] = folder.glob("popmq-*.whl")
        do([sys.executable, "-m", "venv", str(programs.parent)], folder)
        do([str(programs / "pip"), "install", "--quiet", f"{wheel}[server]", "pytest", "mypy"], folder)
    except CannotBuild as reason:
        do_without(str(reason))
    return programs


@pytest.fixture
def environment(installed: Path) -> dict[str, str]:
    """What a shell has in which the environment is active; no checkout is on its way."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    path = f"{installed}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(installed), "POPMQ_PORT": str(port), "ROCKETMQ_ENDPOINTS": f"127.0.0.1:{port}"}


@contextmanager
def serving(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The server, started by README's own line."""
    [line] = [line for line in SETUP.text.splitlines() if line.startswith("popmq serve")]
    command = line.partition("#")[0].split()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("popserver ready")
            yield
        finally:
            process.terminate()


def typed(folder: Path, environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def saved(folder: Path, name: str, block: Block, environment: dict[str, str]) -> str:
    (folder / name).write_text(block.text.replace(ADDRESS, environment["ROCKETMQ_ENDPOINTS"]))
    return name


def test_every_program(tmp_path: Path, environment: dict[str, str]) -> None:
    """All but one, which needs Spark: `test_topics_in_spark` of test_readme.py runs it."""
    sending, listening, together, testing = PROGRAMS
    assert sum(ON_SPARK in block.text for block in README) == 1
    with serving(tmp_path, environment):
        quickstart = typed(tmp_path, environment, "python", str(ROOT / "examples" / "quickstart.py"))
        assert quickstart.splitlines()[1:] == ["attempt 1: one espresso", "attempt 2: one espresso"]
        name = saved(tmp_path, "sending.py", sending, environment)
        assert typed(tmp_path, environment, "python", name) == "attempt 1: one espresso\nattempt 2: one espresso\n"
        name = saved(tmp_path, "together.py", together, environment)
        assert typed(tmp_path, environment, "python", name) == "['12.50']\n"
        typed(tmp_path, environment, "popmq", "group", "create", "kitchen", "--retry", "100ms")
        name = saved(tmp_path, "listening.py", listening, environment)
        command = ["python", "-u", name]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            # Two threads may print at one time, both before either ends its line.
            assert process.stdout.readline().replace("attempt 2: one espresso", "") == "\n"
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
    name = saved(tmp_path, "test_orders.py", testing, environment)
    assert "1 passed" in typed(tmp_path, environment, "python", "-m", "pytest", "-q", name)


def test_every_program_has_strict_types(tmp_path: Path, environment: dict[str, str]) -> None:
    """A test without annotations is no program; popclient's own types are read from the wheel."""
    names = [saved(tmp_path, f"program_{number}.py", block, environment) for number, block in enumerate(PROGRAMS[:-1])]
    assert "Success" in typed(tmp_path, environment, "python", "-m", "mypy", "--strict", *names)


def test_the_first_program_on_an_embedded_broker(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "sending.py").write_text(PROGRAMS[0].text)
    assert (
        typed(tmp_path, environment, "python", "-c", ON_AN_EMBEDDED_BROKER)
        == "attempt 1: one espresso\nattempt 2: one espresso\n"
    )
