"""The certificate a server shows: read from PEM files, and judged before any client sees it."""

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
    """Where a server's certificate chain (its own first) and key lie, and the CA that clients must be certified by."""

    chain: Path
    key: Path
    client_ca: Path | None = None


class Certificate(NamedTuple):
    """PEM; fit for gRPC."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    own: x509.Certificate

    def __repr__(self) -> str:
        """Never shows the key, whoever prints it."""
        return f"<Certificate {self.fingerprint}>"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the server's own certificate, in hex."""
        return self.own.fingerprint(SHA256()).hex()

    @property
    def ends(self) -> datetime:
        return self.own.not_valid_after_utc

    def doubt(self, now: datetime) -> str | None:
        """Why clients that check certificates refuse this one, or will soon; None where they have no reason to.

        Not a reason to refuse it here: many official clients check nothing, and are better served than not.
        """
        if now > self.ends:
            return f"it ended on {self.ends:%Y-%m-%d %H:%M} UTC"
        if now < self.own.not_valid_before_utc:
            return f"it begins on {self.own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        if now > self.ends - ENDS_SOON:
            return f"it ends on {self.ends:%Y-%m-%d %H:%M} UTC"
        return None


def read_certificate(files: Files) -> Certificate:
    """Raises `CannotListen`, which names the file and what is wrong with it."""
    chain, key = _content(files.chain), _content(files.key)
    own = _certificates(files.chain, chain)[0]
    private = _private_key(files.key, key)
    if private.public_key() != own.public_key():
        raise _unfit(files.key, f"it is not the key of the certificate in {files.chain}")
    return Certificate(chain, key, read_client_ca(files.client_ca), own)


def read_client_ca(file: Path | None) -> bytes | None:
    """The certificates that clients' own must lead to. Raises `CannotListen` where the file is unfit."""
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
        raise _unfit(file, "it holds no certificate in PEM") from error


def _private_key(file: Path, content: bytes) -> Any:
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError as error:
        raise _unfit(file, "it is locked by a password; store the key without one, readable by the server alone") from (
            error
        )
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unfit(file, "it holds no private key in PEM") from error
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise _unfit(file, "it is neither an RSA nor an EC key, and others are not known to every client")
    return key


def _unfit(file: Path, reason: str) -> CannotListen:
    return CannotListen(f"cannot speak TLS with {file}: {reason}")
