"""An iteration receives as many messages at a time as it hands out in time."""

from __future__ import annotations

import pytest

from popclient._simple.pace import MORE_AFTER, Pace


def test_at_first_it_is_as_many_as_there_may_be() -> None:
    pace = Pace(32)
    for count in (32, 5, 0, 32):
        pace.received(count)
        pace.emptied()
        assert pace.batch == 32


@pytest.mark.parametrize(("handed_out", "batch"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (31, 16)])
def test_after_some_were_given_back_it_is_as_many_as_were_handed_out(handed_out: int, batch: int) -> None:
    pace = Pace(32)
    pace.received(32)
    pace.gave_back(32 - handed_out)
    pace.emptied()
    assert pace.batch == batch


def test_it_never_grows_when_some_are_given_back() -> None:
    pace = Pace(10)
    for received, given_back in ((10, 6), (10, 1), (4, 0)):
        pace.received(received)
        pace.gave_back(given_back)
        assert pace.batch == 4


@pytest.mark.parametrize("most", [10, 16])
def test_it_doubles_after_some_full_receives_in_time(most: int) -> None:
    pace = Pace(most)
    pace.received(10)
    pace.gave_back(6)
    sizes = []
    for _ in range(3 * MORE_AFTER):
        pace.emptied()
        pace.received(2)  # not full, so it shows nothing
        pace.emptied()
        pace.received(pace.batch)
        sizes.append(pace.batch)
    assert sizes == [*[4] * MORE_AFTER, *[8] * MORE_AFTER, *[most] * MORE_AFTER]


def test_a_receive_of_which_some_were_given_back_does_not_count() -> None:
    pace = Pace(2)
    for _ in range(3 * MORE_AFTER):
        pace.received(2)
        pace.gave_back(1)
        pace.emptied()
        assert pace.batch == 1
