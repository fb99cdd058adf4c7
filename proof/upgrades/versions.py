"""The versions whose stores there may be: for each revision of the schema the newest commit whose head it was.

There is no release yet, so history stands for releases. Each version is taken out of it into a folder of its own and
runs there, as `popmq serve` and as popclient, with the packages of this environment. The next version is planted: this
checkout with one more migration, so that an upgrade can be shown before there is a second schema.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from popserver.database.migrate import HEAD

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).with_name("planted_migration.txt")
POPMQ = str(Path(sys.executable).with_name("popmq"))


class Version:
    """One version in its folder."""

    def __init__(self, revision: str, commit: str, folder: Path) -> None:
        self.revision, self.commit, self.folder = revision, commit, folder

    def __str__(self) -> str:
        return f"schema {self.revision} ({self.commit[:10] or 'this checkout'})"

    @property
    def environment(self) -> Mapping[str, str]:
        """Ours, in which Python finds this version first."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("POPMQ_")}
        return ours | {"PYTHONPATH": os.pathsep.join((str(self.folder), str(self.folder / "proto")))}

    @cached_property
    def serve_options(self) -> tuple[str, ...]:
        """Options for a server beside others; the oldest versions have no port for HTTP."""
        told = subprocess.run(
            [POPMQ, "serve", "--help"], env=self.environment, capture_output=True, text=True, check=True
        ).stdout
        http = ("--http", "off") if "--http" in told else ()
        return ("--host", "127.0.0.1", "--port", "0", "--min-invisible", "0s", "--transaction-timeout", "1s", *http)


class Found(NamedTuple):
    """A version in the history."""

    revision: str
    commit: str


def found(root: Path = ROOT) -> list[Found]:
    """All versions before this one, the oldest revision first; none where the history is shallow or absent."""
    if _git(root, "rev-parse", "--is-shallow-repository").strip() != "false":
        return []
    commits = _git(root, "log", "--format=%H", "--date-order").split()
    trees = _git(root, "cat-file", "--batch-check", given="".join(f"{each}:migrations/versions\n" for each in commits))
    heads: dict[str, str] = {}
    newest: dict[str, str] = {}
    for commit, line in zip(commits, trees.splitlines(), strict=True):
        tree, _, kind = line.partition(" ")
        if not kind.startswith("tree"):
            continue
        if tree not in heads:
            heads[tree] = max(
                name[:4] for name in _git(root, "ls-tree", "--name-only", tree).split() if name[:1] == "0"
            )
        newest.setdefault(heads[tree], commit)
    return [Found(revision, newest[revision]) for revision in sorted(newest) if revision < HEAD]


def take_out(which: Found, into: Path) -> Version:
    """The version's files in a folder of their own."""
    folder = into / which.revision
    folder.mkdir()
    archive = into / f"{which.revision}.tar"
    _git(ROOT, "archive", f"--output={archive}", which.commit)
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    archive.unlink()
    return Version(which.revision, which.commit, folder)


def next_one(into: Path) -> Version:
    """The version of this checkout with a planted migration."""
    revision = f"{int(HEAD) + 1:04}"
    folder = into / revision
    folder.mkdir()
    for each in ROOT.iterdir():
        if each.name != "migrations":
            (folder / each.name).symlink_to(each)
    shutil.copytree(ROOT / "migrations", folder / "migrations")
    text = PLANTED.read_text().replace("NEXT", revision).replace("HEAD", HEAD)
    (folder / "migrations" / "versions" / f"{revision}_planted.py").write_text(text)
    return Version(revision, "", folder)


def this_one() -> Version:
    """The version of this checkout."""
    return Version(HEAD, "", ROOT)


def _git(root: Path, *words: str, given: str | None = None) -> str:
    done = subprocess.run(["git", *words], cwd=root, input=given, capture_output=True, text=True, check=False)
    return done.stdout
