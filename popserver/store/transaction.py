"""One transaction of the writer: what its verbs share, and what is to happen once it is committed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.store.dying import Death, Return
from popserver.store.notices import Outdated

# No statement touches more rows than this; longer work comes in steps with requests in between.
STEP_ROWS_MAX = 1_000
ANSWER_BYTES_MAX = 32 * 1024 * 1024


class RepeatedId(Exception):
    """An optimistic run met a message id that is stored already: run it again, carefully."""


class Claim(NamedTuple):
    """The message that an idempotency key is to belong to, and until when."""

    message_id: bytes
    expires_at_ms: int


@dataclass(slots=True)
class Transaction:
    """A connection inside a transaction, its moment in time, and its effects after COMMIT.

    `careful` is set when an optimistic run met a repeated message id: verbs then look before they insert.
    """

    conn: Connection
    now_ms: int
    careful: bool = False
    # The time of day, for times that clients name, and the time by which age is judged; 0: as `now_ms`.
    calendar_ms: int = 0
    aged_ms: int = 0
    rings: set[int] = field(default_factory=set)
    due_ms: int | None = None
    enters_ms: int | None = None
    check_ms: int | None = None
    # By topic and idempotency key: what to write down at the end (`store.idempotency`), and what is in its way.
    claims: dict[tuple[int, str], Claim] = field(default_factory=dict)
    stale_keys: dict[tuple[int, str], bytes] = field(default_factory=dict)
    # What goes to the queues that the server fills itself: by group and first place, and in the order of its rows.
    deaths: dict[tuple[int, int], Death] = field(default_factory=dict)
    returns: list[Return] = field(default_factory=list)
    outdated: set[Outdated] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    # How many bytes of bodies may still be granted: they are all in memory until they are answered.
    answer_bytes: int = ANSWER_BYTES_MAX

    def __post_init__(self) -> None:
        self.calendar_ms = self.calendar_ms or self.now_ms
        self.aged_ms = self.aged_ms or self.now_ms

    def ring(self, topic_id: int) -> None:
        """Once committed, something of this topic can be granted."""
        self.rings.add(topic_id)

    def due(self, at_ms: int) -> None:
        """Once committed, something falls due at `at_ms`."""
        if self.due_ms is None or at_ms < self.due_ms:
            self.due_ms = at_ms

    def enters(self, at_ms: int) -> None:
        """Once committed, a delayed message enters its queue at `at_ms`."""
        if self.enters_ms is None or at_ms < self.enters_ms:
            self.enters_ms = at_ms

    def check(self, at_ms: int) -> None:
        """Once committed, the producers of a half message are asked at `at_ms`."""
        if self.check_ms is None or at_ms < self.check_ms:
            self.check_ms = at_ms

    def outdate(self, what: Outdated) -> None:
        """Once committed, what servers remember of this topic or group is old."""
        self.outdated.add(what)

    def say(self, word: str) -> None:
        """Once committed, every other server hears this word (`store.notices`)."""
        self.words.add(word)
