"""What the streams share: offsets read from Spark's checkpoint, and pauses between looks for new messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = 1
# Without a trigger interval Spark asks for new messages about ninety times a second.
LOOK_AGAIN_S: Final = (0.05, 1.0)  # the first pause, and the longest; each pause is twice the one before


def next_pause(pause: float | None) -> float:
    """Seconds until the next look after one that has found nothing; `pause`: the seconds before that one."""
    first, longest = LOOK_AGAIN_S
    return first if pause is None else min(pause * 2, longest)


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
