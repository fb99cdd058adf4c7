"""An iteration receives as many messages at a time as it hands out in time."""

from __future__ import annotations

import pytest

from popclient._simple.batch_size import MORE_AFTER, BatchSize


def test_at_first_it_is_as_many_as_there_may_be() -> None:
    size = BatchSize(32)
    for count in (32, 5, 0, 32):
        size.received(count)
        size.emptied()
        assert size.value == 32


@pytest.mark.parametrize(("handed_out", "batch"), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (31, 16)])
def test_after_some_were_given_back_it_is_as_many_as_were_handed_out(handed_out: int, batch: int) -> None:
    size = BatchSize(32)
    size.received(32)
    size.gave_back(32 - handed_out)
    size.emptied()
    assert size.value == batch


def test_it_never_grows_when_some_are_given_back() -> None:
    size = BatchSize(10)
    for received, given_back in ((10, 6), (10, 1), (4, 0)):
        size.received(received)
        size.gave_back(given_back)
        assert size.value == 4


@pytest.mark.parametrize("most", [10, 16])
def test_it_doubles_after_some_full_receives_in_time(most: int) -> None:
    size = BatchSize(most)
    size.received(10)
    size.gave_back(6)
    sizes = []
    for _ in range(3 * MORE_AFTER):
        size.emptied()
        size.received(2)  # not full, so it shows nothing
        size.emptied()
        size.received(size.value)
        sizes.append(size.value)
    assert sizes == [*[4] * MORE_AFTER, *[8] * MORE_AFTER, *[most] * MORE_AFTER]


def test_a_receive_of_which_some_were_given_back_does_not_count() -> None:
    size = BatchSize(2)
    for _ in range(3 * MORE_AFTER):
        size.received(2)
        size.gave_back(1)
        size.emptied()
        assert size.value == 1
