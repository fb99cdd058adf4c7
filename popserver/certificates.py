"""The certificate of the ports, as the configuration says. Its libraries are loaded only if there is one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from popserver.config import OFF, Config
from popserver.database.database import Database
from popserver.transport.listen import PLAINTEXT, Listening

if TYPE_CHECKING:
    from popserver.front.certificate import Certificate


def listening_of(config: Config, database: Database, own_client: Certificate | None) -> Listening:
    """How the ports listen. `own_client`: the server's own certificate as a client, which they accept."""
    if config.tls == "plaintext":
        return PLAINTEXT
    from popserver.front.source import CertificateOptions, open_source

    folder, prefix = _folder_of_own(config, database)
    options = CertificateOptions(config.host, config.tls_cert, config.tls_key, config.tls_client_ca, folder, prefix)
    source = open_source(options, lambda: datetime.now(UTC))
    return Listening(config.tls, source, b"" if own_client is None else own_client.chain)


def own_client_of(config: Config) -> Certificate | None:
    """Where clients need a certificate, the console gets one of its own, whose key is only in memory.

    Not without users: the HTTP port asks browsers for no certificate, so then anybody there could do anything.
    """
    if config.tls == "plaintext" or config.tls_client_ca is None or not config.auth or config.http == OFF:
        return None
    from popserver.front.self_signed import make_client_certificate

    return make_client_certificate(datetime.now(UTC))


def announce(listening: Listening) -> None:
    """Log what clients need to know of the certificate."""
    if listening.certificate is not None:
        from popserver.front import source

        source.announce(listening.certificate, datetime.now(UTC))


def _folder_of_own(config: Config, database: Database) -> tuple[Path | None, str]:
    """The folder for the self-signed certificate, and the prefix of its file names; None: keep it in memory."""
    if config.tls_dir is not None:
        return config.tls_dir, ""
    file = database.file
    return (None, "") if file is None else (file.parent, f"{file.name}.")
