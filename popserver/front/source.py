"""Where the server's certificate comes from: the operator's files, self-signed files, or memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from popserver.front.certificate import Certificate, Files, read_certificate, read_client_ca
from popserver.front.self_signed import keep_certificate, make_certificate
from popserver.model.errors import CannotListen

log = structlog.get_logger("popserver.front")


class Source(Protocol):
    """The current certificate, and its replacements."""

    certificate: Certificate
    kept_in: str

    def fresh(self) -> Certificate | None:
        """The new certificate, or None if it has not changed. Any thread may call this."""


class CertificateOptions(NamedTuple):
    """The operator's options. `folder` is for the self-signed certificate; None keeps it in memory."""

    host: str
    chain: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    folder: Path | None = None
    prefix: str = ""  # of the file names in that folder


class StaticCertificate:
    """A certificate that never changes."""

    kept_in = "memory"

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate

    def fresh(self) -> Certificate | None:
        return None


def open_source(options: CertificateOptions, now: Callable[[], datetime]) -> Source:
    """The source that the options describe. Raises `CannotListen`, which names the bad file and the problem."""
    if options.chain is not None and options.key is not None:
        return ReloadedCertificate(Files(options.chain, options.key, options.client_ca), now)
    if options.folder is None:
        made = make_certificate(options.host, now())
        return StaticCertificate(made._replace(client_ca=read_client_ca(options.client_ca)))
    own = Files(options.folder / f"{options.prefix}cert.pem", options.folder / f"{options.prefix}key.pem")
    keep_certificate(own, options.host, now())
    return ReloadedCertificate(own._replace(client_ca=options.client_ca), now)


def announce(source: Source, now: datetime) -> None:
    """Log the certificate's fingerprint, so that operators can compare it."""
    certificate = source.certificate
    log.info("certificate", kept_in=source.kept_in, sha256=certificate.fingerprint, ends=f"{certificate.ends:%Y-%m-%d}")
    warn_of_doubt(certificate, now)


# Changed certificate files are used from the next handshake on. If a new file is bad, the old certificate stays in use.

# Identifies the content of a file: inode, time of its last change in ns, size. None: there is no file.
_Stamp = tuple[tuple[int, int, int] | None, ...]


class ReloadedCertificate:
    """Reads the certificate files again when they change. It is asked at every handshake.

    Each check costs one `stat` per file.
    """

    def __init__(self, files: Files, now: Callable[[], datetime]) -> None:
        """Raises `CannotListen` for bad files."""
        self._files = files
        self._now = now
        self._checking = threading.Lock()
        self._seen = _stamp(files)
        self.certificate = read_certificate(files)
        self.kept_in = str(files.chain)

    def fresh(self) -> Certificate | None:
        """The new certificate, or None if it has not changed."""
        # One thread checks; the others use the current certificate.
        if not self._checking.acquire(blocking=False):
            return None
        try:
            return self._check_files()
        finally:
            self._checking.release()

    def _check_files(self) -> Certificate | None:
        stamp = _stamp(self._files)
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            certificate = read_certificate(self._files)
        except CannotListen as error:
            # Also happens while an operator replaces the two files. The second file changes the stamp again.
            log.warning("certificate not replaced", reason=error.sentence)
            return None
        self.certificate = certificate
        log.info("certificate replaced", file=str(self._files.chain), sha256=certificate.fingerprint)
        warn_of_doubt(certificate, self._now())
        return certificate


def warn_of_doubt(certificate: Certificate, now: datetime) -> None:
    doubt = certificate.doubt(now)
    if doubt is not None:
        log.warning("clients that check certificates may refuse this one", reason=doubt, sha256=certificate.fingerprint)


def _stamp(files: Files) -> _Stamp:
    return tuple(_stamp_of(file) for file in files if file is not None)


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
