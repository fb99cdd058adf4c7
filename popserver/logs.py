"""The log of a server that has its own process: lines to standard error.

Log lines have ids, sizes and reasons, but never a body, a property's value or a secret.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import structlog


def configure(level: str, form: Literal["console", "json"], *, worker: int = 0) -> None:
    """Log lines of `level` and above to standard error. `worker`: the number that each line has; 0: none."""

    def name_worker(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**event, "worker": worker} if worker else event

    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            name_worker,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _StandardError())),
    )


def set_level(level: str) -> None:
    """From now on, log lines of `level` and above."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()])
    )


class _StandardError:
    """Looks `sys.stderr` up for each line, because pytest replaces it for each test and closes it."""

    def write(self, words: str) -> None:
        write(sys.stderr, words)

    def flush(self) -> None:
        """Every write is one."""


def write(stream: TextIO | None, words: str) -> None:
    """Write to a standard stream of the server. Never waits for its reader, and never raises `OSError`.

    Text that does not fit into a full pipe is lost.
    """
    with suppress(OSError, ValueError):
        if stream is None:
            return
        try:
            descriptor = stream.fileno()
        except io.UnsupportedOperation:  # it was replaced, as pytest does
            stream.write(words)
            stream.flush()
            return
        data = words.encode(errors="backslashreplace")
        for start in range(0, len(data), select.PIPE_BUF):  # so much fits into a pipe that is ready
            if not select.select([], [descriptor], [], 0)[1]:
                return
            os.write(descriptor, data[start : start + select.PIPE_BUF])
