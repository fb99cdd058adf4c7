"""A request that is not gRPC, such as a browser's: the answer says what this server is."""

from __future__ import annotations

from collections.abc import Callable

from popserver.http2 import headers
from popserver.http2.outgoing import Outgoing
from popserver.http2.stream import Stream

SENTENCE = b"This is a gRPC server. Use a client of RocketMQ 5, popclient or grpcurl.\n"
# It is answered when it is complete, or when so much of it has arrived.
READ_BYTES_MAX = 32 * 1024


class OtherRequest:
    """One such request."""

    def __init__(
        self,
        outgoing: Outgoing,
        stream: Stream,
        status: int,
        arrived: Callable[[OtherRequest], None],
        since_s: float,
    ) -> None:
        """`status` is the answer's HTTP status. `arrived` is called when nothing is waited for any more."""
        self.since_s = since_s
        self._outgoing = outgoing
        self._arrived = arrived
        self.stream = stream
        self._status = status
        self._size = 0
        self._is_answered = False

    def received(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > READ_BYTES_MAX:
            self.give_up()

    def ended(self) -> None:
        self.give_up()

    def give_up(self) -> None:
        """Answer now."""
        if self._is_answered:
            return
        self._is_answered = True
        self._outgoing.begin(self.stream, headers.http_status(self._status))
        self._outgoing.send(self.stream, SENTENCE)
        self._outgoing.finish(self.stream, b"")
        self._arrived(self)

    def drained(self) -> None:
        """The stream ends by itself."""

    def closed(self, *, by_client: bool) -> None:
        self._arrived(self)
