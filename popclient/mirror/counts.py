"""What a mirror has done, and where it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """RUNNING; HELD: at least one part waits for a person; STOPPED by its operator; DONE: nothing was left."""

    RUNNING = "RUNNING"
    HELD = "HELD"
    STOPPED = "STOPPED"
    DONE = "DONE"


@dataclass(slots=True)
class Counts:
    """Of all runs of a mirror.

    handed: messages stored at the target and then acked. repeated: of them, those that were there already.
    dead_letters, scheduled: dead letters and delayed messages that were stored. bytes: of bodies. unsure: messages that
    may be twice at a target that stores an id twice: an answer was lost, or the process before was killed. lag: what is
    left at the source; -1 unknown.
    """

    handed: int = 0
    repeated: int = 0
    dead_letters: int = 0
    scheduled: int = 0
    bytes: int = 0
    unsure: int = 0
    lag: int = -1


@dataclass(slots=True)
class Place:
    """Where a mirror goes on.

    dead_letter: the id of the last one that it has copied. is_held: whether a process may hold messages at the source,
    which it has perhaps stored at the target; after a kill it stays so.
    """

    dead_letter: int = 0
    is_held: bool = False
