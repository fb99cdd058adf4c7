"""The certificate a server makes itself: kept, private, and made anew only when it must be."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from popserver.front.certificate import Files, read_certificate
from popserver.front.self_signed import VALID, keep_certificate
from popserver.model.errors import CannotListen

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "new" / "cert.pem", tmp_path / "new" / "key.pem")


def names_of(files: Files) -> set[str]:
    own = read_certificate(files).own
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_it_names_this_machine_and_lasts_ten_years(files: Files) -> None:
    keep_certificate(files, "10.0.0.7", NOW)
    assert names_of(files) >= {"localhost", "127.0.0.1", "::1", "10.0.0.7", socket.gethostname()}
    assert read_certificate(files).ends - NOW == VALID


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "127.0.0.1", "localhost"])
def test_a_wildcard_is_no_name(files: Files, host: str) -> None:
    keep_certificate(files, host, NOW)
    assert names_of(files) == {"localhost", "127.0.0.1", "::1", socket.gethostname()}


def test_only_this_user_reads_the_key(files: Files) -> None:
    keep_certificate(files, "localhost", NOW)
    assert files.key.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in files.key.parent.iterdir()) == ["cert.pem", "key.pem"]


def test_it_stays_as_long_as_it_can(files: Files) -> None:
    keep_certificate(files, "localhost", NOW)
    before = files.chain.read_bytes(), files.key.read_bytes()
    keep_certificate(files, "127.0.0.1", NOW + VALID - timedelta(days=40))
    assert (files.chain.read_bytes(), files.key.read_bytes()) == before


@pytest.mark.parametrize(("host", "later"), [("localhost", VALID - timedelta(days=20)), ("10.0.0.7", timedelta(0))])
def test_it_is_made_anew_before_it_ends_and_for_another_host(files: Files, host: str, later: timedelta) -> None:
    keep_certificate(files, "localhost", NOW)
    before = read_certificate(files).fingerprint
    keep_certificate(files, host, NOW + later)
    assert read_certificate(files).fingerprint != before
    assert host in names_of(files)


def test_half_a_pair_is_made_anew(files: Files) -> None:
    keep_certificate(files, "localhost", NOW)
    files.chain.unlink()
    keep_certificate(files, "localhost", NOW)
    assert read_certificate(files)


def test_what_is_no_certificate_is_left_alone(files: Files) -> None:
    keep_certificate(files, "localhost", NOW)
    files.chain.write_text("my notes")
    with pytest.raises(CannotListen, match=r"cert\.pem for TLS: it has no certificate"):
        keep_certificate(files, "localhost", NOW)
    assert files.chain.read_text() == "my notes"


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = Files(tmp_path / "file" / "cert.pem", tmp_path / "file" / "key.pem")
    with pytest.raises(CannotListen, match="--tls-dir"):
        keep_certificate(files, "localhost", NOW)
