"""The server's TLS certificate: read from PEM files and checked before the server uses it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from popserver.model.errors import CannotListen

ENDS_SOON = timedelta(days=30)


class Files(NamedTuple):
    """The files of a server's certificate chain (its own first) and key, and of the CA that must sign clients'."""

    chain: Path
    key: Path
    client_ca: Path | None = None


class Certificate(NamedTuple):
    """A certificate chain, its key and the CA for clients, in PEM as gRPC takes them; and the parsed certificate."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    own: x509.Certificate

    def __repr__(self) -> str:
        """Without the key, so that no log can show it."""
        return f"<Certificate {self.fingerprint}>"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the server's own certificate, in hex."""
        return self.own.fingerprint(SHA256()).hex()

    @property
    def ends(self) -> datetime:
        return self.own.not_valid_after_utc

    def doubt(self, now: datetime) -> str | None:
        """Why clients that check certificates refuse this one, or will soon; None if it is fine.

        The server uses such a certificate anyway, because many official clients do not check certificates.
        """
        if now > self.ends:
            return f"it ended on {self.ends:%Y-%m-%d %H:%M} UTC"
        if now < self.own.not_valid_before_utc:
            return f"it begins on {self.own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        if now > self.ends - ENDS_SOON:
            return f"it ends on {self.ends:%Y-%m-%d %H:%M} UTC"
        return None


def read_certificate(files: Files) -> Certificate:
    """Read and check a certificate. Raises `CannotListen`, which names the file and the problem."""
    chain, key = _content(files.chain), _content(files.key)
    own = _certificates(files.chain, chain)[0]
    private = _private_key(files.key, key)
    if private.public_key() != own.public_key():
        raise _unfit(files.key, f"it is not the key of the certificate in {files.chain}")
    return Certificate(chain, key, read_client_ca(files.client_ca), own)


def read_client_ca(file: Path | None) -> bytes | None:
    """The CA certificates for checking clients, as PEM; None without a file. Raises `CannotListen` for a bad file."""
    if file is None:
        return None
    content = _content(file)
    _certificates(file, content)
    return content


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unfit(file, error.strerror or str(error)) from error


def _certificates(file: Path, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise _unfit(file, "it has no certificate in PEM format") from error


def _private_key(file: Path, content: bytes) -> Any:
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:
        raise _unfit(file, "it has a password; store the key without one, readable only by the server") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unfit(file, "it has no private key in PEM format") from error
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise _unfit(file, "it is neither an RSA nor an EC key, and some clients support only these")
    return key


def _unfit(file: Path, reason: str) -> CannotListen:
    return CannotListen(f"cannot use {file} for TLS: {reason}")
