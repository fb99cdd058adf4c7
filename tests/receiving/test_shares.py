"""How many messages a search takes from each source."""

from __future__ import annotations

import pytest

from popserver.receiving.batch import SourceShares


@pytest.mark.parametrize(
    ("capacity", "again_found", "new_waits", "repeats_max", "groups_max"),
    [
        (32, 32, True, 8, 20),
        (32, 4, True, 12, 24),
        (32, 0, True, 16, 28),
        (32, 32, False, 16, 16),
        (32, 0, False, 32, 32),
        (1, 1, True, 0, 0),
    ],
)
def test_limits_of_open_message_groups(
    capacity: int, again_found: int, *, new_waits: bool, repeats_max: int, groups_max: int
) -> None:
    shares = SourceShares.of(capacity, 0, again_found, new_waits=new_waits)
    assert (shares.repeats_max, shares.groups_max) == (repeats_max, groups_max)


@pytest.mark.parametrize(
    ("again_found", "in_groups", "unused", "new_max"),
    [
        (32, 20, 0, 4),  # all sources have plenty of messages
        (32, 0, 0, 16),
        (4, 0, 0, 28),
        (0, 28, 0, 4),
        (32, 0, 32, 0),
        (32, 20, 32, 0),
    ],
)
def test_limit_of_new_messages_in_a_batch_of_32(again_found: int, in_groups: int, unused: int, new_max: int) -> None:
    shares = SourceShares.of(32, 0, again_found, new_waits=True)
    assert shares.new_max(in_groups, unused) == new_max


def test_searches_for_one_message_alternate() -> None:
    limits = [SourceShares.of(1, rotation, 1, new_waits=True).new_max(0, unused=0) for rotation in range(4)]
    assert limits == [1, 0, 1, 0]
