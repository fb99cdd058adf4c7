"""Environments as the machines of a cluster have them: this checkout's wheel and what it needs, without PySpark."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

from tests.support.built_programs import do

ROOT = Path(__file__).parents[2]
# What executors need besides PopMQ: for messages, and for dead letters on Postgres.
NEEDED = ("pyarrow", "grpcio", "protobuf", "typing-extensions", "sqlalchemy", "psycopg", "psycopg-binary")


def wheel_in(folder: Path) -> Path:
    """This checkout's wheel. Raises CannotBuild."""
    do([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder)
    [made] = folder.glob("popmq-*.whl")
    return made


def environment_in(folder: Path, wheel: Path | None, *, without: tuple[str, ...] = ()) -> Path:
    """A virtual environment with the packages of this one, and its Python. Nothing is downloaded."""
    do([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder.parent)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    for name in NEEDED:
        if name not in without:
            _link(name, packages)
    if wheel is not None:
        shutil.unpack_archive(wheel, packages, "zip")
    return folder / "bin" / "python"


def _link(name: str, packages: Path) -> None:
    there = distribution(name)
    for each in there.files or ():
        source, target = Path(str(there.locate_file(each))), packages / str(each)
        if ".." in each.parts or "__pycache__" in each.parts:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another disk
            shutil.copy2(source, target)
