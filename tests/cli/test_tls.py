"""`popmq` over TLS; and what `popmq serve` says about TLS settings that make no sense, or files that are none."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import popclient.cli
from popclient import Tls
from popclient._session.tls import _MEANINGS, hint
from popclient.cli import REFUSED, UNREACHABLE, USAGE
from popclient.cli.arguments import in_options, is_about_tls
from popserver import embedded
from popserver.config import check_exposure
from popserver.model.errors import CannotListen
from tests.support.certificates import Authority
from tests.support.server_process import refused, served


def status(endpoint: str, *options: str) -> int:
    return popclient.cli.main(["--endpoint", endpoint, "status", *options])


def test_whom_to_trust_is_an_option_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded(tls="tls", tls_dir=tmp_path) as broker:
        assert status(broker.endpoint, "--ca", str(tmp_path / "cert.pem")) == 0
        assert status(broker.endpoint, "--ca", "any") == 0
        assert status(broker.endpoint) == UNREACHABLE
        assert status(broker.endpoint, "--ca", "public") == UNREACHABLE
        assert status(f"https://{broker.endpoint}") == UNREACHABLE
        monkeypatch.setenv("POPMQ_CA", str(tmp_path / "cert.pem"))
        assert status(broker.endpoint) == 0
        assert status(f"https://{broker.endpoint}") == 0


def test_a_certificate_is_shown(tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    alice = authority.issue("alice")
    own = ("--client-cert", str(alice.cert), "--client-key", str(alice.key))
    with embedded(tls="tls", tls_dir=tmp_path, tls_client_ca=authority.ca) as broker:
        assert status(broker.endpoint, "--ca", "any", *own) == 0
        assert status(broker.endpoint, "--ca", "any") == UNREACHABLE
        assert "requires a client certificate" in capsys.readouterr().err
        assert status(broker.endpoint, "--ca", "any", *own[:2]) == USAGE
        assert status(broker.endpoint, *own) == USAGE


def test_a_file_that_is_none_is_named(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("127.0.0.1:1", "--ca", str(authority.ca.with_name("nowhere.pem"))) == REFUSED
    said = capsys.readouterr().err
    assert "nowhere.pem" in said
    assert "bytes" not in said, "what only a program can give"


def test_who_speaks_tls_to_whom_is_told_in_options(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(endpoint: str, *options: str) -> str:
        assert status(endpoint, *options) == UNREACHABLE
        sentence = capsys.readouterr().err
        assert "Tls(" not in sentence
        assert "popmq serve" not in sentence, "it is there"
        return sentence

    with embedded(tls="tls", tls_dir=tmp_path) as broker:
        capsys.readouterr()
        assert "with --ca FILE, or trust any certificate with --ca any" in said(broker.endpoint)
        for options in (("--ca", "public"), ("--ca", str(authority.ca))):
            assert "with --ca FILE, or trust any certificate with --ca any" in said(broker.endpoint, *options)
    with embedded(tls="plaintext") as broker:
        for ca in (str(authority.ca), "any"):
            leave = "it speaks no TLS there; leave out --ca, POPMQ_CA and https://, or start it with --tls permissive"
            assert leave in said(broker.endpoint, "--ca", ca)
            assert leave in said(f"https://{broker.endpoint}")


def test_every_reason_of_the_library_is_told_in_options() -> None:
    hung_up = "failed to connect to all addresses; last error: UNAVAILABLE: Socket closed"
    sentences = [meaning for _, meaning in _MEANINGS]
    sentences += [hint(hung_up, tls) or "" for tls in (None, Tls(), Tls(cert="a.pem", key="a.key"))]
    for sentence in sentences:
        assert is_about_tls(sentence)
        told = in_options(sentence)
        assert "Tls(" not in told
        assert " tls" not in told


@pytest.mark.parametrize("name", ["POPMQ_ENDPOINT", "ROCKETMQ_ENDPOINTS"])
def test_a_scheme_asks_for_tls_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with embedded(tls="tls", tls_dir=tmp_path) as broker:
        monkeypatch.setenv(name, f"https://{broker.endpoint}")
        assert popclient.cli.main(["status"]) == UNREACHABLE
        assert "--ca FILE" in capsys.readouterr().err
        monkeypatch.setenv("POPMQ_CA", str(tmp_path / "cert.pem"))
        assert popclient.cli.main(["status"]) == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--tls-cert", "a.pem"),
        ("--tls-key", "a.key"),
        ("--tls-client-ca", "ca.pem"),
        ("--tls", "plaintext", "--tls-client-ca", "ca.pem"),
        ("--tls", "plaintext", "--tls-cert", "a.pem", "--tls-key", "a.key"),
        ("--tls", "plaintext", "--tls-dir", "."),
    ],
)
def test_settings_that_contradict_each_other_are_usage_errors(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert popclient.cli.main(["serve", *options]) == USAGE
    said = capsys.readouterr().err
    assert said.startswith("popmq: ")
    assert "Value error" not in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("unfit", ["tls_cert", "tls_key", "tls_client_ca"])
def test_a_server_does_not_start_with_an_unfit_file(sqlite_url: str, authority: Authority, unfit: str) -> None:
    pair = authority.issue("server")
    files = {"tls_cert": pair.cert, "tls_key": pair.key, "tls_client_ca": authority.ca}
    files[unfit] = authority.ca.with_name("unfit.pem")
    files[unfit].write_text("notes")
    options = [word for name, file in files.items() for word in (f"--{name.replace('_', '-')}", str(file))]
    ended = refused(sqlite_url, "--tls", "tls", *options)
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"popmq: cannot use {files[unfit]} for TLS: it has no ")
    assert ended.stderr.count("\n") == 1


async def test_a_first_start_makes_a_certificate_and_the_next_keeps_it(tmp_path: Path) -> None:
    url, cert, key = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "a.db.cert.pem", tmp_path / "a.db.key.pem"
    async with served(url) as server:
        assert status_in_thread(server.endpoint, cert) == 0
        made = cert.read_bytes()
        assert key.stat().st_mode & 0o777 == 0o600
        assert await server.stop() == 0
        assert cert.name in server.stderr
    async with served(url, "--tls", "tls") as server:
        assert cert.read_bytes() == made
        assert status_in_thread(server.endpoint, cert) == 0


def status_in_thread(endpoint: str, ca: Path) -> int:
    """The command needs an event loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(status, endpoint, "--ca", str(ca)).result()


def test_a_memory_database_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with embedded(tls="permissive") as broker:
        assert status(broker.endpoint, "--ca", "any") == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_only_this_machine_is_no_exposure(host: str) -> None:
    check_exposure(host, has_auth=False, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "broker.example", ""])
def test_an_open_server_must_be_wanted(host: str) -> None:
    check_exposure(host, has_auth=True, insecure=False)
    check_exposure(host, has_auth=False, insecure=True)
    with pytest.raises(CannotListen, match="--insecure"):
        check_exposure(host, has_auth=False, insecure=False)


def test_an_open_server_does_not_start_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert popclient.cli.main(["serve", "--host", "0.0.0.0", "--port", "0"]) == REFUSED
    assert "will not listen on 0.0.0.0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


async def test_an_open_server_starts_where_it_is_wanted(sqlite_url: str) -> None:
    async with served(sqlite_url, "--host", "0.0.0.0", "--insecure") as server:
        with socket.create_connection(("127.0.0.1", int(server.endpoint.rpartition(":")[2]))):
            assert server.is_running
