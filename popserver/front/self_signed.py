"""A self-signed certificate, so that a new server can serve clients that use TLS."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from popserver.front.certificate import ENDS_SOON, Certificate, Files, read_certificate
from popserver.model.errors import CannotListen

VALID = timedelta(days=3_650)
# The certificate is valid from one day before, because clocks of clients may be behind.
BEGUN_BEFORE = timedelta(days=1)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104


def make_certificate(host: str, now: datetime) -> Certificate:
    """A new certificate, valid for ten years, for the loopback names, this machine's name, and `host`."""
    return _made(_names(host), ExtendedKeyUsageOID.SERVER_AUTH, now)


def make_client_certificate(now: datetime) -> Certificate:
    """A new certificate with which this process can be a client of itself."""
    return _made(_names(""), ExtendedKeyUsageOID.CLIENT_AUTH, now)


def keep_certificate(files: Files, host: str, now: datetime) -> None:
    """Make a new certificate in these files, unless they have one that is for `host` and does not end soon.

    Only this user can read the key. Raises `CannotListen` if the files have other content or cannot be written.
    """
    if files.chain.exists() and files.key.exists():
        kept = read_certificate(files)
        if kept.ends - now > ENDS_SOON and _is_for(kept.own, host):
            return
    made = make_certificate(host, now)
    try:
        files.chain.parent.mkdir(parents=True, exist_ok=True)
        # The key is written first, so that a reader who finds both files finds a matching pair.
        files.chain.unlink(missing_ok=True)
        _write(files.key, made.key, mode=0o600)
        _write(files.chain, made.chain, mode=0o644)
    except OSError as error:
        raise CannotListen(
            f"cannot write the server's certificate to {files.chain.parent}: {error.strerror};"
            " choose a writable folder with --tls-dir, or switch TLS off with --tls plaintext"
        ) from error


def _made(names: list[x509.GeneralName], usage: x509.ObjectIdentifier, now: datetime) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    own = _signed(key, names, usage, now)
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(own.public_bytes(Encoding.PEM), key_pem, None, own)


def _signed(
    key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName], usage: x509.ObjectIdentifier, now: datetime
) -> x509.Certificate:
    # A name of its own: OpenSSL takes a certificate with the name of a CA that it trusts for a wrong one of that CA.
    own_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"PopMQ {secrets.token_hex(8)}")])
    # Without key usage: some clients reject a self-signed certificate as its own root if its key usage forbids signing.
    # It cannot sign other certificates anyway, because it is not a CA.
    return (
        x509.CertificateBuilder()
        .subject_name(own_name)
        .issuer_name(own_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEGUN_BEFORE)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(key, SHA256())
    )


def _names(host: str) -> list[x509.GeneralName]:
    names = [*_LOOPBACK, socket.gethostname()]
    if host not in _WILDCARDS:
        names.append(host)
    return [_general_name(name) for name in dict.fromkeys(names) if name.isascii() and name]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_for(own: x509.Certificate, host: str) -> bool:
    if host in _WILDCARDS:
        return True
    try:
        names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return _general_name(host) in names


def _write(file: Path, content: bytes, *, mode: int) -> None:
    """Write the whole content or nothing. Other users cannot read it at any time, unless `mode` allows it."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(file)
