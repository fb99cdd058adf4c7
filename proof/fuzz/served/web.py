"""HTTP: requests and bytes that are none, at the connections of the HTTP port, with metrics, health and the console.

Nobody is signed in and no token is known, so no input may change the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sqlite3
import tempfile
from collections.abc import Iterator, MutableMapping
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, NoReturn, cast
from unittest import mock

import structlog

import popserver
from popport.connections import HttpConnection
from popserver.in_process import EmbeddedBroker
from proof.fuzz.served.server import PATIENCE_S, digest_of
from proof.fuzz.target import FuzzTarget, a_number, a_text, must, mutated

_PATHS = (
    "/", "/metrics", "/livez", "/readyz", "/groups", "/groups/g", "/groups/g/reset", "/groups/g/pause", "/messages",
    "/messages/m1", "/messages/m1/skip", "/dead-letters", "/dead-letters/g", "/dead-letters/g/export",
    "/dead-letters/g/1/repair", "/redrives/p", "/redrives/p/run", "/topics", "/topics/t", "/topics/t/publish",
    "/topics/t/delete", "/topics/t/lite/l", "/scheduled", "/scheduled/cancel", "/clients/c", "/users",
    "/users/u/policies",
    "/policies/remove", "/server", "/server/clock", "/sign-in", "/sign-out", "/static/console.js", "/static/../app.py",
    "/activity", "//", "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/%ff", "*", "http://127.0.0.1/", "/nowhere",
)  # fmt: skip
_HOSTS = ("127.0.0.1:8082", "localhost", "localhost", "[::1]", "")
_METHODS = (
    "GET",
    "GET",
    "GET",
    "GET",
    "HEAD",
    "POST",
    "POST",
    "OPTIONS",
    "PUT",
    "DELETE",
    "CONNECT",
    "TRACE",
    "get",
    "",
)
_HEADERS = (
    "Accept: text/html", "Accept: application/openmetrics-text;version=1.0.0", "Accept-Encoding: gzip",
    "Accept: */*;q=x,,;", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Cookie: popmq_session=x",
    "Cookie: ;=;\"", "Authorization: Bearer x", "Authorization: Basic %%%", "Connection: close", "Connection: Upgrade",
    "Upgrade: websocket", "Upgrade: h2c", "Expect: 100-continue", "Transfer-Encoding: chunked", "Content-Length: 3",
    "Content-Length: -1", "Content-Length: 99999999999999999999", "Range: bytes=0-", "Range: bytes=-1,,9-2",
    "If-None-Match: *", "If-Modified-Since: x", "If-Modified-Since: Thu, 99 Foo 99999 99:99:99 GMT",
    "X-Forwarded-For: ::", "Content-Type: multipart/form-data; boundary=x", "Content-Type: multipart/form-data",
    "Content-Type: application/x-www-form-urlencoded", "Content-Type: application/json", "Host: evil.example",
    " folded", "NoColon", ": x", "HX-Request: true", "Last-Event-ID: 9",
)  # fmt: skip
_FIELDS = (
    "name",
    "group",
    "topic",
    "page",
    "after",
    "since",
    "until",
    "where",
    "key",
    "tag",
    "csrf",
    "queues",
    "types",
    "q",
    "limit",
)
_FORMS = ("name=t{n}&queues=2&type=NORMAL", "access_key=u{n}&secret=a-long-secret", "paused=1", "group=g&by=1")
_PIECE_BYTES = 1_024  # of the input that arrive at once
_STATUSES_OF_FAILURES = frozenset({503})  # a page may say that the server is not ready


class WebTarget(FuzzTarget):
    """Input: what a client sends on one connection."""

    name: ClassVar[str] = "web"
    short: ClassVar[int] = 500
    tries: ClassVar[int] = 60
    bar_s: ClassVar[float] = 0.25
    leaked: ClassVar[int] = 60
    leak_bytes_max: ClassVar[int] = 512
    leak_rounds: ClassVar[int] = 12  # what a server holds for work that goes on comes and goes
    has_state: ClassVar[bool] = True

    def __init__(self) -> None:
        self._served: ServedWeb | None = None

    def draw(self, dice: random.Random) -> bytes:
        data = b"".join(_a_request(dice) for _ in range(dice.choice((1, 1, 1, 2, 3))))
        return mutated(data, dice) if dice.random() < 0.3 else data

    def judge(self, data: bytes) -> int:
        if self._served is None:
            self._served = ServedWeb()
        served = self._served
        served.errors.clear()
        sent, is_closed = served.exchange(data)
        self.reached = ""
        for status, headers, body in responses(sent, data):
            self.reached += f" {status} {headers.get('content-type')}"
            must(status < 500 or status in _STATUSES_OF_FAILURES, f"the answer is {status}: {body[:500]!r}")
            must(b"Traceback" not in body, f"the answer has a traceback: {body[:500]!r}")
        must(not served.errors, f"the server logs an error: {served.errors[:1]}")
        must(is_closed, "the connection is not given back")
        must(served.is_unchanged(), "the request has changed the store")
        return 1

    def close(self) -> None:
        if self._served is not None:
            self._served.close()
            self._served = None


class ServedWeb:
    """A server with its HTTP port, on a manual clock, whose connections get their bytes without a network."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="popmq-fuzz-")
        self._log_before = structlog.get_config()
        structlog.configure(processors=[self._note], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        path = Path(self._folder.name) / "popmq.db"
        self._running = popserver.embedded(path, manual_clock=True, http="127.0.0.1:0")
        self._broker: EmbeddedBroker = self._running.__enter__()
        web = self._broker.app.monitoring.web
        assert web is not None
        web._log._failures = cast("Any", _EveryFailure())
        self._config, self._state = web._server.config, web._server.server_state
        self._store = sqlite3.connect(path, isolation_level=None)
        self.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self._broker.settle()
        self._version, self._digest = self._version_now(), digest_of(self._store)

    def exchange(self, data: bytes) -> tuple[bytes, bool]:
        """What the server sends, and whether the connection is given back afterwards."""
        return self._broker.run(self._exchange(data))

    def is_unchanged(self) -> bool:
        if self._version_now() == self._version:
            return True
        self._version = self._version_now()
        return digest_of(self._store) == self._digest

    def close(self) -> None:
        self._store.close()
        self._running.__exit__(None, None, None)
        self._folder.cleanup()
        structlog.configure(**self._log_before)

    async def _exchange(self, data: bytes) -> tuple[bytes, bool]:
        transport = _Line()
        made = cast("Any", self._config.http_protocol_class)
        connection: HttpConnection = made(config=self._config, server_state=self._state, app_state={})
        transport.connection = connection
        before = len(self._state.connections)
        connection.connection_made(cast("Any", transport))
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                if not transport.is_closed:
                    connection.data_received(data[start : start + _PIECE_BYTES])
            async with asyncio.timeout(PATIENCE_S):
                while self._state.tasks and not _waits_for_body(connection):
                    await asyncio.wait(self._state.tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.02)
        finally:
            transport.close()
            while self._state.tasks:
                await asyncio.wait(self._state.tasks)
        return bytes(transport.sent), len(self._state.connections) == before

    def _version_now(self) -> int:
        (version,) = self._store.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _note(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
        self.errors.append("; ".join(f"{name}={value}" for name, value in event.items()))
        raise structlog.DropEvent


class _EveryFailure:
    """Lets the log tell each failure, not one a minute."""

    def dropped(self, _now_ms: int) -> int:
        return 0


class _Line(asyncio.Transport):
    """The transport of a client that reads everything."""

    connection: HttpConnection

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 8_082)})
        self.sent = bytearray()
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.connection_lost(None)

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def _waits_for_body(connection: HttpConnection) -> bool:
    """Whether the application waits for the rest of a request, which never comes."""
    cycle = connection.cycle
    return cycle is not None and not cycle.response_complete and cycle.more_body


def responses(sent: bytes, data: bytes) -> Iterator[tuple[int, dict[str, str], bytes]]:
    """The responses, read by Python's own HTTP client. Raises `FuzzViolation` for bytes that are none.

    Whether the answer to HEAD has a body depends on how much of the request was legal; then only the first is read.
    """
    stream, has_bodies = BytesIO(sent), b"HEAD" not in data.upper()
    while stream.tell() < len(sent):
        response = HTTPResponse(cast("Any", mock.Mock(makefile=lambda _mode: _Unclosed(stream))), method="GET")
        try:
            response.begin()
            body = response.read() if has_bodies else stream.read()
        except RemoteDisconnected:
            return  # all it said was that the request may go on
        except (HTTPException, ValueError) as error:
            must(False, f"what the server sends is no HTTP: {error!r}")
        yield response.status, {name.lower(): value for name, value in response.getheaders()}, body


class _Unclosed(BytesIO):
    """The rest of a stream, for a reader that closes what it has read."""

    def __init__(self, stream: BytesIO) -> None:
        super().__init__()
        self._stream = stream

    def read(self, size: int | None = -1, /) -> bytes:
        return self._stream.read(size)

    def readinto(self, buffer: Any, /) -> int:
        return self._stream.readinto(buffer)

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._stream.readline(size)


def _a_request(dice: random.Random) -> bytes:
    path = dice.choice(_PATHS)
    if dice.random() < 0.3:
        path += "?" + "&".join(f"{dice.choice(_FIELDS)}={_a_value(dice)}" for _ in range(dice.randrange(1, 4)))
    lines = [
        f"{dice.choice(_METHODS)} {path} {dice.choice(('HTTP/1.1',) * 8 + ('HTTP/1.0', 'HTTP/2.0', 'HTTP/9', ''))}"
    ]
    if dice.random() < 0.95:
        lines.append("Host: " + dice.choice((*_HOSTS, a_text(dice))))
    lines += dice.sample(_HEADERS, dice.choice((0, 1, 1, 2, 4)))
    body = ""
    if lines[0].startswith("POST"):
        body = "&".join(f"{dice.choice(_FIELDS)}={_a_value(dice)}" for _ in range(dice.randrange(4)))
        if dice.random() < 0.3:
            body = dice.choice(_FORMS).format(n=dice.randrange(10**6))
        body = dice.choice((body, body, body, json.dumps([body]), "x" * 70_000))
        if dice.random() < 0.8:
            lines.append(f"Content-Length: {len(body.encode())}")
        elif dice.random() < 0.5:
            lines.append("Transfer-Encoding: chunked")
            body = f"{dice.choice(('3', '-1', 'ffffffffffffffffff', '', 'g', '0'))}\r\n{body[:3]}\r\n0\r\n\r\n"
    if dice.random() < 0.02:
        lines.append("X-Long: " + "x" * 20_000)
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode(errors="surrogateescape")


def _a_value(dice: random.Random) -> str:
    return dice.choice(("g", "t", "1", "", "%00", "%ff", "%", "9" * 30, str(a_number(dice)), a_text(dice), "<b>"))
