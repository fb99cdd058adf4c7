"""How many connections a server has, and which one is closed for a new one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import structlog

from popserver.model.budget import Budget, Shares

LOG_FULL_EVERY_S = 60.0

log = structlog.get_logger("popserver.front")


class ConnectionLimits(NamedTuple):
    """Limits of connections."""

    silence_s: float = 5.0  # until the first byte
    silent_max: int = 1_000  # connections without a first byte; beyond that the oldest is closed
    connections_max: int = 5_000
    connections_per_address: int = 0  # 0: half of `connections_max`
    # Callers must sign. Then connections without a signed call get half of `connections_max`; beyond
    # that the oldest is closed.
    must_sign: bool = False
    purpose: str = ""  # of a port that is not for clients; the names of its budgets begin with it


class Connected(Protocol):
    """A client's connection."""

    @property
    def host(self) -> str:
        """The address of the client, without its port; of IPv6 its network."""

    def turn_away(self, why: str) -> None:
        """Close the connection."""


class Connections:
    """The connections of one server."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        half = max(1, limits.connections_max // 2)
        before = f"{limits.purpose} " if limits.purpose else ""
        option = f"max_{before}connections".replace(" ", "_")
        option_each = option if limits.purpose else "max_connections_per_address"
        self.connections = Budget(f"{before}connections", limits.connections_max, "connections", option)
        self.unsigned = Budget(f"{before}connections without a signature", half, "connections", option)
        share = limits.connections_per_address or half
        self.of_one_address = Budget(f"{before}connections of one address", share, "connections", option_each)
        self._shares = Shares(self.connections, share, self.of_one_address)
        self._clients: set[Connected] = set()
        self._silent: dict[Connected, None] = {}  # the oldest first
        self._unsigned: dict[str, dict[Connected, None]] = {}  # by address, the oldest first
        self._all_unsigned: dict[Connected, None] = {}  # the oldest first
        self._logged_full_at_s: dict[Budget, float] = {}
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    @property
    def budgets(self) -> list[Budget]:
        """What `popmq status` shows."""
        shown = [self.connections, self.of_one_address]
        return [*shown, self.unsigned] if self.limits.must_sign else shown

    def __iter__(self) -> Iterator[Connected]:
        return iter(list(self._clients))

    def arrived(self, client: Connected) -> bool:
        """Count a new connection. False if a limit is reached."""
        if self.limits.must_sign:
            self._close_for_new(client.host)
        if not self._shares.take(client.host):
            self._log_full(self.of_one_address if self._shares.has_all(client.host) else self.connections, client.host)
            return False
        self._clients.add(client)
        self._all_closed.clear()
        if self.limits.must_sign:
            self.unsigned.take()
            self._all_unsigned[client] = None
            self._unsigned.setdefault(client.host, {})[client] = None
        self._silent[client] = None
        if len(self._silent) > self.limits.silent_max:
            next(iter(self._silent)).turn_away("it sent no byte, and there are too many such connections")
        return True

    def spoke(self, client: Connected) -> None:
        """A connection has sent its first byte."""
        self._silent.pop(client, None)

    def signed(self, client: Connected) -> None:
        """A call of this connection was signed: from now on the connection is not closed for a new one."""
        if client in self._all_unsigned:
            del self._all_unsigned[client]
            self.unsigned.give_back()
            there = self._unsigned[client.host]
            del there[client]
            if not there:
                del self._unsigned[client.host]

    def left(self, client: Connected) -> None:
        if client not in self._clients:
            return
        self.spoke(client)
        self.signed(client)
        self._shares.give_back(client.host)
        self._clients.remove(client)
        if not self._clients:
            self._all_closed.set()

    def end_silent(self) -> None:
        """Close all connections without a first byte."""
        for client in list(self._silent):
            client.turn_away("the server is stopping")

    async def all_closed(self) -> None:
        """Wait until there is no connection."""
        await self._all_closed.wait()

    def _close_for_new(self, host: str) -> None:
        """Close the oldest connection without a signed call, if a limit is reached for a new one from `host`."""
        if self._shares.has_all(host):
            # The address has its whole share, so only a connection of this address may be closed.
            if host in self._unsigned:
                self._end_oldest(self._unsigned[host], self.of_one_address)
        elif self._all_unsigned and len(self._all_unsigned) >= self.unsigned.limit:
            self._end_oldest(self._all_unsigned, self.unsigned)
        elif self._all_unsigned and self.connections.used >= self.connections.limit:
            self._end_oldest(self._all_unsigned, self.connections)

    def _end_oldest(self, there: dict[Connected, None], short: Budget) -> None:
        short.refused += 1
        oldest = next(iter(there))
        self._log_full(short, oldest.host)
        oldest.turn_away("it never signed a call, and the limit of connections was reached")
        self.left(oldest)

    def _log_full(self, short: Budget, host: str) -> None:
        """Log at most one line a minute for each limit, so that a flood does not fill the log."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_full_at_s.get(short, -math.inf) >= LOG_FULL_EVERY_S:
            self._logged_full_at_s[short] = now_s
            log.warning(
                "connections refused",
                reason=f"limit reached: {short.name}",
                limit=short.limit,
                option=f"--{short.option.replace('_', '-')}",
                address=host,
            )
