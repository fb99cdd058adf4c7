"""Limits of connections, calls and requests."""

from __future__ import annotations

from typing import NamedTuple

from popserver.model.retry import HOUR_MS, SECOND_MS

MIB = 1024 * 1024


class CallLimits(NamedTuple):
    """The limits of one server. The defaults suit official clients (protocol 1.7 and 4)."""

    poll_ms_min: int = 5 * SECOND_MS  # requirement A12
    poll_ms_max: int = 20 * SECOND_MS
    # A poll is answered this long before its call's deadline, because some clients allow no time for the answer.
    poll_margin_ms: int = 500
    # Polls that began together end together. Each open poll adds this to the margin, so that all are answered in time.
    poll_margin_us_each: int = 500
    invisible_ms_min: int = 10 * SECOND_MS  # requirement L8; use less only for development
    invisible_ms_max: int = 12 * HOUR_MS
    # The Go push client repeats a refused receive after 20 ms without end, so a refusal is sent after this pause.
    push_refusal_pause_ms: int = 500
    # A refused Telemetry stream stays open this long after the refusal, so that clients do not reconnect at once.
    stream_refusal_pause_ms: int = 200
    # Settings are repeated on a Telemetry stream that is idle for so long: HAProxy and nginx end it after 50 to 60 s.
    stream_idle_ms: int = 25 * SECOND_MS
    messages_max: int = 128  # of one SendMessage request
    ack_entries_max: int = 1_024  # of one AckMessage request
    request_bytes_max: int = 32 * MIB  # of a SendMessage request
    incoming_bytes_max: int = 80 * MIB  # requests that are arriving or not answered yet
    request_ms: int = 60 * SECOND_MS  # from the headers of a call to the end of its request
    unsigned_request_ms: int = 5 * SECOND_MS  # the same, for a caller without a required signature
    held_up_max: int = 100  # refused calls that wait for their pause at one time
    answer_ms: int = 30 * SECOND_MS  # until a client has read the messages of a receive or a pull
    silence_ms: int = 5 * SECOND_MS  # until a connection sends its first byte
    handshake_ms: int = 10 * SECOND_MS  # from the first byte to the end of the handshake
    silent_max: int = 1_000  # connections without a first byte; beyond that the oldest is closed
    idle_ms: int = 120 * SECOND_MS  # of a connection without a call; an open stream is a call (protocol 2.4)
    watches_max: int = 1_000  # health streams, and as many reflection streams; one address gets half of them
    connections_max: int = 10_000  # or fewer, if the process may open fewer files
    connections_per_address_max: int = 0  # 0: half of `connections_max`
    admin_connections_max: int = 256  # of a port for the administration alone
    calls_per_connection_max: int = 10_000  # at one time, including parked polls
