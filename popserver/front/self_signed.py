"""A certificate of the server's own making, so that clients that begin with TLS are served from the first start."""

from __future__ import annotations

import ipaddress
import os
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
# Clocks of clients may be behind.
BEGUN_BEFORE = timedelta(days=1)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104


def make_certificate(host: str, now: datetime) -> Certificate:
    """A new one, valid for ten years, for the loopback names, this machine's name, and `host`."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = _signed(key, _names(host), now)
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certificate(own.public_bytes(Encoding.PEM), key_pem, None, own)


def keep_certificate(files: Files, host: str, now: datetime) -> None:
    """See that these files hold one; made anew where there is none, or it ends soon, or is not for `host`.

    The key is readable by this user alone. Raises `CannotListen` where the files are something else, or cannot be
    written.
    """
    if files.chain.exists() and files.key.exists():
        kept = read_certificate(files)
        if kept.ends - now > ENDS_SOON and _is_for(kept.own, host):
            return
    made = make_certificate(host, now)
    try:
        files.chain.parent.mkdir(parents=True, exist_ok=True)
        # The key first: whoever finds both finds them fitting.
        files.chain.unlink(missing_ok=True)
        _write(files.key, made.key, mode=0o600)
        _write(files.chain, made.chain, mode=0o644)
    except OSError as error:
        raise CannotListen(
            f"cannot keep the server's certificate in {files.chain.parent}: {error.strerror};"
            " name a folder that can be written with --tls-dir, or speak no TLS with --tls plaintext"
        ) from error


def _signed(key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName], now: datetime) -> x509.Certificate:
    own_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "PopMQ")])
    # No key usage is named: a certificate that may not sign would not be taken as its own root everywhere. It cannot
    # sign others all the same, as it is no CA.
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
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
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
    """The whole content or nothing, and never readable by others in between."""
    fresh = file.with_name(f"{file.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    fresh.replace(file)
