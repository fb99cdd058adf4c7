"""One transaction of the writer: what its verbs share, and what is to happen once it is committed."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection

# No statement touches more rows than this; longer work comes in steps with requests in between.
STEP_ROWS_MAX = 1_000


@dataclass(slots=True)
class Transaction:
    """A connection inside a transaction, its one moment in time, and its effects after COMMIT.

    `careful` is set when an optimistic run met a repeated message id: verbs then look before they insert.
    """

    conn: Connection
    now_ms: int
    careful: bool = False
    rings: set[int] = field(default_factory=set)
    due_ms: int | None = None

    def ring(self, topic_id: int) -> None:
        """Once committed, something of this topic can be granted."""
        self.rings.add(topic_id)

    def due(self, at_ms: int) -> None:
        """Once committed, something falls due at `at_ms`."""
        if self.due_ms is None or at_ms < self.due_ms:
            self.due_ms = at_ms
