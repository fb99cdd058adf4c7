"""How durations are written: server and client read the same ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from popclient import _arguments as _options
from popserver.model import times

READERS = [times.parse_duration_ms, _options.parse_duration_ms]
READ = {
    "500ms": 500,
    "10s": 10_000,
    "5m": 300_000,
    "1.5m": 90_000,
    "2h": 7_200_000,
    "3d": 259_200_000,
    "1h30m": 5_400_000,
    "30m1h": 5_400_000,
    "1d2h3m4s5ms": 93_784_005,
    "0s": 0,
    "0.0004s": 0,
    "0.0006s": 1,
    " 10s ": 10_000,
    "10 s": 10_000,
    "1h 30m": 5_400_000,
    "9999999999d": 863_999_999_913_600_000,
}
REFUSED = ["", " ", "10", "s", "1.5", ".5s", "5.s", "-5s", "+5s", "1e3s", "10S", "10sec", "10s,1m", "10s x", "1_000s"]


@pytest.mark.parametrize("read", READERS, ids=["server", "client"])
@pytest.mark.parametrize("written", READ)
def test_durations_are_read(read: Callable[[str], int], written: str) -> None:
    assert read(written) == READ[written]


@pytest.mark.parametrize("read", READERS, ids=["server", "client"])
@pytest.mark.parametrize("written", REFUSED)
def test_anything_else_is_refused(read: Callable[[str], int], written: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write 500ms, 10s, 5m, 2h or 1h30m"):
        read(written)


@pytest.mark.parametrize("read", READERS, ids=["server", "client"])
@pytest.mark.parametrize("written", ["106751991168d", "9" * 400 + "s"], ids=["a bit", "by far"])
def test_a_duration_that_no_number_holds_is_refused(read: Callable[[str], int], written: str) -> None:
    with pytest.raises(ValueError, match="is too long for a duration"):
        read(written)


def test_the_server_takes_texts_timedeltas_and_whole_milliseconds() -> None:
    assert [times.duration_ms_of(each) for each in ("1h", timedelta(hours=1), 3_600_000)] == [3_600_000] * 3


@pytest.mark.parametrize("given", [0.5, True, None, float("nan"), float("inf"), [1]])
def test_another_kind_is_refused_with_those_that_are_durations(given: object) -> None:
    with pytest.raises(ValueError, match="is not a duration; write '500ms', '10s' or '2h', or give a timedelta; a num"):
        times.duration_ms_of(given)
