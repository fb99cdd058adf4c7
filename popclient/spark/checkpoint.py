"""Shared by the streams: offsets from Spark's checkpoint, and pauses between two searches for new messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

VERSION: Final = 1
# Without a trigger interval Spark asks for new messages about ninety times a second.
PAUSES_S: Final = (0.05, 1.0)  # the first pause, and the longest; each pause is twice the one before


def next_pause(pause: float | None) -> float:
    """Seconds until the next search after one that has found nothing; `pause`: the seconds before that one."""
    first, longest = PAUSES_S
    return first if pause is None else min(pause * 2, longest)


class IdlePauses:
    """The pauses of a stream before it searches again from a position without new messages, longer each time."""

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._now = now
        self._sleep = sleep
        self._position: object = None
        self._scanned_at = 0.0
        self._pause: float | None = None

    def wait(self, position: object) -> None:
        """Before a search from this position."""
        if self._pause is not None and self._position == position:
            self._sleep(max(0.0, self._scanned_at + self._pause - self._now()))

    def note(self, position: object, *, is_idle: bool) -> None:
        """After the search."""
        before = self._pause if self._position == position else None
        self._position, self._scanned_at = position, self._now()
        self._pause = next_pause(before) if is_idle else None


def numbers_of(offset: Mapping[str, Any], whose: str, like: Mapping[str, int]) -> dict[str, int]:
    """The numbers of an offset with the same names as `like`; raises `ValueError` for any other offset.

    whose: what the offset describes, for the error. like: an example, without the version.
    """
    numbers = {name: value for name, value in offset.items() if name != "v"}
    are_whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in numbers.values())
    if offset.get("v") != VERSION or numbers.keys() != like.keys() or not are_whole:
        raise refusal(offset, whose, like)
    return numbers


def refusal(offset: Mapping[str, Any], whose: str, like: Mapping[str, Any]) -> ValueError:
    """The error for an offset that another source has written; `whose` and `like` as above."""
    shape = {"v": VERSION, **like}
    return ValueError(
        f"offset {dict(offset)} is not one of {whose}, which have the form {shape}; the checkpoint"
        " belongs to another source or version: give this query a checkpointLocation of its own"
    )
