"""The container file: what it copies and installs, its command and its health check, run in a clean environment."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.deploy.deployed import CREDENTIALS, DEPLOY, PATIENCE_S, check_settings, running
from tests.support.built_programs import CannotBuild, do, do_without

ROOT = DEPLOY.parent
FILE = DEPLOY / "Dockerfile"
# Instructions of the last stage, with all lines of each in one.
STEPS = [
    (name, value.strip())
    for name, value in re.findall(
        r"^([A-Z]+) (.*)$", re.sub(r"\\\n\s*", "", FILE.read_text().rpartition("\nFROM ")[2]), re.MULTILINE
    )
]


def values(name: str) -> list[str]:
    return [value for step, value in STEPS if step == name]


def image_environment() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", values("ENV")[0]))


def command() -> list[str]:
    """What the image runs, as a list."""
    words: list[str] = json.loads(values("ENTRYPOINT")[0]) + json.loads(values("CMD")[0])
    return words


def health_check() -> list[str]:
    words: list[str] = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])
    return words


def test_the_options_exist_and_need_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popmq, *words = command()
    assert popmq == "popmq"
    settings = check_settings(words, image_environment(), monkeypatch)
    exposed = values("EXPOSE")[0].split()
    assert exposed == [str(settings.port), settings.http.rpartition(":")[2]]
    assert settings.database_url.startswith("sqlite:////data/")
    # The image by itself does not start: everybody could use it.
    refused = subprocess.run(
        [str(Path(sys.executable).with_name("popmq")), *words],
        cwd=tmp_path, env={**image_environment(), "POPMQ_DATABASE_URL": "sqlite://"},
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "--auth" in refused.stderr


def test_it_hands_its_clients_over_when_it_is_stopped() -> None:
    assert values("STOPSIGNAL") == ["SIGUSR1"]


def test_it_does_not_run_as_root_and_owns_its_data() -> None:
    steps = [name for name, _ in STEPS]
    assert values("USER") == ["10001:10001"]
    assert steps.index("RUN") < steps.index("USER") < steps.index("ENTRYPOINT")
    (making,) = [value for value in values("RUN") if "useradd" in value]
    assert "--uid 10001" in making
    assert "install --directory --owner=popmq --group=popmq --mode=0700 /data" in making
    assert values("WORKDIR") == values("VOLUME") == ["/data"]


def kept() -> list[str]:
    """What the build may see of the checkout."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    return [line.removeprefix("!") for line in lines if line.startswith("!")]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment, made by the steps of the file from the files that the build sees."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "source").mkdir()
    for name in kept():
        do(["cp", "-r", str(ROOT / name), str(folder / "source")], folder)
    environment = folder / "environment" / "bin"
    [build] = re.findall(r"^RUN (pip wheel .*)$", FILE.read_text(), re.MULTILINE)
    [install] = re.findall(r'pip install [^"]*"\$\(echo /dist/popmq-\*\.whl\)\[([\w,]+)\]"', values("RUN")[0])
    words = build.replace("/dist", str(folder / "dist")).split()
    try:
        do([sys.executable, "-m", *words], folder / "source")
        [wheel] = (folder / "dist").glob("popmq-*.whl")
        do([sys.executable, "-m", "venv", str(environment.parent)], folder)
        do([str(environment / "pip"), "install", "--quiet", f"{wheel}[{install}]"], folder)
    except CannotBuild as reason:
        do_without(str(reason))
    return environment


def test_its_steps_make_a_server_that_is_healthy(programs: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    environment = image_environment() | CREDENTIALS
    environment |= {
        "POPMQ_DATABASE_URL": f"sqlite:///{tmp_path / 'popmq.db'}",
        "POPMQ_HTTP": environment["POPMQ_HTTP"].replace("8082", str(port)),
        "POPMQ_PORT": "0",
    }
    checking = [word.replace("8082", str(port)) for word in health_check()]
    assert checking != health_check()
    checking[0] = str(programs / checking[0])

    def is_healthy() -> bool:
        return subprocess.run(checking, capture_output=True, check=False, timeout=PATIENCE_S).returncode == 0

    assert not is_healthy()
    with running(command()[1:], environment, tmp_path, popmq=str(programs / "popmq")) as facts:
        assert is_healthy()
        assert facts["grpc"].startswith("0.0.0.0:")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S) as ready:
            assert ready.status == 200
    assert not is_healthy()
