"""Workers whose Python does something else first: a `sitecustomize` that reads its orders from a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Only in workers; `WORKER` is the number. The orders are read anew in each process.
_SITE = """
import pathlib, sys
if "popserver.serve.worker" in sys.orig_argv:
    WORKER, SPOIL = int(sys.orig_argv[-1]), pathlib.Path(__file__).with_name("spoil")
    if SPOIL.exists():
        exec(SPOIL.read_text())
"""
# What happens when the server's code is loaded: after the settings are read, before anything is served.
AT_LOADING = """
def heed(event, arguments):
    if event == "import" and arguments[0] == "popserver.app" and WORKER in {workers}:
        {what}
sys.addaudithook(heed)
"""
# While the file is there; the file `waits` says that it does.
WAIT = "import time; SPOIL.with_name('waits').touch(); list(iter(lambda: time.sleep(0.05) or SPOIL.exists(), False))"


class StartupHook:
    """Every worker that starts from now on does what the file says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / "spoil"
        (folder / "sitecustomize.py").write_text(_SITE)
        monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep))

    def by(self, code: str) -> None:
        """`code` knows `WORKER`, the number, and `SPOIL`, this file."""
        self._file.write_text(code)

    def at_loading(self, what: str, *workers: int) -> None:
        self.by(AT_LOADING.format(workers=workers, what=what))

    def no_more(self) -> None:
        self._file.unlink()
