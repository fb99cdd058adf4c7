"""Closes connections of gRPC's library, which has no function for it: by the sockets of this process."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

from popserver.front.sockets import address_of_peer

_OPEN_FILES = Path("/dev/fd")  # on Linux and macOS
_MAPPED = "[::ffff:"  # an IPv4 client of a socket that takes IPv6 too


def close_connections(peers: Container[str]) -> None:
    """Shut down all connections to these clients (`HOST:PORT`). The library sees that they ended."""
    for file in list(_OPEN_FILES.iterdir()):
        with suppress(OSError):
            # A copy, so that the number cannot become another file meanwhile.
            copy = os.dup(int(file.name))
            if not stat.S_ISSOCK(os.fstat(copy).st_mode):
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as each:
                if _client_of(each) in peers:
                    each.shutdown(socket.SHUT_RDWR)


def _client_of(connection: socket.socket) -> str:
    """`HOST:PORT`, as the library writes it; empty for a socket of another kind. Raises `OSError` if it listens."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    peer = address_of_peer(connection.getpeername())
    return peer.removeprefix(_MAPPED).replace("]", "") if peer.startswith(_MAPPED) else peer
