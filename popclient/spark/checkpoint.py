"""What the streams share: offsets read from Spark's checkpoint, and pauses between looks for new messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

VERSION: Final = 1
# Without a trigger interval Spark asks for new messages about ninety times a second.
LOOK_AGAIN_S: Final = (0.05, 1.0)  # the first pause, and the longest; each pause is twice the one before


def next_pause(pause: float | None) -> float:
    """Seconds until the next look after one that has found nothing; `pause`: the seconds before that one."""
    first, longest = LOOK_AGAIN_S
    return first if pause is None else min(pause * 2, longest)


class IdlePauses:
    """The pauses of a stream before it looks again from a place where it has found nothing, longer each time."""

    def __init__(self, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._now = now
        self._sleep = sleep
        self._place: object = None
        self._looked_at = 0.0
        self._pause: float | None = None

    def wait(self, place: object) -> None:
        """Before a look from this place."""
        if self._pause is not None and self._place == place:
            self._sleep(max(0.0, self._looked_at + self._pause - self._now()))

    def note(self, place: object, *, is_idle: bool) -> None:
        """After the look."""
        before = self._pause if self._place == place else None
        self._place, self._looked_at = place, self._now()
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
        f"offset {dict(offset)} is not one of {whose}, which look like {shape}; the checkpoint"
        " belongs to another source or version: give this query a checkpointLocation of its own"
    )
