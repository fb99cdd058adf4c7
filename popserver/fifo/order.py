"""The order of a message group: which of its messages end, and which may be granted next.

The messages of a group that are held or wait for a retry form a run, in order. An ack is provisional while an earlier
message of the run is not acked: if the first message is delivered again, so is the run after it (protocol 5.3). When
the first message ends, the provisionally acked ones right after it end too. No message after the run is granted before
the whole run has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol, TypeVar

from popserver.model.states import ACKED, Event, State, sources

R = TypeVar("R", bound="InRun")


class InRun(Protocol):
    """The stored delivery of a message in a run."""

    @property
    def message_key(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def attempt(self) -> int: ...


class Settled(NamedTuple):
    """How many of the run's first messages have ended, and whether the group's next message may be granted."""

    ended: int
    is_open: bool


def advance(run: Sequence[InRun], acked: Collection[int] = ()) -> Settled:
    """What changes in a run (in order) after the messages with the keys `acked` were acked."""
    ended = sum(1 for _ in takewhile(lambda each: each.state in ACKED or each.message_key in acked, run))
    left = run[ended:]
    return Settled(ended, not left or left[0].state == State.READY)


def redeliverable(run: Sequence[R], max_attempts: int) -> list[R]:
    """The messages of the run that may be granted again: those before the first that is held or waits for a retry.

    A provisionally acked message without attempts left is not delivered again.
    """
    ready = takewhile(lambda each: each.state in sources(Event.RECEIVE), run)
    return [each for each in ready if each.state == State.READY or each.attempt < max_attempts]
