"""The order of a message group: which of its messages end, and what may be granted next.

The messages of a group that are held or wait form a run, in their order. An ack behind an un-acked one is provisional:
if the first comes again, the run after it comes again (protocol 5.3). When the first ends, the provisionally acked ones
behind it have ended with it. Nothing beyond a run is granted before the whole run has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol, TypeVar

from popserver.model.states import ACKED, Event, State, sources

R = TypeVar("R", bound="InRun")


class InRun(Protocol):
    """A message of a run: its delivery as it is stored."""

    @property
    def message_key(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def attempt(self) -> int: ...


class Settled(NamedTuple):
    """How many of the run's first messages have ended, and whether the next one of the group may be granted."""

    ended: int
    is_open: bool


def settle(run: Sequence[InRun], acked: Collection[int] = ()) -> Settled:
    """What an end means for a run, in order, of which the messages with keys `acked` have just been acked."""
    ended = sum(1 for _ in takewhile(lambda each: each.state in ACKED or each.message_key in acked, run))
    left = run[ended:]
    return Settled(ended, not left or left[0].state == State.READY)


def again(run: Sequence[R], max_attempts: int) -> list[R]:
    """Which of the run may be granted again: those up to the first that is held or waits.

    What is acked provisionally and has had all its attempts need not come again, and must not.
    """
    ready = takewhile(lambda each: each.state in sources(Event.RECEIVE), run)
    return [each for each in ready if each.state == State.READY or each.attempt < max_attempts]
