"""A TCP address for a server that listens only on a socket file, for drivers that need TCP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def tcp_door(path: str) -> Iterator[int]:
    """The port on 127.0.0.1 whose connections lead to the socket file, while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, path), daemon=True).start()
        yield int(listening.getsockname()[1])


def _accept(listening: socket.socket, path: str) -> None:
    with suppress(OSError):  # closed: the block has ended
        while True:
            caller, _ = listening.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(path)
            for one, other in ((caller, server), (server, caller)):
                threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(256 * 1024):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
