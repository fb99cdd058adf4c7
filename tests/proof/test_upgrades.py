"""Stores of earlier versions are upgraded through kills, and the harness finds what a migration breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.upgrades import pairs
from proof.upgrades.planted import FAULTS
from proof.upgrades.upgrade import too_old, upgrade
from proof.upgrades.versions import ROOT, Found, Version, found, next_one, take_out, this_one

# A few kills in one migration; `make upgrades` kills before each statement.
EVERY = 2  # statements; the planted migration has few


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """The newest earlier version."""
    return take_out(_versions()[-1], tmp_path_factory.mktemp("newest"))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """The next version."""
    return next_one(tmp_path_factory.mktemp("planted"))


@pytest.fixture(params=["sqlite_url", "empty_postgres_url"], ids=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Without a schema: the earlier version makes its own."""
    url: str = request.getfixturevalue(request.param)
    return url


def _versions() -> list[Found]:
    if not (versions := found()):
        pytest.skip("the history of this clone is shallow or absent; get it with: git fetch --unshallow")
    return versions


def test_history_has_each_revision_once() -> None:
    revisions = [each.revision for each in _versions()]
    assert revisions == sorted(set(revisions))


def test_without_a_history_there_are_no_versions(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    assert ROOT.joinpath("proof").is_dir()


@pytest.mark.full
def test_a_store_of_this_version_survives_kills(planted: Version, database_url: str) -> None:
    result = upgrade(this_one(), database_url, planted, every=EVERY)
    assert result.violations == []
    assert result.counts["kills_in_mid_migration"] >= 3
    assert result.counts["refusals"] == 2


@pytest.mark.full
def test_a_store_of_the_newest_version_survives_kills(newest: Version, database_url: str) -> None:
    result = upgrade(newest, database_url, this_one())
    assert result.violations == []
    assert result.counts["kills_in_mid_migration"] >= 1


@pytest.mark.full
def test_a_version_that_is_too_old_is_refused(tmp_path: Path, database_url: str) -> None:
    oldest = take_out(_versions()[0], tmp_path)
    assert too_old(oldest, database_url).violations == []


@pytest.mark.full
def test_clients_and_servers_of_the_newest_version(newest: Version, tmp_path: Path) -> None:
    assert pairs.old_client(newest, f"sqlite:///{tmp_path}/new.db").violations == []
    assert pairs.new_client(newest, f"sqlite:///{tmp_path}/old.db").violations == []


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(planted: Version, tmp_path: Path, fault: str) -> None:
    result = upgrade(this_one(), f"sqlite:///{tmp_path}/store.db", planted, every=EVERY, fault=fault)
    assert result.violations != []


@pytest.mark.parametrize(
    ("outcome", "is_new", "is_allowed"),
    [
        ("ok", False, True),
        ("BadRequest: a topic cannot accept message type 5", True, True),
        ("BadRequest: a topic cannot accept message type 5", False, False),
        ("absent: 'Admin' object has no attribute 'pause_group'", True, False),
        ("AioRpcError: <AioRpcError of RPC that ended with:\n\tstatus = StatusCode.UNKNOWN", True, False),
    ],
)
def test_how_a_call_may_end(outcome: str, is_new: bool, is_allowed: bool) -> None:
    assert pairs.is_allowed(outcome, is_new=is_new, is_old_client=False) == is_allowed
