"""What each loop of the clients does after a failure. docs/repeating.md has the same table, and a test compares them.

The `repeat` of a failure says when the same call may succeed; from it `Pauses` computes the next pause, or raises.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from popclient.errors import PopError, QuotaExceeded, Repeat, UnexpectedAnswer, Unreachable
from popproto.v2 import definition_pb2 as pb


class Loop(NamedTuple):
    """What a client repeats by itself.

    refused: what a failure does that no repetition mends. soon: seconds until the next try where the server is busy.
    first, longest: seconds of the other pauses, which double.
    """

    name: str
    refused: str
    soon: float
    first: float
    longest: float


ENDS: Final = "the consumer ends: `run()` raises it, `healthy` is false, one ERROR"
RAISED: Final = "`poll` or the iteration raises it"

CALL: Final = Loop("any call, within its time-out", "the call raises it", 0.04, 0.04, 0.64)
ITERATION: Final = Loop("iteration of a SimpleConsumer", "the iteration raises it", 0.05, 0.05, 1.0)
POLLS: Final = Loop("receives and assignments of a PushConsumer", ENDS, 0.05, 0.05, 1.0)
OUTCOMES: Final = Loop("acks and failures of a PushConsumer", "INFO; the message may come again", 1.0, 1.0, 1.0)
PULLS: Final = Loop("pulls of a QueuePushConsumer", ENDS, 0.02, 3.0, 3.0)
QUEUES: Final = Loop("shares, locks, offsets and commits of a QueuePushConsumer", ENDS, 1.0, 1.0, 20.0)
FETCHES: Final = Loop("pulls of a PullConsumer", RAISED, 0.02, 0.05, 1.0)
SHARES: Final = Loop("shares and commits of a PullConsumer", RAISED, 1.0, 1.0, 20.0)
LITE: Final = Loop("lite topics of a consumer", "as a refused receive of that consumer", 1.0, 1.0, 1.0)
LINK: Final = Loop("calls of Spark's sources, within requestTimeout", "the query fails with it", 0.1, 0.1, 2.0)
LOOPS: Final = (CALL, ITERATION, POLLS, OUTCOMES, PULLS, QUEUES, FETCHES, SHARES, LITE, LINK)

# What ends no loop although the same call never succeeds: another call puts it right, or others make room.
PUT_RIGHT: Final = (pb.ILLEGAL_OFFSET, pb.OFFSET_NOT_FOUND, pb.MESSAGE_NOT_FOUND, pb.PRECONDITION_FAILED)


def is_final(failure: PopError) -> bool:
    """Does it end the loop that has met it? An answer without a code is a broken one."""
    passes = isinstance(failure, QuotaExceeded) or (isinstance(failure, UnexpectedAnswer) and not failure.code)
    return failure.repeat is Repeat.NEVER and failure.code not in PUT_RIGHT and not passes


def level_of(failure: Exception) -> int:
    """The log level of a loop that continues. A lost server is logged by the session, once."""
    return logging.INFO if isinstance(failure, Unreachable) else logging.WARNING


class Pauses:
    """The pauses of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._next = loop.first

    def succeeded(self) -> None:
        self._next = self._loop.first

    def after(self, failure: PopError) -> float:
        """Seconds until the next try. Raises the failure if no repetition mends it."""
        if is_final(failure):
            raise failure
        if failure.repeat is Repeat.SOON:
            return self._loop.soon
        pause, self._next = self._next, min(self._next * 2, self._loop.longest)
        return pause
