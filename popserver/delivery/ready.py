"""From when on messages can be READY again, for each group and topic: what the searches of this server have seen.

The index of these messages is in the order of time. On Postgres a user's open transaction keeps the entries of all
messages that were READY since it began, and each search would read them from the first one on. So a search begins at
the first message that the last one saw, or `SLACK_MS` before that search: whatever becomes READY later is due later.

What becomes READY much later than it is due (a server was stopped) must be told: `forget`. And each second one search
looks at everything, so a mistake is no more than a delay.
"""

from __future__ import annotations

from typing import NamedTuple

SLACK_MS = 20_000  # for transactions of other servers, which take less, and whose clocks are nearly the same
LOOK_AGAIN_MS = 1_000
PLACES_MAX = 10_000  # of groups and topics; beyond that all are forgotten


class _Seen(NamedTuple):
    from_ms: int
    looked_ms: int  # at everything


class ReadyFrom:
    """What the writer remembers (`Transaction.remembered`)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], _Seen] = {}

    def of(self, group_id: int, topic_id: int, now_ms: int) -> int:
        """The time from which on a search has to look; 0: it looks at everything."""
        seen = self._seen.get((group_id, topic_id))
        return 0 if seen is None or now_ms >= seen.looked_ms + LOOK_AGAIN_MS else seen.from_ms

    def saw(self, group_id: int, topic_id: int, from_ms: int, first_ms: int | None, now_ms: int) -> None:
        """A search that has looked from `from_ms` on saw the first message there; None: there is none."""
        before = self._seen.get((group_id, topic_id))
        looked_ms = before.looked_ms if from_ms and before is not None else now_ms
        if from_ms and before is None:
            return  # it was forgotten meanwhile
        if len(self._seen) >= PLACES_MAX:
            self._seen.clear()
        latest_ms = now_ms - SLACK_MS
        found_ms = latest_ms if first_ms is None else min(first_ms, latest_ms)
        self._seen[group_id, topic_id] = _Seen(found_ms, looked_ms)

    def forget(self, group_id: int, topic_id: int) -> None:
        """A message became READY later than it was due."""
        self._seen.pop((group_id, topic_id), None)
