"""When a COMMIT of Postgres is durable: the settings of the writer's session, and warnings that leave a doubt.

With a synchronous standby, COMMIT waits until the standby has the transaction. Two things end that wait early:

- The wait is cancelled (`pg_cancel_backend`, `statement_timeout`). Postgres then answers with a warning, and with a
  success. After a failover the transaction would be missing.
- Postgres crashes and starts again. It then shows transactions that the standby does not have yet.

In both cases a server that gets the request again finds it done, and answers without a write. Such a COMMIT would not
wait. So a transaction with such an answer writes a record (`BARRIER`) if it has written nothing.
"""

from __future__ import annotations

from typing import Any

from popserver.postgres.sessions import BY_INDEX, settings_text

_SYNCHRONOUS_COMMIT = {"full": "on", "relaxed": "off"}  # by the server's setting `durability`
_RECORD = "SELECT pg_logical_emit_message(true, 'popmq', '')"
BARRIER = f"{_RECORD} WHERE pg_current_xact_id_if_assigned() IS NULL"  # a write gives the transaction its id
_WAIT = "SyncRepWaitForLSN"  # the function of Postgres that waits for standbys; other warnings do not matter


class CommitWarnings:
    """Warnings of Postgres to the writer's connection about the wait of a COMMIT."""

    def __init__(self) -> None:
        self._said: list[str] = []

    def prepare(self, conn: Any, durability: str) -> None:
        """Set up a new connection of psycopg. Waits until a synchronous standby has all visible transactions."""
        conn.execute(settings_text({"synchronous_commit": _SYNCHRONOUS_COMMIT[durability], **BY_INDEX}))
        conn.add_notice_handler(self._on_notice)
        # A write of its own: its commit waits until the standby has all earlier transactions too.
        conn.execute(_RECORD)
        self.clear()

    def clear(self) -> None:
        self._said.clear()

    def take(self) -> str | None:
        """The first warning since the last call; None without any."""
        if not self._said:
            return None
        first = self._said[0]
        self.clear()
        return first

    def _on_notice(self, notice: Any) -> None:
        if notice.severity_nonlocalized == "WARNING" and notice.source_function == _WAIT:
            self._said.append(str(notice.message_primary))
