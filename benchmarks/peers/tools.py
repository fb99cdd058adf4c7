"""Installs servers and clients in a folder that git ignores, out of package registries and by their ordinary tools."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Missing(Exception):
    """A peer cannot be had on this machine; the text says what to install."""


class Tools:
    """What was installed in `folder`. A later run finds it there, except for PopMQ, which is installed each time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @functools.cached_property
    def python(self) -> Path:
        """The Python of an environment with PopMQ as `pip install '.[postgres]'` makes it, and the peers' clients."""
        environment = self.folder / "python"
        if not (environment / "bin" / "python").exists():
            _run([sys.executable, "-m", "venv", str(environment)])
        python = environment / "bin" / "python"
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{ROOT}[peers]"])
        return python

    def debian(self, package: str, file: str) -> Path:
        """The folder that has the package's `usr/...`: `/` if it is installed, else one with the unpacked packages.

        file: one of the package's files, to see whether it is there; it may have a `*`.
        """
        unpacked = self.folder / "debian"
        for root in (Path("/"), unpacked):
            if next(root.glob(file), None) is not None:
                return root
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise Missing(f"install {package}")
        fetched = self.folder / "debian-packages"
        (fetched / "partial").mkdir(parents=True, exist_ok=True)
        options = {"Debug::NoLocking": "1", "Dir::Cache::archives": str(fetched.absolute())}
        given = [f"--option={name}={value}" for name, value in options.items()]
        try:
            # Only what the system lacks is fetched, and nothing is installed: no rights are needed, no service starts.
            _run(["apt-get", "install", "--download-only", "--no-install-recommends", "--yes", *given, package])
        except subprocess.CalledProcessError:
            raise Missing(f"apt-get update, then apt-get install {package}") from None
        for each in fetched.glob("*.deb"):
            _run(["dpkg", "--extract", str(each), str(unpacked)])
        shutil.rmtree(fetched)
        return unpacked

    def go(self, module: str) -> Path:
        """The program of a Go module, such as `example.com/server@v1.2.3`."""
        program = self.folder / "go" / module.partition("@")[0].removesuffix("/v2").rpartition("/")[2]
        if not program.exists():
            if shutil.which("go") is None:
                raise Missing("install Go")
            _run(["go", "install", module], {"GOBIN": str(program.parent.absolute())})
        return program

    def maven(self, name: str, artifacts: Sequence[str]) -> str:
        """The class path of these artifacts, `group:artifact:version`, and all that they need."""
        if shutil.which("java") is None or shutil.which("mvn") is None:
            raise Missing("install Java 17 and Maven")
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        wanted = _pom(name, artifacts)
        pom, found = folder / "pom.xml", folder / "classpath"
        if not (found.exists() and pom.read_text() == wanted and _all_exist(found.read_text())):
            found.unlink(missing_ok=True)
            pom.write_text(wanted)
            quiet = ["mvn", "--batch-mode", "--quiet", "--file", str(pom)]
            try:
                _run([*quiet, "dependency:build-classpath", f"-Dmdep.outputFile={found.absolute()}"])
            except subprocess.CalledProcessError:
                raise Missing(
                    f"Maven did not get {', '.join(artifacts)}; it needs Maven Central, or a mirror"
                ) from None
        return found.read_text().strip()


def _all_exist(classpath: str) -> bool:
    """Maven's repository may have been emptied since."""
    return all(Path(each).exists() for each in classpath.strip().split(os.pathsep))


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, **(environment or {})})


def _pom(name: str, artifacts: Sequence[str]) -> str:
    needed = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in (each.split(":") for each in artifacts)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>popmq</groupId><artifactId>bench-{name}</artifactId><version>1</version>"
        f"<dependencies>{needed}</dependencies></project>\n"
    )
