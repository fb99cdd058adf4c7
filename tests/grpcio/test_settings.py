"""How the engine is chosen, and what goes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from popserver.serve.settings import WrongSettings, load_config
from tests.support.server_process import refused, served


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POPMQ_GRPC_ENGINE", raising=False)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, "plaintext"),
        ({"tls": "tls"}, "tls"),
        ({"tls_dir": "there"}, "tls"),
        ({"tls_cert": "c.pem", "tls_key": "k.pem"}, "tls"),
        ({"tls_client_ca": "ca.pem"}, "tls"),
    ],
)
def test_without_a_mode_tls_is_used_if_a_setting_of_it_is_given(more: dict[str, str], wanted: str) -> None:
    assert load_config({"grpc_engine": "grpcio", **more}).tls == wanted


def test_environment_and_file_choose_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "popmq.toml").write_text('grpc_engine = "grpcio"\n')
    assert load_config({}).tls == "plaintext"
    (tmp_path / "popmq.toml").write_text('tls = "tls"\n')
    monkeypatch.setenv("POPMQ_GRPC_ENGINE", "grpcio")
    assert (load_config({}).grpc_engine, load_config({}).tls) == ("grpcio", "tls")


def test_the_default_keeps_both_on_one_port() -> None:
    config = load_config({"grpc_engine": "builtin"})
    assert config.tls == "permissive"


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(WrongSettings, match="'builtin' or 'grpcio'"):
        load_config({"grpc_engine": "netty"})


def test_both_on_one_port_are_refused_with_the_way_out(sqlite_url: str) -> None:
    done = refused(sqlite_url, "--grpc-engine", "grpcio", "--tls", "permissive")
    assert done.returncode == 2
    assert done.stderr == (
        "popmq: grpc_engine=grpcio cannot accept TLS and plaintext on one port, as tls=permissive asks for; set"
        " tls=tls or tls=plaintext, or leave grpc_engine out\n"
    )


async def test_a_process_serves_with_it_and_stops(sqlite_url: str) -> None:
    async with served(sqlite_url, "--grpc-engine", "grpcio", "--admin", "127.0.0.1:0") as server:
        assert "tls=plaintext" in server.ready_line
        assert await server.stop() == 0
        assert server.mistakes == []
