"""When a COMMIT of Postgres counts: what the writer's session is set to, and warnings that mean doubt.

With a synchronous standby, COMMIT waits until the standby has the transaction. Two things end that wait early:

- The wait is cancelled (`pg_cancel_backend`, `statement_timeout`). Postgres then answers with a warning, and says that
  the transaction is committed. After a failover it would be missing.
- Postgres crashes and starts again. It then shows transactions that the standby does not have yet. A request that is
  repeated and found done is answered without a write, so its own COMMIT would not wait.
"""

from __future__ import annotations

from typing import Any

_SYNCHRONOUS_COMMIT = {"full": "on", "relaxed": "off"}  # by the server's setting `durability`


class CommitWarnings:
    """Warnings of Postgres to the writer's connection since the last COMMIT."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def prepare(self, conn: Any, durability: str) -> None:
        """Set a new connection of psycopg up. Waits until a synchronous standby has all that is visible now."""
        conn.execute(f"SET synchronous_commit = {_SYNCHRONOUS_COMMIT[durability]}")
        conn.execute("SET statement_timeout = 0")
        conn.add_notice_handler(self._on_notice)
        # A write of its own. From here on, every transaction that is visible has been waited for.
        conn.execute("SELECT pg_logical_emit_message(true, 'popmq', '')")
        self._said.clear()

    def take(self) -> str | None:
        """The first warning since the last call; None without any."""
        if not self._said:
            return None
        first = self._said[0]
        self._said.clear()
        return first

    def _on_notice(self, notice: Any) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._said.append(str(notice.message_primary))
