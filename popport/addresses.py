"""Names and addresses: of those who call, and of the port that they call."""

from __future__ import annotations

import ipaddress
import re

NETWORK_BITS = 64  # of an IPv6 address. Who has one such network has all of its addresses.

_PATH = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._~-]*)+")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`, with or without the brackets of IPv6."""
    address = _address_of(host)
    return host == "localhost" if address is None else address.is_loopback


def is_ip(host: str) -> bool:
    """Whether the host is an IP address, with or without the brackets of IPv6."""
    return _address_of(host) is not None


def network_of(host: str) -> str:
    """Who a limit per address counts: an IPv4 address, or the network of an IPv6 address."""
    address = _address_of(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(address), NETWORK_BITS), strict=False))
    return host if address is None else str(address)


def name_of(host: str) -> str:
    """The name in a Host header, without its port, in lower case. An IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower().rstrip(".")


def is_own_name(host: str, allowed: frozenset[str]) -> bool:
    """Whether a Host header names this machine by an address, as localhost, or by an allowed name.

    A page on the internet can let its own name point to 127.0.0.1, and a browser then lets it read the answers. Such a
    request has the page's name in the header. A request without a name comes from no browser: load balancers ask so.
    """
    name = name_of(host)
    return not name or name == "localhost" or name.endswith(".localhost") or name in allowed or is_ip(name)


def path_of(written: str) -> str:
    """A path of a proxy, without a slash at its end; empty for the root. Raises ValueError for what is no such path."""
    path = written.rstrip("/")
    if path and not _PATH.fullmatch(path):
        raise ValueError(
            f"'{written}' is no path of a proxy; write what browsers see, such as /popmq, of letters, digits and ._~-"
        )
    return path


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name. A caller from 127.0.0.1 comes to the address [::] as ::ffff:127.0.0.1."""
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
