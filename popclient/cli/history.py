"""How the steps of a message are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from popclient.admin import HistoryEntry
from popclient.cli.output import local, table, utc

_COLUMNS = ["at", "group", "event", "from", "to", "attempt", "client", "reason"]


def history_document(steps: Iterable[HistoryEntry]) -> list[dict[str, Any]]:
    return [
        {
            "at": utc(each.at),
            "group": each.group,
            "event": each.event,
            "from_state": each.from_state,
            "to_state": each.to_state,
            "delivery_attempt": each.delivery_attempt,
            "client_id": each.client_id,
            "reason": each.reason,
        }
        for each in steps
    ]


def history_lines(steps: Iterable[HistoryEntry]) -> list[str]:
    rows = [
        (
            local(each.at),
            each.group,
            each.event,
            each.from_state,
            each.to_state,
            each.delivery_attempt,
            each.client_id,
            each.reason,
        )
        for each in steps
    ]
    return table(_COLUMNS, rows, "no history")
