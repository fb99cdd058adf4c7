"""TLS as gRPC wants it: credentials from files, bytes, or what the server shows; and its failures in words."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from popclient.config import Endpoint, Tls
from popclient.errors import PopError, Unreachable

_SHOW_TIMEOUT_S = 3


class Credentials:
    """What a channel needs; `name` is compared with the certificate in place of the host."""

    def __init__(self, channel: grpc.ChannelCredentials, name: str | None = None) -> None:
        self.channel = channel
        self.name = name


class NoHandshake(Unreachable):
    """The server did not show a certificate."""

    def __init__(self, endpoint: Endpoint, why: Exception) -> None:
        message = "timed out" if isinstance(why, TimeoutError) else str(why)
        super().__init__(f"no TLS handshake with {endpoint}: {hint(message, None) or message}", name="Unreachable")
        self.endpoint = endpoint


async def credentials_for(tls: Tls, endpoint: Endpoint) -> Credentials:
    """Raises `PopError` for files that are none, `NoHandshake` where the certificate to be taken is not shown."""
    key, cert = _pem(tls.key, "PRIVATE KEY"), _pem(tls.cert, "CERTIFICATE")
    make = partial(grpc.ssl_channel_credentials, private_key=key, certificate_chain=cert)
    if not tls.insecure:
        return Credentials(make(root_certificates=_pem(tls.ca, "CERTIFICATE")))
    # gRPC in Python cannot skip the check; so the certificate the server shows is taken as the root to check against.
    try:
        pem, name = await asyncio.wait_for(_shown_certificate(endpoint), timeout=_SHOW_TIMEOUT_S)
    except (OSError, TimeoutError) as failure:
        raise NoHandshake(endpoint, failure) from failure
    return Credentials(make(root_certificates=pem), name)


def hint(details: str, tls: Tls | None) -> str | None:
    """What a failed connection means, and what to do about it; None for any other failure."""
    for mark, meaning in _MEANINGS:
        if mark in details:
            return f"{meaning} ({_reason(details)})"
    if not any(mark in details for mark in _HUNG_UP) or "failed to connect" not in details:
        return None
    if tls is None:
        return (
            "it closed the connection at once, as a server does that accepts only TLS, or has reached its limit of"
            f" connections: see the server's log; set tls if it speaks TLS ({_reason(details)})"
        )
    if tls.cert is None:
        return (
            "it closed the connection after the TLS handshake, as a server does that requires a client certificate;"
            f" give one with Tls(cert=…, key=…) ({_reason(details)})"
        )
    return (
        "it closed the connection after the TLS handshake, as a server does that does not trust the client certificate"
        f" {_shown(tls.cert)} ({_reason(details)})"
    )


# What gRPC and OpenSSL say, and what it means.
_MEANINGS = (
    ("WRONG_VERSION_NUMBER", "it speaks no TLS there; leave tls out"),
    ("certificate has expired", "its certificate has ended, and must be renewed where the server runs"),
    (
        "Hostname Verification Check failed",
        "its certificate is for another name; use that, or give it as Tls(server_name=…)",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not trusted; name the CA, or the certificate itself, with Tls(ca=…), or trust any"
        " certificate with Tls(insecure=True)",
    ),
    ("Failed to create security handshaker", "gRPC cannot use these TLS files, or key and cert do not belong together"),
)
_HUNG_UP = ("Socket closed", "Connection reset")


def _reason(details: str) -> str:
    """The end of a gRPC sentence, where the reason stands."""
    return details.rpartition("last error: ")[2][:300]


def _shown(given: str | Path | bytes) -> str:
    return "" if isinstance(given, bytes) else repr(str(given))


async def _shown_certificate(endpoint: Endpoint) -> tuple[bytes, str | None]:
    """The certificate the server shows (PEM) and a name it is valid for."""
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    der = await _handshake(endpoint, blind, binary=True)
    pem = ssl.DER_cert_to_PEM_cert(der)
    # Only a verified certificate is handed out in readable form; so verify it against itself.
    trusting = ssl.create_default_context(cadata=pem)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    shown = await _handshake(endpoint, trusting, binary=False)
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    return pem.encode(), names[0] if names else None


async def _handshake(endpoint: Endpoint, context: ssl.SSLContext, *, binary: bool) -> Any:
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, server_hostname=endpoint.host)
    try:
        return writer.get_extra_info("ssl_object").getpeercert(binary)
    finally:
        writer.close()


def _pem(given: str | Path | bytes | None, what: str) -> bytes | None:
    """The content; `what` must stand in it."""
    if given is None:
        return None
    content = given if isinstance(given, bytes) else _content(given)
    if f"{what}-----".encode() not in content:
        name = "given as bytes" if isinstance(given, bytes) else repr(str(given))
        raise PopError(f"the TLS file {name} holds no {what.lower()} in PEM; name one that does")
    return content


def _content(file: str | Path) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as failure:
        sentence = f"the TLS file {str(file)!r} cannot be read ({failure.strerror}); name a PEM file, or give its bytes"
        raise PopError(sentence) from failure
