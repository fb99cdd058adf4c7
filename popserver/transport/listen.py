"""Where the server listens, and whether it uses TLS there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from popserver.model.errors import CannotListen

if TYPE_CHECKING:
    from popserver.front.source import Source

# permissive: TLS and plaintext on one port (docs/design/0008).
Mode = Literal["permissive", "plaintext", "tls"]
# What speaks gRPC: the server itself, or gRPC's library (docs/design/0025).
Engine = Literal["builtin", "grpcio"]


class Listening(NamedTuple):
    """How to listen. Every mode except plaintext needs a certificate.

    `own_client`: a certificate, in PEM, with which this process is a client of itself; it is accepted besides those of
    the CA for clients.
    """

    mode: Mode
    certificate: Source | None = None
    own_client: bytes = b""


PLAINTEXT = Listening("plaintext")


def cannot_listen(host: str, port: int, option: str) -> CannotListen:
    """`option` of the command line sets the port."""
    return CannotListen(
        f"cannot listen on {address_of(host, port)}: the port is in use, or this machine does not have the address;"
        f" stop the other server, or choose another port with {option}"
    )


def cannot_listen_for_http(host: str, port: int, error: OSError) -> CannotListen:
    return CannotListen(
        f"cannot listen for HTTP on {address_of(host, port)} ({error.strerror or error}); stop the other server, give"
        " another address with --http HOST:PORT, or serve no HTTP with --http off"
    )


def address_of(host: str, port: int) -> str:
    """`HOST:PORT`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Addresses of servers: HOST:PORT, with an IPv6 host in brackets.

_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^\s:\[\]]+)):(\d{1,5})")
PORT_MAX = 65_535


def split_address(address: str, *, port_min: int = 1) -> tuple[str, int]:
    """Host and port. Raises `ValueError` if a client could not connect to the address."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not port_min <= int(found[3]) <= PORT_MAX:
        raise ValueError(
            f"'{address}' is not HOST:PORT with a port from {port_min} to {PORT_MAX}; write it like mq-1.example:8081"
        )
    return found[1] or found[2], int(found[3])
