"""Listening sockets, the addresses of clients, the limit of open files, and the socket of the supervisor."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple


class GivenSockets(NamedTuple):
    """Sockets that another process has bound for this one, by what listens on them; empty: this process binds them."""

    clients: Sequence[socket.socket] = ()
    admin: Sequence[socket.socket] = ()
    http: Sequence[socket.socket] = ()


NONE_GIVEN = GivenSockets()


def listening_sockets(host: str, port: int, *, is_shared: bool = False) -> list[socket.socket]:
    """One bound socket for each address of the host, all on one port (0: any free port).

    `is_shared`: other sockets of this user may have the same port, and the system spreads connections over those that
    listen (SO_REUSEPORT). Unsupported address families are left out. Raises `OSError` if there is none that can be
    bound.
    """
    addresses = dict.fromkeys(
        (family, address) for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    listening: list[socket.socket] = []
    lacking: OSError | None = None
    for family, address in addresses:
        wanted = listening[0].getsockname()[1] if listening else port
        try:
            listening.append(_bound(family, (address[0], wanted, *address[2:]), is_shared=is_shared))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for each in listening:
                    each.close()
                raise
            lacking = error
    if lacking is not None and not listening:
        raise lacking
    return listening


def address_of_peer(name: Any) -> str:
    """`HOST:PORT` of a client, with an IPv6 host in brackets; "unknown" if the socket does not say."""
    if not name:
        return "unknown"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(family: int, address: tuple[Any, ...], *, is_shared: bool) -> socket.socket:
    # With the protocol given, asyncio switches Nagle's algorithm off, which delays quiet connections by 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # "::" stands for every address of the machine, IPv4 too, as in gRPC.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
        bound.bind(address)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


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


def connections_max() -> int:
    """How many connections the process can have. Each is an open file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = LIMIT_MAX if soft == resource.RLIM_INFINITY else min(soft, LIMIT_MAX)
    return max(files - RESERVED, files // 2)


def notify_supervisor(words: str) -> None:
    """Send a notification to systemd, if it waits for one (`Type=notify`; man sd_notify)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # '@' stands for the zero byte of an abstract address.
    address = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(words.encode(), address)
