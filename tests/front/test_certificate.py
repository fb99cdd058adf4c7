"""What a server may show, and what it refuses to begin with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from popserver.front.certificate import Files, read_certificate
from popserver.model.errors import CannotListen
from tests.support.certificates import Authority, Pair


def read(pair: Pair, client_ca: Path | None = None) -> object:
    return read_certificate(Files(pair.cert, pair.key, client_ca))


def test_a_pair_that_fits_is_read(authority: Authority) -> None:
    pair = authority.issue("server")
    certificate = read_certificate(Files(pair.cert, pair.key, authority.ca))
    assert certificate.chain == pair.cert.read_bytes()
    assert certificate.key == pair.key.read_bytes()
    assert certificate.client_ca == authority.ca.read_bytes()
    assert certificate.doubt(datetime.now(UTC)) is None
    assert repr(certificate) == f"<Certificate {certificate.fingerprint}>", "the key is not shown"


def _missing(authority: Authority) -> Pair:
    return authority.issue("server")._replace(cert=authority.ca.with_name("nowhere.pem"))


def _folder(authority: Authority) -> Pair:
    return authority.issue("server")._replace(key=authority.ca.parent)


def _rubbish(authority: Authority) -> Pair:
    pair = authority.issue("server")
    pair.cert.write_bytes(b"\xff\x00 no certificate")
    return pair


def _empty_key(authority: Authority) -> Pair:
    pair = authority.issue("server")
    pair.key.write_bytes(b"")
    return pair


def _cut_off(authority: Authority) -> Pair:
    pair = authority.issue("server")
    pair.cert.write_bytes(pair.cert.read_bytes()[:200])
    return pair


def _another_key(authority: Authority) -> Pair:
    return authority.issue("server")._replace(key=authority.issue("other").key)


def _locked(authority: Authority) -> Pair:
    return authority.issue("server", password=b"secret")


def _unusual(authority: Authority) -> Pair:
    return authority.issue("server", key=ed25519.Ed25519PrivateKey.generate())


@pytest.mark.parametrize(
    ("spoil", "names", "reason"),
    [
        (_missing, "nowhere.pem", "No such file"),
        (_folder, "", "Is a directory"),
        (_rubbish, "server.pem", "no certificate in PEM"),
        (_cut_off, "server.pem", "no certificate in PEM"),
        (_empty_key, "server.key", "no private key in PEM"),
        (_another_key, "other.key", "not the key of the certificate"),
        (_locked, "server.key", "password"),
        (_unusual, "server.key", "neither an RSA nor an EC key"),
    ],
)
def test_an_unfit_file_is_named_with_the_reason(
    authority: Authority, spoil: Callable[[Authority], Pair], names: str, reason: str
) -> None:
    pair = spoil(authority)
    with pytest.raises(CannotListen) as refused:
        read(pair)
    assert names in refused.value.sentence
    assert reason in refused.value.sentence


def test_a_client_ca_is_looked_at_too(authority: Authority, tmp_path: Path) -> None:
    unfit = tmp_path / "clients.pem"
    unfit.write_text("no PEM")
    with pytest.raises(CannotListen, match=r"clients\.pem for TLS: it has no certificate"):
        read(authority.issue("server"), unfit)


@pytest.mark.parametrize(
    ("ends_in", "doubt"), [(-timedelta(hours=1), "it ended on"), (timedelta(days=3), "it ends on")]
)
def test_one_that_ended_is_read_and_doubted(authority: Authority, ends_in: timedelta, doubt: str) -> None:
    pair = authority.issue("server", ends_in=ends_in)
    said = read_certificate(Files(pair.cert, pair.key)).doubt(datetime.now(UTC))
    assert said is not None
    assert said.startswith(doubt)


def test_one_that_has_not_begun_is_doubted(authority: Authority) -> None:
    pair = authority.issue("server")
    said = read_certificate(Files(pair.cert, pair.key)).doubt(datetime.now(UTC) - timedelta(days=9))
    assert said is not None
    assert said.startswith("it begins on")
