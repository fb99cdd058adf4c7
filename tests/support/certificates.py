"""Certificates for tests, made quickly: a CA, what it certifies, and what nobody should accept."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

YEAR = timedelta(days=365)


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A CA; `ca` is its certificate as a file."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        begins = datetime.now(UTC) - timedelta(days=1)
        self._own = _signed(self._name, self._name, self._key.public_key(), self._key, begins, begins + YEAR, ca=True)
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self._own.public_bytes(Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = ("localhost", "127.0.0.1"),
        ends_in: timedelta = YEAR,
        key: Any = None,
        password: bytes | None = None,
    ) -> Pair:
        """Files `NAME.pem` and `NAME.key`; the same name again replaces them. `ends_in` may lie behind us."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        ends = datetime.now(UTC) + ends_in
        begins = min(ends, datetime.now(UTC)) - timedelta(days=1)
        own = _signed(_named(name), self._name, key.public_key(), self._key, begins, ends, hosts=hosts)
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        locked = BestAvailableEncryption(password) if password else NoEncryption()
        _replace(pair.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        _replace(pair.cert, own.public_bytes(Encoding.PEM))
        return pair


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: Any,
    issuer_key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
    *,
    hosts: tuple[str, ...] = (),
    ca: bool = False,
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(issuer_key, SHA256())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _replace(file: Path, content: bytes) -> None:
    fresh = file.with_name(f"{file.name}.new")
    fresh.write_bytes(content)
    fresh.replace(file)
