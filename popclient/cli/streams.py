"""Standard streams that are closed, full or broken, or cannot write a character.

A stream that was closed when the command began is there, but fails when something is written. Characters that the
encoding of the terminal lacks are written as escapes.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any


class _Output(io.FileIO):
    """Standard output. Keeps the failure of a write, because some callers catch it, as argparse does."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as failure:
            self.failure = failure
            raise


def prepare() -> None:
    """Call it before anything is opened: a file must not get the descriptor of a standard stream."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):
            os.fstat(descriptor)
            continue
        # Takes the lowest free descriptor, which is this one. Errors go nowhere, output fails.
        os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
        setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    if sys.stdout is sys.__stdout__ or sys.__stdout__ is None:  # else it was replaced, as pytest does
        buffer = io.BufferedWriter(_Output(1, "w", closefd=False))
        encoding, is_terminal = sys.stdout.encoding, sys.stdout.isatty()
        sys.stdout = io.TextIOWrapper(buffer, encoding, "backslashreplace", line_buffering=is_terminal)


def output_failure() -> OSError | None:
    """Why standard output cannot be written; None if it can."""
    with suppress(OSError):
        sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.failure if isinstance(raw, _Output) else None


def discard(descriptor: int) -> None:
    """Discards what is written there from now on, also what is still buffered when the process ends."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
