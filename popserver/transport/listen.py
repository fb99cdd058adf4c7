"""Where the server listens, and whether it speaks TLS there.

`plaintext` and `tls` are gRPC's own ports, unless callers must sign. gRPC cannot take both on one port: for
`permissive` the front owns the public port and passes each connection on to one of two listeners inside
(docs/design/0008).
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Literal, NamedTuple

from popserver.front import front
from popserver.front.front import Front
from popserver.front.inner import InnerListeners, connections_max
from popserver.model.errors import CannotListen
from popserver.transport.call import Door
from popserver.transport.limits import Limits

if TYPE_CHECKING:
    from popserver.front.source import Source


Mode = Literal["permissive", "plaintext", "tls"]
# A connection through the front: the client's, the front's own, and gRPC's end of that.
FILES_THROUGH_FRONT = 3
_KINDS = {"permissive": front.KINDS, "plaintext": (front.PREFACE,), "tls": (front.TLS_HANDSHAKE,)}


class Listening(NamedTuple):
    """How to listen; every mode but plaintext needs a certificate."""

    mode: Mode
    certificate: Source | None = None


class Place(NamedTuple):
    """Where the server listens now; `front` is there in permissive mode."""

    host: str
    port: int
    front: Front | None = None

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)


PLAINTEXT = Listening("plaintext")


def listen(door: Door, host: str, port: int, listening: Listening, limits: Limits, *, must_sign: bool = False) -> Place:
    """Bind the door to host and port (0: any free one). Raises `CannotListen` where the address is taken.

    Where callers must sign, the front is there in every mode: it tells connections that never did from the others.
    """
    try:
        if listening.mode == "permissive" or must_sign:
            return _behind_front(door, host, port, listening, limits, must_sign=must_sign)
        return _directly(door, host, port, None if listening.mode == "plaintext" else _source(listening))
    except (OSError, RuntimeError):
        raise CannotListen(
            f"cannot listen on {address_of(host, port)}: the port is taken or the address is not this machine's;"
            " stop the other server, or choose another with --port"
        ) from None


def address_of(host: str, port: int) -> str:
    """`HOST:PORT`; an IPv6 host stands in brackets, or its last part would be taken for the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _behind_front(door: Door, host: str, port: int, listening: Listening, limits: Limits, *, must_sign: bool) -> Place:
    inner = InnerListeners()
    room = connections_max(files_each=FILES_THROUGH_FRONT)
    patience = front.Limits(
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
    return Place(host, public.port, public)


def _directly(door: Door, host: str, port: int, source: Source | None) -> Place:
    # Asked first, the system says no in silence; gRPC would write a line of its own beside ours.
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(place)
    address = address_of(host, port)
    if source is None:
        return Place(host, door.listen_plaintext(address))
    return Place(host, door.listen_tls(address, source))


def _source(listening: Listening) -> Source:
    assert listening.certificate is not None, f"{listening.mode} needs a certificate"
    return listening.certificate


# Where a server is reached: HOST:PORT, an IPv6 host in brackets.

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]]+)):(\d{1,5})")
PORT_MAX = 65_535


def split_address(address: str) -> tuple[str, int]:
    """Host and port; raises `ValueError` where the text is no address a client could dial."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[3]) <= PORT_MAX:
        raise ValueError(f"'{address}' is no HOST:PORT with a port from 1 to {PORT_MAX}; write mq-1.example:8081")
    return found[1] or found[2], int(found[3])
