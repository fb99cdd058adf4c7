"""A lease: what one batch holds, by name. It is the stream's offset."""

from __future__ import annotations

from typing import Any, NamedTuple

from popclient.spark.checkpoint import VERSION, numbers_of


class Lease(NamedTuple):
    """The `seq`-th batch with messages; 0 is the beginning, which holds nothing.

    parts: the receives that it is made of. messages: what they have brought together.
    """

    seq: int = 0
    parts: int = 0
    messages: int = 0

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Lease:
        """Raises `ValueError` for the offset of another source."""
        return cls(**numbers_of(offset, "leases", cls(12, 2, 1_500)._asdict()))

    def offset(self) -> dict[str, Any]:
        return {"v": VERSION, **self._asdict()}

    def attempt_ids(self, owner: str) -> list[str]:
        """Under which its messages are held."""
        return [attempt_id(owner, self.seq, part) for part in range(self.parts)]


def attempt_id(owner: str, seq: int, part: int) -> str:
    """A name that no other owner, batch or part has."""
    return f"{owner}/{seq}/{part}"
