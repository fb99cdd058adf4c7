"""The programs of the official clients, one for each language: how they are installed or built, and how they are run.

Each carries out the same commands at the end of a pipe (`official.py`). Those of Go, Rust and Java are built once per
version of their sources, and kept beside the environment that runs the tests.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.built_programs import Build, CannotBuild, built, do

HERE = Path(__file__).parent
NODE = HERE / "node"
PYTHON = {"python": "official_client", "popclient": "popclient_program"}
# As published, and popclient.
TITLES = {
    "java": "Java 5.2.0",
    "go": "Go 5.1.4",
    "rust": "Rust 5.0.0",
    "python": "Python 5.1.2",
    "node": "Node 1.0.8",
    "popclient": "popclient",
}
LANGUAGES = tuple(TITLES)


def program_of(language: str, home: Path) -> list[str]:
    """The command that runs the language's program, with its log below `home`. Raises CannotBuild.

    Python and Node write their logs below HOME, Go too; Rust to stderr.
    """
    if language in PYTHON:
        return [sys.executable, "-m", f"tests.interop.clients.{PYTHON[language]}"]
    if language == "node":
        _install_node()
        return ["node", str(NODE / "official_client.js")]
    return [part.format(log=home) for part in built(f"interop-{language}", HERE / language, BUILDS[language])]


def _go(sources: Path, made: Path) -> list[str]:
    do(["go", "build", "-o", str(made / "official"), "."], sources)
    return [str(made / "official")]


def _rust(sources: Path, made: Path) -> list[str]:
    # Cargo writes its lock beside the sources.
    shutil.copytree(sources, made / "sources", dirs_exist_ok=True)
    do(["cargo", "build", "--quiet", "--target-dir", str(made / "target")], made / "sources")
    shutil.copy(made / "target" / "debug" / "official-client", made)
    shutil.rmtree(made / "target")  # half a gigabyte
    return [str(made / "official-client")]


def _java(sources: Path, made: Path) -> list[str]:
    jars = made / "jars"
    pom = str(sources / "pom.xml")
    do(["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], made)
    do(["javac", "-cp", f"{jars}/*", "-d", str(made), *map(str, sorted(sources.glob("*.java")))], made)
    return ["java", "-Xmx256m", "-cp", f"{jars}/*:{made}", "-Drocketmq.log.root={log}", "OfficialClient"]


BUILDS: dict[str, Build] = {"go": _go, "rust": _rust, "java": _java}


def _install_node() -> None:
    """The official Node client, installed once from the package registry."""
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if missing:
        raise CannotBuild(f"{' and '.join(missing)} not found; install Node.js 18 or newer for the Node client's tests")
    command = ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund"]
    with (Path(tempfile.gettempdir()) / "popmq-node-modules.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes start at once
        if (NODE / "node_modules" / ".package-lock.json").exists():  # npm writes it last
            return
        installed = subprocess.run(command, cwd=NODE, capture_output=True, text=True, check=False)
    if installed.returncode:
        raise CannotBuild(f"npm could not install the official Node client: {installed.stderr.strip()[-500:]}")
