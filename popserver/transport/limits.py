"""What the door lets in, and how long a call may wait at it."""

from __future__ import annotations

from typing import NamedTuple

from popserver.model.retry import HOUR_MS, SECOND_MS

MIB = 1024 * 1024


class Limits(NamedTuple):
    """The door's numbers; the defaults are those official clients are used to (protocol 1.7 and 4)."""

    poll_ms_min: int = 5 * SECOND_MS  # requirement A12
    poll_ms_max: int = 20 * SECOND_MS
    # A poll is answered this long before its call's deadline: some clients leave no margin of their own.
    poll_margin_ms: int = 500
    # Many polls that began together end together: each gets so much more, to be answered one after the other.
    poll_margin_us_each: int = 500
    invisible_ms_min: int = 10 * SECOND_MS  # requirement L8; lower it for development only
    invisible_ms_max: int = 12 * HOUR_MS
    # The Go push client asks again 20 ms after a refusal, for ever: it is made to wait this long for one.
    push_refusal_pause_ms: int = 500
    # A refused telemetry stream stays open this long after its command, so that no client comes back at once.
    stream_refusal_pause_ms: int = 200
    messages_max: int = 128  # of one SendMessage request
    ack_entries_max: int = 1_024  # of one AckMessage request
    request_bytes_max: int = 32 * MIB  # of a SendMessage request
    incoming_bytes_max: int = 80 * MIB  # requests on their way in, and those that are not answered yet
    request_ms: int = 60 * SECOND_MS  # from the headers of a call to the end of its request
    unsigned_request_ms: int = 5 * SECOND_MS  # the same, of a caller who must sign and did not
    held_up_max: int = 100  # refused calls that are made to wait at a time
    answer_ms: int = 30 * SECOND_MS  # until a client has taken the messages of a receive or a pull
    silence_ms: int = 5 * SECOND_MS  # a connection without its first byte
    handshake_ms: int = 10 * SECOND_MS  # one that has begun to speak, but not made itself understood
    silent_max: int = 1_000  # connections without their first byte; of more, the oldest goes
    idle_ms: int = 120 * SECOND_MS  # a connection without a call; an open stream is one (protocol 2.4)
    watches_max: int = 1_000  # streams of the health service, and as many of reflection; an address gets half of them
    connections_max: int = 10_000  # or as many as the process has files for
    connections_per_address_max: int = 0  # 0: half of them
    calls_per_connection_max: int = 10_000  # at a time; the parked polls of a big client are among them
