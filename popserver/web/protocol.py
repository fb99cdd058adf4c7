"""HTTP/1.1 connections: uvicorn's protocol, with limits for what uvicorn lets callers take.

uvicorn waits without end for the rest of a request, and for a client to read its answer. Here both have a deadline, and
connections are counted.
"""

from __future__ import annotations

import asyncio
import logging
import traceback

import h11
import structlog
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from popserver.engine.meters import now_s
from popserver.engine.reader import LogLimit
from popserver.front.sockets import address_of_peer
from popserver.model.budget import Shares

HEAD_BYTES_MAX = 16 * 1024  # of a request line with its headers
REQUEST_S = 10.0  # from the first byte of a request, or from the start of the connection, to the request's end
UNREAD_S = 30.0  # until a client reads what it was sent
QUIET_S = 75.0  # of an open connection between two requests; longer than Prometheus waits between two scrapes

log = structlog.get_logger("popserver.web")


class HttpConnection(H11Protocol):
    """One client's connection."""

    def __init__(
        self,
        places: Places,
        log: HttpLog,
        config: UvicornConfig,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`places`: of all connections of the port. The rest is uvicorn's."""
        super().__init__(config, server_state, app_state, _loop)
        self._places = places
        self.logger = log.logger
        self._log = log
        self.access_log = False
        self._deadline: asyncio.TimerHandle | None = None  # of a request that is arriving
        self._unread: asyncio.TimerHandle | None = None
        self._host = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._host = address_of_peer(transport.get_extra_info("peername")).rpartition(":")[0]
        if not self._places.take(self, self._host):
            self._log.tell_refused(self._host)
            transport.abort()
            return
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop(self._deadline)
        self._stop(self._unread)
        self._places.give_back(self, self._host)

    @property
    def waits_for_client(self) -> bool:
        """Whether its client is the one to act: to send a request or the rest of one, or to read an answer."""
        has_request = self.cycle is not None and not self.cycle.response_complete
        return not has_request or self.conn.their_state is h11.SEND_BODY or self._unread is not None

    def handle_events(self) -> None:
        super().handle_events()
        state = self.conn.their_state
        is_waited_for = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        if is_waited_for and self._deadline is None:
            self._expect_request()
        elif not is_waited_for and self._deadline is not None and state is not h11.IDLE:
            self._stop(self._deadline)
            self._deadline = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._unread)
        self._unread = None

    def _expect_request(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop(self, timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


class Places:
    """The connections of a port.

    When all places are taken, an address that has fewer gets one of the address that has most, so that a few addresses
    cannot keep supervisors out.
    """

    def __init__(self, shares: Shares) -> None:
        """`shares`: how many places there are, and how many of them each address may have."""
        self._shares = shares
        self._taken: dict[str, dict[HttpConnection, None]] = {}

    def take(self, connection: HttpConnection, host: str) -> bool:
        """Take a place until `give_back`. Returns False if there is none for this address."""
        budget = self._shares.budget
        if budget.used >= budget.limit and not self._shares.has_all(host):
            self._make_room(host)
        if not self._shares.take(host):
            return False
        self._taken.setdefault(host, {})[connection] = None
        return True

    def give_back(self, connection: HttpConnection, host: str) -> None:
        """Free the place of a connection, if it still has one."""
        theirs = self._taken.get(host, {})
        if connection not in theirs:
            return
        del theirs[connection]
        if not theirs:
            del self._taken[host]
        self._shares.give_back(host)

    def _make_room(self, host: str) -> None:
        """Close a connection that waits for its client, the oldest of the address with most of them."""
        most = max(self._taken, key=lambda each: len(self._taken[each]))
        if len(self._taken[most]) <= len(self._taken.get(host, ())) + 1:
            return  # the new one would have as many
        for connection in self._taken[most]:
            if connection.waits_for_client:
                self.give_back(connection, most)
                connection.transport.abort()
                return


class HttpLog(logging.Handler):
    """What operators read about one HTTP port: of each kind one line a minute, because callers can cause all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.logger = logging.Logger("popserver.web", logging.WARNING)
        self.logger.addHandler(self)
        self._refusals = LogLimit()
        self._failures = LogLimit()

    def tell_refused(self, host: str) -> None:
        """Say that a connection from this address was refused."""
        untold = self._refusals.dropped(_now_ms())
        if untold is not None:
            log.warning("HTTP connection refused", address=host, reason="too many of them", untold=untold)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a line of uvicorn's. All but the errors are not for operators."""
        error = record.exc_info[1] if record.exc_info else None
        reason = record.getMessage().strip()
        if record.levelno < logging.ERROR or isinstance(error, asyncio.CancelledError):
            log.debug("HTTP", reason=reason)
        elif (untold := self._failures.dropped(_now_ms())) is not None:
            lines = "" if error is None else "".join(traceback.format_exception(error))
            log.error("an HTTP request failed", reason=reason, exception=lines, untold=untold)


def _now_ms() -> int:
    return int(now_s() * 1_000)
