"""Dead letters, which of them are meant, and what becomes of those that are sent back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from popclient.message import MessageView


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message a group has given up. `topic` is where it came from; `message` is None once it is deleted.

    id: grows with each dead letter of the server. reason: why it was given up. redrive_state: empty while it is a dead
    letter; plan_id: of the redrive that sent it back, if one did. queue_id, queue_offset: its place in that topic; None
    once its queue is deleted.
    """

    id: int
    group: str
    topic: str
    message: MessageView | None
    delivery_attempt: int
    reason: str
    dead_at: datetime
    redrive_state: str
    origin_message_id: str
    plan_id: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which dead letters of a group; what is not given does not narrow.

    topic: where they came from. dead_from, dead_until: when they died, the end excluded; without a time zone this
    machine's. where: a SQL filter on the message's properties and on TAGS, REASON, ATTEMPT, TOPIC, MESSAGE_ID,
    MESSAGE_GROUP, such as "REASON CONTAINS 'hold' AND distance > 1000". ids: those alone, at most 1,000.
    redriven_too: those that were sent back already as well.
    """

    group: str
    topic: str | None = None
    dead_from: datetime | None = None
    dead_until: datetime | None = None
    where: str = ""
    ids: Iterable[int] = ()
    redriven_too: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        if self.dead_from and self.dead_until and self.dead_from.astimezone() >= self.dead_until.astimezone():
            raise ValueError(
                f"dead_from {self.dead_from} is not before dead_until {self.dead_until}; nothing can have died between"
            )

    @classmethod
    def of(cls, given: str | Self) -> Self:
        """A plain text is a group: all its dead letters."""
        return cls(given) if isinstance(given, str) else given


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters, oldest first. `next_after_id` leads to the next page; None: there is no more.

    A page may be short, or empty, and not be the last.
    """

    dead_letters: tuple[DeadLetter, ...]
    next_after_id: int | None


@dataclass(frozen=True, slots=True)
class Repair:
    """What is different in a message that goes back; what is None stays as it was. `Repair()` changes nothing.

    body: bytes; text is sent as UTF-8. tag: empty for none. keys, properties: all of them, not those that change.
    """

    body: bytes | str | None = None
    tag: str | None = None
    keys: str | Iterable[str] | None = None
    properties: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.keys is not None:
            object.__setattr__(self, "keys", (self.keys,) if isinstance(self.keys, str) else tuple(self.keys))

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of what is different."""
        return tuple(name for name in ("body", "tag", "keys", "properties") if getattr(self, name) is not None)


@dataclass(frozen=True, slots=True)
class RedriveOrder:
    """One dead letter that is to go back, repaired or as it is."""

    dead_letter_id: int
    repair: Repair | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """What is to be sent back, and the record of it.

    state: DRAFT while its messages are written down, then PLANNED, RUNNING, and DONE or CANCELLED. target: the topic
    they are sent to; None: back to the group alone. planned, redriven, skipped: how many are still to be done, went
    back, and were no dead letters any more when their turn came.
    """

    plan_id: str
    group: str
    state: str
    reason: str
    target: str | None
    created_by: str
    created_at: datetime
    planned: int
    redriven: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Redrive:
    """One message of a plan, and what became of it.

    topic: where it came from. change: NONE or REPAIR. state: PLANNED, REDRIVEN or SKIPPED, then `note` says why.
    outcome: the state in which the redriven message is in the group.
    """

    plan_id: str
    dead_letter_id: int
    topic: str
    message_id: str
    change: str
    reason: str
    state: str
    note: str
    target: str | None
    redriven_message_id: str
    redriven_at: datetime | None
    outcome: str


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """What one step of a plan did, and how the plan stands after it."""

    plan: RedrivePlan
    redriven: int
    skipped: int


@dataclass(frozen=True, slots=True)
class ImportedDeath:
    """A dead letter of another server, to be imported: how often its group received it, why and when it died.

    `dead_at` None: unknown; without a time zone UTC.
    """

    message: MessageView
    delivery_attempt: int
    reason: str = ""
    dead_at: datetime | None = None
