"""Messages that a transaction moves to the server's own topics; it writes them there at its end."""

from __future__ import annotations

from typing import NamedTuple

from popserver.delivery.due import DueRow
from popserver.model.group import Group


class Origin(NamedTuple):
    """The first place of a retry message, and the stored properties that it had there."""

    message_key: int
    topic_id: int
    properties: str | None


class DeadLetterCandidate(NamedTuple):
    """A delivery that becomes a dead letter; `origin` is None if the message is at its first place."""

    message_key: int
    topic_id: int
    attempt: int
    client_id: str
    origin: Origin | None = None

    @property
    def origin_key(self) -> int:
        return self.message_key if self.origin is None else self.origin.message_key

    @property
    def origin_topic_id(self) -> int:
        return self.topic_id if self.origin is None else self.origin.topic_id


class NewDeadLetter(NamedTuple):
    """A delivery that has become a dead letter, and why."""

    group: Group
    candidate: DeadLetterCandidate
    reason: str


class DueRetry(NamedTuple):
    """A delivery that a retry message replaces: its row as it was."""

    group: Group
    row: DueRow
