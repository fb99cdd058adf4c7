"""What the server says while it runs: ids, sizes and reasons; never a body, a property's value or a secret."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO, cast

import structlog


def configure(level: str, form: Literal["console", "json"]) -> None:
    """Log to standard error from `level` on."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _StandardError())),
    )


class _StandardError:
    """What `sys.stderr` is when a line is written: pytest gives each test another one, and closes it."""

    def write(self, words: str) -> None:
        sys.stderr.write(words)

    def flush(self) -> None:
        sys.stderr.flush()
