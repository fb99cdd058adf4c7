"""Offsets as Spark's checkpoint gives them back; one that another source has written is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = 1


def numbers_of(offset: Mapping[str, Any], whose: str, like: Mapping[str, int]) -> dict[str, int]:
    """The numbers of an offset that has just those of `like`; raises `ValueError` for any other.

    whose: the words for what the offset is of. like: an offset of it, the version left out.
    """
    numbers = {name: value for name, value in offset.items() if name != "v"}
    are_whole = all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in numbers.values())
    if offset.get("v") != VERSION or numbers.keys() != like.keys() or not are_whole:
        raise refusal(offset, whose, like)
    return numbers


def refusal(offset: Mapping[str, Any], whose: str, like: Mapping[str, Any]) -> ValueError:
    """The error about an offset of another source, to be raised; `whose` and `like` as above."""
    shape = {"v": VERSION, **like}
    return ValueError(
        f"offset {dict(offset)} is not one of {whose}, which are like {shape}; the checkpoint"
        " belongs to another source or version: give this query a checkpointLocation of its own"
    )
