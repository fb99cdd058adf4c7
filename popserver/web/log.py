"""Log lines about the HTTP port."""

from __future__ import annotations

import asyncio
import logging
import traceback

import structlog

from popserver.engine.meters import now_s
from popserver.engine.reader import LogLimit

log = structlog.get_logger("popserver.web")


class HttpLog(logging.Handler):
    """What operators read about one HTTP port: of each kind one line a minute, because callers can cause all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.logger = logging.Logger("popserver.web", logging.WARNING)
        self.logger.addHandler(self)
        self._refusals = LogLimit()
        self._failures = LogLimit()

    def on_refused(self, host: str) -> None:
        """Say that a connection from this address was refused."""
        suppressed = self._refusals.dropped(_now_ms())
        if suppressed is not None:
            log.warning("HTTP connection refused", address=host, reason="too many of them", suppressed=suppressed)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line of uvicorn's. All but the errors are not for operators."""
        error = record.exc_info[1] if record.exc_info else None
        reason = record.getMessage().strip()
        if record.levelno < logging.ERROR or isinstance(error, asyncio.CancelledError):
            log.debug("HTTP", reason=reason)
        elif (suppressed := self._failures.dropped(_now_ms())) is not None:
            lines = "" if error is None else "".join(traceback.format_exception(error))
            log.error("an HTTP request failed", reason=reason, exception=lines, suppressed=suppressed)


def _now_ms() -> int:
    return int(now_s() * 1_000)
