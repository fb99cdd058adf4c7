"""The listeners behind the front: Unix sockets that gRPC serves, so that no second TCP port is needed.

On Linux they have abstract names, so nothing stays on the disk after a kill. On other systems they are files in a
folder that only this user can open. On Linux the front also binds its end of each connection to a name with the
client's address, which gRPC then shows as the call's peer.
"""

from __future__ import annotations

import asyncio
import resource
import secrets
import shutil
import socket
import sys
import tempfile
from pathlib import Path

# The pauses between tries if a listener's queue of connections is full.
_PAUSES_S = (0.01, 0.05, 0.25, 1.0)
_ABSTRACT = "unix-abstract:"
_PREFIX = "popmq-"


class InnerListeners:
    """A listener for plaintext and one for TLS. `plaintext` and `tls` are the addresses that gRPC binds."""

    def __init__(self, *, abstract: bool = sys.platform == "linux") -> None:
        self._folder = None if abstract else Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._token = f"{_PREFIX}{secrets.token_hex(8)}"
        self.plaintext = self._grpc_name("plaintext")
        self.tls = self._grpc_name("tls")

    @property
    def shows_numbers(self) -> bool:
        """Whether a call's peer includes the number of its connection."""
        return self._folder is None

    async def connect(self, *, tls: bool, peer: str, number: int) -> socket.socket:
        """A connection to a listener for the client at `peer`. Raises `OSError`.

        `number` makes its name unique: a client may connect again from the same address before the old name is free.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            if self._folder is None:
                connection.bind(f"\0{self._token}/{number}/{peer}")
            await _connect(connection, self._socket_name("tls" if tls else "plaintext"))
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _grpc_name(self, kind: str) -> str:
        return f"{_ABSTRACT}{self._token}/{kind}" if self._folder is None else f"unix:{self._folder / kind}"

    def _socket_name(self, kind: str) -> str:
        return f"\0{self._token}/{kind}" if self._folder is None else str(self._folder / kind)


def connection_number(grpc_peer: str) -> int | None:
    """The front's number for a call's connection; None if it has no number or did not come through the front.

    >>> connection_number("unix-abstract:popmq-0a1b/7/10.0.0.7:4711"), connection_number("ipv4:10.0.0.7:4711")
    (7, None)
    """
    kind, _, name = grpc_peer.partition(":")
    parts = name.split("/")
    return int(parts[1]) if kind == "unix-abstract" and len(parts) == 3 else None


def peer_address(grpc_peer: str) -> str:
    """`HOST:PORT` of a call's client, from gRPC's name for its peer. Works for connections through the front too.

    >>> peer_address("unix-abstract:popmq-0a1b/7/10.0.0.7:4711"), peer_address("ipv4:10.0.0.7:4711")
    ('10.0.0.7:4711', '10.0.0.7:4711')
    """
    kind, _, address = grpc_peer.partition(":")
    if kind.startswith("unix"):
        address = address.rpartition("/")[2]
    return address.replace("%5B", "[").replace("%5D", "]").replace("%25", "%")


async def _connect(connection: socket.socket, name: str) -> None:
    """Like `loop.sock_connect`, which mistakes a full queue of a Unix socket for a connection in progress."""
    for pause_s in _PAUSES_S:
        try:
            return connection.connect(name)
        except BlockingIOError:
            await asyncio.sleep(pause_s)
    return connection.connect(name)


# How many connections fit into the process's limit of open files, with enough left for the database.

RESERVED = 200  # for the database, the log, and what libraries open
LIMIT_MAX = 1 << 20


def raise_limit() -> None:
    """Raise this process's limit of open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # Some systems allow less than they report; then the limit stays as it is.
            return


def connections_max(files_each: int) -> int:
    """How many connections the process can have, if each needs `files_each` files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = LIMIT_MAX if soft == resource.RLIM_INFINITY else min(soft, LIMIT_MAX)
    return max(files - RESERVED, files // 2) // files_each
