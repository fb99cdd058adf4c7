"""Where the server listens, and whether it uses TLS there.

In the modes `plaintext` and `tls` gRPC listens on the public port itself, unless callers must sign. gRPC cannot serve
both on one port. So in mode `permissive` the front listens on the public port and relays each connection to one of two
inner listeners (docs/design/0008).
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Literal, NamedTuple

from popserver.front import front
from popserver.front.connections import ConnectionLimits
from popserver.front.front import Front
from popserver.front.inner import InnerListeners, connections_max
from popserver.model.errors import CannotListen
from popserver.transport.call import Door
from popserver.transport.limits import CallLimits

if TYPE_CHECKING:
    from popserver.front.source import Source


DoorKind = Literal["http2", "grpc"]
Mode = Literal["permissive", "plaintext", "tls"]
# Files of a connection through the front: the client's socket, the front's inner socket, and gRPC's end of that.
FILES_THROUGH_FRONT = 3
_KINDS = {"permissive": front.KINDS, "plaintext": (front.PREFACE,), "tls": (front.TLS_HANDSHAKE,)}


class Listening(NamedTuple):
    """How to listen. Every mode except plaintext needs a certificate."""

    mode: Mode
    certificate: Source | None = None


class ListenAddress(NamedTuple):
    """Where the server listens now. `front` is None if gRPC has the public port itself."""

    host: str
    port: int
    front: Front | None = None

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)


PLAINTEXT = Listening("plaintext")


def listen(
    door: Door, host: str, port: int, listening: Listening, limits: CallLimits, *, must_sign: bool = False
) -> ListenAddress:
    """Bind the door to host and port (0: any free port). Raises `CannotListen` if the address cannot be bound.

    If callers must sign, every mode uses the front: it knows which connections never had a signed call.
    """
    try:
        if listening.mode == "permissive" or must_sign:
            return _behind_front(door, host, port, listening, limits, must_sign=must_sign)
        return _directly(door, host, port, None if listening.mode == "plaintext" else _source(listening))
    except (OSError, RuntimeError):
        raise cannot_listen(host, port) from None


def cannot_listen(host: str, port: int) -> CannotListen:
    return CannotListen(
        f"cannot listen on {address_of(host, port)}: the port is in use, or this machine does not have the address;"
        " stop the other server, or choose another port with --port"
    )


def address_of(host: str, port: int) -> str:
    """`HOST:PORT`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _behind_front(
    door: Door, host: str, port: int, listening: Listening, limits: CallLimits, *, must_sign: bool
) -> ListenAddress:
    inner = InnerListeners()
    room = connections_max(files_each=FILES_THROUGH_FRONT)
    patience = ConnectionLimits(
        limits.silence_ms / 1_000,
        limits.silent_max,
        min(limits.connections_max, room),
        limits.connections_per_address_max,
        must_sign and inner.shows_numbers,
    )
    if listening.mode != "tls":
        door.listen_plaintext(inner.plaintext)
    if listening.mode != "plaintext":
        door.listen_tls(inner.tls, _source(listening))
    try:
        public = Front(host, port, inner, patience, _KINDS[listening.mode])
    except OSError:
        inner.close()
        raise
    return ListenAddress(host, public.port, public)


def _directly(door: Door, host: str, port: int, source: Source | None) -> ListenAddress:
    # Try the address first: if gRPC fails to bind it, gRPC writes its own line to the log.
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)
    address = address_of(host, port)
    if source is None:
        return ListenAddress(host, door.listen_plaintext(address))
    return ListenAddress(host, door.listen_tls(address, source))


def _source(listening: Listening) -> Source:
    assert listening.certificate is not None, f"{listening.mode} needs a certificate"
    return listening.certificate


# Addresses of servers: HOST:PORT, with an IPv6 host in brackets.

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]]+)):(\d{1,5})")
PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Host and port. Raises `ValueError` if a client could not connect to the address."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[3]) <= PORT_MAX:
        raise ValueError(
            f"'{address}' is not HOST:PORT with a port from 1 to {PORT_MAX}; write it like mq-1.example:8081"
        )
    return found[1] or found[2], int(found[3])
