"""What each of several workers may use, and when one that ended starts again."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from popserver.config import Config, GivenConfig
from popserver.model.errors import CannotListen
from popserver.serve.ports import check_ports
from popserver.serve.rules import FAILURES_MAX, PAUSE_S_MAX, STEADY_S, Restarts, share_of

POSTGRES = "postgresql://popmq@db/popmq"


def settings(workers: int, **given: Any) -> Config:
    return Config(**{"database_url": POSTGRES, "workers": workers, **given})


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


class TestShares:
    def test_limits_of_clients_are_divided(self) -> None:
        share = share_of(settings(3, max_connections=1_000, max_incoming=300, max_connections_per_address=100))
        assert (share.max_connections, share.max_incoming, share.max_connections_per_address) == (334, 100, 34)

    def test_each_has_room_for_the_largest_request(self) -> None:
        share = share_of(settings(8))
        assert share.max_incoming * 3 // 4 >= 32
        assert share.send_backlog >= 32

    def test_no_share_is_more_than_the_whole(self) -> None:
        share = share_of(settings(2, max_incoming=20, send_backlog=1))
        assert (share.max_incoming, share.send_backlog) == (20, 1)
        assert share.max_connections_per_address == 0, "0 stands for half of all"

    def test_the_rest_stays_and_counts_as_the_operators_only_if_it_was(self) -> None:
        whole = settings(2, retention="1h")
        share = share_of(whole)
        assert share.retention == 3_600_000
        assert share.model_fields_set == whole.model_fields_set


class TestRestarts:
    def test_one_that_ends_after_a_steady_time_starts_again_at_once(self) -> None:
        restarts = Restarts()
        assert [restarts.ended(STEADY_S) for _ in range(20)] == [0.0] * 20
        assert not restarts.has_given_up

    def test_one_that_keeps_ending_waits_longer_each_time(self) -> None:
        restarts = Restarts()
        assert [restarts.ended(STEADY_S - 1) for _ in range(8)] == [0, 1, 2, 4, 8, 16, PAUSE_S_MAX, PAUSE_S_MAX]

    def test_after_so_many_failures_it_gives_up(self) -> None:
        restarts = Restarts()
        for _ in range(FAILURES_MAX):
            assert not restarts.has_given_up
            restarts.ended(0.0)
        assert restarts.has_given_up


class TestRefusals:
    @pytest.mark.parametrize("number", [0, 65])
    def test_too_few_or_too_many(self, number: int) -> None:
        with pytest.raises(ValidationError, match="workers"):
            settings(number)

    def test_on_sqlite(self) -> None:
        with pytest.raises(ValidationError, match="workers=2 needs Postgres: a SQLite file has one writer"):
            settings(2, database_url="sqlite:///popmq.db")
        assert settings(1, database_url="sqlite:///popmq.db").workers == 1

    def test_in_a_program(self) -> None:
        with pytest.raises(ValidationError, match="an embedded broker is one process"):
            GivenConfig(database_url=POSTGRES, workers=2)


class TestPorts:
    @pytest.mark.parametrize("name", ["http", "admin"])
    def test_none_left(self, name: str) -> None:
        with pytest.raises(CannotListen, match=f"--{name} 127.0.0.1:65534 .* choose a port up to 65533"):
            check_ports(settings(3, **{"http": "off", name: "127.0.0.1:65534"}))
        check_ports(settings(2, **{"http": "off", name: "127.0.0.1:65534"}))

    @pytest.mark.parametrize(
        ("workers", "given", "words"),
        [
            (
                7,
                {"admin": "127.0.0.1:8088"},
                "--http and --admin .* 8082 to 8088, --admin takes the ports 8088 to 8094",
            ),
            (2, {"http": "127.0.0.1:8080"}, "--port and --http .* port 8081, --http takes the ports 8080 to 8081"),
            (2, {"http": "[::]:8081"}, "--port and --http"),
            (2, {"http": "127.0.0.1:9000", "admin": "0.0.0.0:8080"}, "--port and --admin"),
        ],
    )
    def test_some_that_overlap(self, workers: int, given: dict[str, str], words: str) -> None:
        with pytest.raises(CannotListen, match=words):
            check_ports(settings(workers, **given))

    def test_those_of_different_hosts_and_free_ones_do_not(self) -> None:
        check_ports(settings(2, http="10.0.0.1:8081", admin="10.0.0.2:8081"))
        check_ports(settings(2, port=0, http="127.0.0.1:0", admin="127.0.0.1:0"))
        check_ports(settings(6, admin="127.0.0.1:8088"))
