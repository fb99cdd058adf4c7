"""How much the broker lets its callers take up; the limits of connections and calls are those of `rpc.limits`."""

from __future__ import annotations

from typing import NamedTuple

MIB = 1024 * 1024


class Limits(NamedTuple):
    """The limits of the broker's budgets."""

    send_backlog_bytes: int = 128 * MIB
    undelivered_bytes: int = 96 * MIB  # of answers that their clients have not taken
    filter_bytes: int = 64 * MIB  # of all receives and pulls that are under way
