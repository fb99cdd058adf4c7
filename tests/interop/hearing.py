"""Let the broker's time pass until a listener hears something."""

from __future__ import annotations

import queue

from popserver.in_process import EmbeddedBroker
from tests.interop.official import OfficialPushConsumer, Received

STEP_MS = 250
STEPS_MAX = 200
# A client that is gone: one second for it to come back, one more for its holds; and what the steps and a busy machine
# add to it.
GONE_MS_MAX = 2_000 + 6 * STEP_MS
_NOBODY_YET_S = 0.1  # real time for a push that should not come; the clock stands still meanwhile


def advance_until_heard(
    broker: EmbeddedBroker, consumer: OfficialPushConsumer, count: int = 1
) -> tuple[list[Received], int]:
    """The next `count` messages its listener is called with, and how many milliseconds passed for the broker."""
    heard: list[Received] = []
    waited_ms = 0
    while len(heard) < count:
        try:
            heard.append(consumer.heard.get(timeout=_NOBODY_YET_S))
        except queue.Empty:
            bodies = [message.body for message in heard]
            assert waited_ms < STEPS_MAX * STEP_MS, f"of {count} messages only these came: {bodies}"
            broker.clock.advance(STEP_MS)
            waited_ms += STEP_MS
    return heard, waited_ms
