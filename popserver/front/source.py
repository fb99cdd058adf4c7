"""Where a server's certificate comes from: the operator's files, files of its own making, or memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from popserver.front.certificate import Certificate, Files, read_client_ca
from popserver.front.reloading import Reloading, say_doubt
from popserver.front.self_signed import keep_certificate, make_certificate

log = structlog.get_logger("popserver.front")


class Source(Protocol):
    """The certificate to begin with, and whatever replaces it."""

    certificate: Certificate
    kept_in: str

    def fresh(self) -> Certificate | None:
        """The new certificate when there is one; None while the last one stands. Any thread may ask."""


class Wishes(NamedTuple):
    """What the operator says about it; `folder` is for what the server makes itself, None keeps that in memory."""

    host: str
    chain: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    folder: Path | None = None
    prefix: str = ""  # of the file names in that folder


class Fixed:
    """A certificate that nothing replaces."""

    kept_in = "memory"

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate

    def fresh(self) -> Certificate | None:
        return None


def open_source(wishes: Wishes, now: Callable[[], datetime]) -> Source:
    """Raises `CannotListen`, which names the file that is unfit and why."""
    if wishes.chain is not None and wishes.key is not None:
        return Reloading(Files(wishes.chain, wishes.key, wishes.client_ca), now)
    if wishes.folder is None:
        made = make_certificate(wishes.host, now())
        return Fixed(made._replace(client_ca=read_client_ca(wishes.client_ca)))
    own = Files(wishes.folder / f"{wishes.prefix}cert.pem", wishes.folder / f"{wishes.prefix}key.pem")
    keep_certificate(own, wishes.host, now())
    return Reloading(own._replace(client_ca=wishes.client_ca), now)


def announce(source: Source, now: datetime) -> None:
    """Say in the log which certificate is shown, for those who want to compare."""
    certificate = source.certificate
    log.info("certificate", kept_in=source.kept_in, sha256=certificate.fingerprint, ends=f"{certificate.ends:%Y-%m-%d}")
    say_doubt(certificate, now)
