"""HTTP proxies, which gRPC takes from the environment by itself.

A server on this machine is never reached through a proxy. For another one gRPC's own rules count: the first of
grpc_proxy, https_proxy and http_proxy, unless no_grpc_proxy or no_proxy names the server.
"""

from __future__ import annotations

import asyncio
import os
import socket
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

_PROXIES: Final = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS: Final = ("no_grpc_proxy", "no_proxy")


async def proxy_for(host: str) -> str | None:
    """The variable with the proxy through which gRPC would reach the host; None: it must connect directly."""
    name = _first_set(_PROXIES)
    return None if name is None or _is_excepted(host) or await _is_here(host) else name


def about(variable: str) -> str:
    """For an error: which proxy that is, without its password."""
    proxy = urlsplit(os.environ.get(variable, ""))
    where = f"{proxy.hostname}:{proxy.port} " if proxy.hostname and proxy.port else ""
    return f"through the proxy {where}that the variable {variable} names; unset it, or name the server in no_proxy"


def _first_set(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if os.environ.get(name)), None)


def _is_excepted(host: str) -> bool:
    name = _first_set(_EXCEPTIONS)
    if name is None:
        return False
    return any(_fits(host, each.strip()) for each in os.environ[name].split(",") if each.strip())


def _fits(host: str, exception: str) -> bool:
    """As gRPC has it: the end of a name, or a block of addresses."""
    try:
        return ip_address(host) in ip_network(exception, strict=False)
    except ValueError:
        return host.lower().endswith(exception.lower())


async def _is_here(host: str) -> bool:
    """Has the name only addresses of this machine's own?"""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found]
    plain = [getattr(each, "ipv4_mapped", None) or each for each in addresses]
    return bool(plain) and all(each.is_loopback or each.is_unspecified for each in plain)
