"""The demo's proof fails where there is something to find."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from examples.flights.groups import ARRIVALS, RADAR
from examples.flights.proof import Proof, prove
from examples.flights.watching import looking_at
from tests.examples.conftest import FLIGHTS


def proofs(path: Path) -> dict[str, Proof]:
    with looking_at(path) as database:
        return {each.consumer_group: each for each in prove(database)}


def test_it_holds(finished: Path) -> None:
    found = proofs(finished)
    assert found[ARRIVALS] == Proof(ARRIVALS, 4, 3, 1, 0, 0, 0, 0, 0)
    assert found[RADAR][:8] == (RADAR, 4, 4, 0, 0, 0, 0, 0)
    assert all(each.holds(FLIGHTS, all_read=True) for each in found.values())
    assert not any(each.holds(FLIGHTS + 1, all_read=True) for each in found.values())


_ONE = "(SELECT max(message_key) FROM history WHERE event = 'ACK')"
_EVENT = "INSERT INTO history (at_ms, group_id, message_key, event, from_state, to_state, attempt, client_id, reason)"
_OF = f"FROM history WHERE group_id = 1 AND message_key = {_ONE} AND event"


@pytest.mark.parametrize(
    ("fault", "column"),
    [
        (f"DELETE FROM history WHERE event = 'ACK' AND group_id = 1 AND message_key = {_ONE}", "lost"),
        (f"{_EVENT} SELECT at_ms, 1, message_key, event, '', '', 1, '', '' {_OF} = 'ACK'", "ended_twice"),
        (f"{_EVENT} SELECT at_ms + 4999, 1, message_key, event, '', '', 2, '', '' {_OF} = 'RECEIVE'", "duplicates"),
        ('UPDATE message SET body = \'{"arr_time": "830"}\'', "misjudged"),
    ],
)
def test_it_finds(finished: Path, tmp_path: Path, fault: str, column: str) -> None:
    path = Path(shutil.copy(finished, tmp_path))
    with sqlite3.connect(path) as conn:
        assert conn.execute(fault).rowcount > 0
    conn.close()
    found = proofs(path)[ARRIVALS]
    assert getattr(found, column) == 1
    assert not found.holds(FLIGHTS, all_read=True)


def test_what_waits_is_not_lost(finished: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(finished, tmp_path))
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE progress SET next_offset = next_offset - 1 WHERE group_id = 2")
        conn.execute(f"DELETE FROM history WHERE group_id = 2 AND message_key = {_ONE}")
    conn.close()
    found = proofs(path)[RADAR]
    assert (found.committed, found.waiting, found.lost, found.ended_twice) == (3, 1, 0, 0)
    assert found.holds(FLIGHTS, all_read=False)
    assert not found.holds(FLIGHTS, all_read=True)


def test_a_delivery_after_the_hold_is_no_duplicate(finished: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(finished, tmp_path))
    with sqlite3.connect(path) as conn:
        conn.execute(f"{_EVENT} SELECT at_ms + 5000, 1, message_key, event, '', '', 2, '', '' {_OF} = 'RECEIVE'")
    conn.close()
    assert proofs(path)[ARRIVALS].duplicates == 0


def test_a_delivery_after_an_answer_that_reached_nobody_is_no_duplicate(finished: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(finished, tmp_path))
    with sqlite3.connect(path) as conn:
        for event, after_ms in (("RELEASE", 1_000), ("RECEIVE", 1_100)):
            row = f"at_ms + {after_ms}, 1, message_key, '{event}', '', '', 1, '', ''"
            conn.execute(f"{_EVENT} SELECT {row} {_OF} = 'RECEIVE' LIMIT 1")
    conn.close()
    assert proofs(path)[ARRIVALS].duplicates == 0
