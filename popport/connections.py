"""HTTP/1.1 connections: uvicorn's protocol, with limits for what uvicorn lets callers take.

uvicorn waits without end for the rest of a request, and for a client to read its answer. Here both have a deadline, and
connections are counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from popport.addresses import network_of
from popport.shares import Count, Shares

REQUEST_S = 10.0  # from the first byte of a request, or from the start of the connection, to the request's end
UNREAD_S = 30.0  # until a client has read what it was sent


class HttpConnection(H11Protocol):
    """One client's connection."""

    def __init__(self, slots: ConnectionSlots, logger: logging.Logger, *given: Any, **named: Any) -> None:
        """`slots`: of all connections of the port. `logger`: for what uvicorn says. The rest is uvicorn's."""
        super().__init__(*given, **named)
        self._slots = slots
        self.logger = logger
        self.access_log = False
        self.has_answered = False
        self.network = ""  # of its client
        self._deadline: asyncio.TimerHandle | None = None  # of a request that is arriving
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.network = network_of(self.client[0] if self.client else "unknown")
        if not self._slots.take(self):
            transport.abort()
            return
        # `pause_writing` is then called for every byte that waits. A connection that is closed waits for all of them.
        transport.set_write_buffer_limits(high=0)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop(self._deadline)
        self._stop(self._unread)
        self._slots.give_back(self)

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

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request. The refusal has no body after a HEAD."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.has_answered = True
        super().on_response_complete()

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


class ConnectionSlots:
    """The connections of a port, of which an address may have half.

    When all slots are taken, a caller whose address has fewer gets one of the address that has most, so that a few
    addresses cannot keep supervisors out.
    """

    def __init__(self, room: Count, on_refused: Callable[[str], None] = lambda _: None) -> None:
        """`room`: how many slots there are. `on_refused` is called with the address that gets none."""
        self._shares = Shares(room, max(1, room.limit // 2))
        self._on_refused = on_refused
        self._taken: dict[str, dict[HttpConnection, None]] = {}  # by address; the oldest first

    def take(self, connection: HttpConnection) -> bool:
        """Take a slot until `give_back`. Returns False if there is none for this address."""
        room, network = self._shares.budget, connection.network
        if room.used >= room.limit and not self._shares.has_all(network):
            self._make_room(network)
        if not self._shares.take(network):
            self._on_refused(network)
            return False
        self._taken.setdefault(network, {})[connection] = None
        return True

    def give_back(self, connection: HttpConnection) -> None:
        """Free the slot of a connection, if it still has one."""
        theirs = self._taken.get(connection.network, {})
        if connection not in theirs:
            return
        del theirs[connection]
        if not theirs:
            del self._taken[connection.network]
        self._shares.give_back(connection.network)

    def _make_room(self, network: str) -> None:
        """Close a connection for a new one of this address, if there is one that needs its slot less."""
        own = len(self._taken.get(network, ()))
        ranked = [
            (rank, -len(theirs), connection)
            for theirs in self._taken.values()
            for connection in theirs
            if (rank := _rank(connection, have=len(theirs), own=own)) is not None
        ]
        if ranked:
            closed = min(ranked, key=lambda each: each[:2])[2]  # of equal ones the oldest
            self.give_back(closed)
            closed.transport.abort()


def _rank(connection: HttpConnection, *, have: int, own: int) -> int | None:
    """How soon a connection is closed for a new one; None: it is not. `have`, `own`: how many the two addresses have.

    First those that never had an answer, then those between two requests, last those that are being answered.
    """
    has_more = have > own + 1  # and still has as many as the new one's address, after that
    if connection.waits_for_client and (has_more or own == 0):
        return int(connection.has_answered)
    return 2 if has_more else None
