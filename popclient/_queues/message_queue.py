"""One queue of a topic: what a member of a group owns, pulls from, and commits the progress of."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """Queues sort by topic, then by id, the same on every member; that is what sharing them relies on.

    topic: its name, without the client's namespace. queue_id: from 0.
    """

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.queue_id}"
