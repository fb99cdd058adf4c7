"""A line between a client and its server on which an answer can be lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK = 65_536


class Line:
    """Forwards bytes; new connections always go through."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._mark: bytes | None = None
        self.has_lost = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def lose(self, mark: str) -> None:
        """The next answer that carries `mark` never arrives: its connection breaks there."""
        self.has_lost.clear()
        self._mark = mark.encode()

    def accept(self) -> None:
        """Take connections until the line is closed."""
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                threading.Thread(target=self._join, args=(near, far), daemon=True).start()

    def close(self) -> None:
        # Closing alone does not wake who waits in accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _join(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            back = threading.Thread(target=self._forward, args=(far, near, True), daemon=True)
            back.start()
            self._forward(near, far, False)
            back.join()

    def _forward(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if is_answer and self._mark is not None and self._mark in data:
                    self._mark = None
                    self.has_lost.set()
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def line_to(endpoint: str) -> Iterator[Line]:
    line = Line(endpoint)
    accepting = threading.Thread(target=line.accept, daemon=True)
    accepting.start()
    try:
        yield line
    finally:
        line.close()
        accepting.join()
