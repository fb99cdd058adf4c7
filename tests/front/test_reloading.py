"""Files that change while the server runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from popserver.front.certificate import Files
from popserver.front.source import ReloadedCertificate
from popserver.model.errors import CannotListen
from tests.support.certificates import Authority


def reloading(authority: Authority) -> ReloadedCertificate:
    pair = authority.issue("server")
    return ReloadedCertificate(Files(pair.cert, pair.key, authority.ca), lambda: datetime.now(UTC))


def test_nothing_new_is_nothing(authority: Authority) -> None:
    source = reloading(authority)
    assert source.fresh() is None


def test_a_new_pair_is_taken_up_once(authority: Authority) -> None:
    source = reloading(authority)
    before = source.certificate
    authority.issue("server")
    fresh = source.fresh()
    assert fresh is not None
    assert fresh.fingerprint != before.fingerprint
    assert source.certificate is fresh
    assert source.fresh() is None


def test_a_bad_replacement_keeps_the_old_one_and_is_said_once(authority: Authority) -> None:
    source = reloading(authority)
    before = source.certificate
    authority.ca.with_name("server.pem").write_text("rubbish")
    with capture_logs() as said:
        assert source.fresh() is None
        assert source.fresh() is None
    assert source.certificate is before
    assert [each["event"] for each in said] == ["certificate not replaced"]
    assert "server.pem" in said[0]["reason"]


def test_half_a_pair_waits_for_the_other_half(authority: Authority) -> None:
    source = reloading(authority)
    key = authority.ca.with_name("server.key")
    old_key = key.read_bytes()
    authority.issue("server")
    new_key = key.read_bytes()
    key.write_bytes(old_key)
    assert source.fresh() is None
    key.write_bytes(new_key)
    assert source.fresh() is not None


def test_files_that_vanish_change_nothing(authority: Authority) -> None:
    source = reloading(authority)
    authority.ca.with_name("server.pem").unlink()
    assert source.fresh() is None
    authority.issue("server")
    assert source.fresh() is not None


def test_a_replacement_that_has_ended_is_shown_and_said(authority: Authority) -> None:
    source = reloading(authority)
    authority.issue("server", ends_in=-timedelta(hours=1))
    with capture_logs() as said:
        assert source.fresh() is not None
    assert [each["log_level"] for each in said] == ["info", "warning"]
    assert "it ended on" in said[1]["reason"]


def test_it_does_not_begin_with_bad_files(authority: Authority) -> None:
    pair = authority.issue("server")
    pair.cert.unlink()
    with pytest.raises(CannotListen):
        ReloadedCertificate(Files(pair.cert, pair.key), lambda: datetime.now(UTC))
