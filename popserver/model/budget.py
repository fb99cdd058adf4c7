"""Limits for what callers may use at one time: memory, connections, streams.

Everything that callers can make grow has a budget with a name, a limit and the option that sets it. `popmq status`
lists each budget with its current use, its highest use, and how often a caller was refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from popport import shares
from popserver.model.errors import TooManyRequests


class Budget(shares.Count):
    """A limit with a name, and its current use. Not thread-safe."""

    def __init__(self, name: str, limit: int, unit: str, option: str) -> None:
        """`unit`: what is counted ("bytes", "connections"); `option`: the setting of the limit ("max_connections")."""
        super().__init__(limit)
        self.name = name
        self.unit = unit
        self.option = option

    def __repr__(self) -> str:
        return f"<Budget {self.name} {self.used}/{self.limit} {self.unit}, {self.refused} refused>"

    def refusal(self, wanted: str) -> TooManyRequests:
        """The error for a refused caller; `wanted` says what the caller asked for, such as "a message of 4 MiB"."""
        flag = f"--{self.option.replace('_', '-')}"
        return TooManyRequests(
            f"limit reached for {wanted}: {self.used} of {self.limit} {self.unit} are in use ({self.name});"
            f" try again later, or start the server with a higher {flag}"
        )


class Budgets:
    """Every budget of a server, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Budget] = {}

    def __iter__(self) -> Iterator[Budget]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Budget:
        return self._by_name[name]

    def add(self, name: str, limit: int, unit: str, option: str) -> Budget:
        """Make a budget. Raises `ValueError` if the name is used already."""
        return self.include(Budget(name, limit, unit, option))

    def include(self, budget: Budget) -> Budget:
        """Add an existing budget to the list. Raises `ValueError` if the name is used already."""
        if budget.name in self._by_name:
            raise ValueError(f"there is a budget named '{budget.name}' already")
        self._by_name[budget.name] = budget
        return budget


class Shares(shares.Shares[Budget]):
    """A budget whose holders may each use only a share of it."""

    def refusal(self, wanted: str, holder: str) -> TooManyRequests:
        """The error for a refused holder."""
        if self.has_all(holder):
            wanted = f"{wanted} of {holder}, which has {self.share} of them"
        return self.budget.refusal(wanted)


# Memory limits of the server. The limits for connections and calls are in `transport.limits`.

MIB = 1024 * 1024


class BrokerLimits(NamedTuple):
    """The limits of the broker's budgets."""

    send_backlog_bytes: int = 128 * MIB
    undelivered_bytes: int = 96 * MIB  # of answers that clients have not received yet
    filter_bytes: int = 64 * MIB  # of all running receives and pulls
    lite_subscriptions: int = 250_000  # lite topics of all lite consumers, about 350 bytes each
