"""A webhook: a real HTTP server, which answers as the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Got(NamedTuple):
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def words(self) -> tuple[str, str, str]:
        return self.event["event"], self.event["alert"]["kind"], self.event["alert"]["subject"]


class WebhookServer:
    """Keeps what it gets. answers: a status for each request, the last one for all further ones; None: it hangs;
    "drip": it answers a byte in a while."""

    def __init__(self) -> None:
        self.answers: list[int | str | None] = [204]
        self.got: list[Got] = []
        self.released = threading.Event()
        self.port = 0
        self.location = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=t0ken"

    @property
    def accepted(self) -> list[tuple[str, str, str]]:
        return [each.words for each in self.got]

    def next_answer(self) -> int | str | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def a_webhook() -> Iterator[WebhookServer]:
    found = WebhookServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = found.next_answer()
            got = Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            if answer is None:
                found.got.append(got)
                found.released.wait()
                return
            if answer == "drip":
                found.got.append(got)
                while not found.released.wait(0.05):
                    try:
                        self.wfile.write(b"H")
                    except OSError:
                        return
                return
            found.got.append(got)
            self.send_response(int(answer))
            if found.location:
                self.send_header("location", found.location)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
