"""Holds that lose their holder: a client that is gone, an answer that reached nobody."""

from __future__ import annotations

from collections.abc import Sequence

from popserver.broker.clock import Clock
from popserver.broker.errands import Errands
from popserver.broker.members import Members
from popserver.broker.writer import Writer
from popserver.domain import receipt
from popserver.domain.message import Delivery
from popserver.domain.retry import PUSH_HOLD_MS_MAX
from popserver.store import holds


class Orphans:
    """Has them end; has those of a client that comes back live on."""

    def __init__(self, writer: Writer, clock: Clock, errands: Errands, members: Members) -> None:
        self._writer = writer
        self._clock = clock
        self._errands = errands
        self._members = members

    def withdraw(self, granted: Sequence[Delivery]) -> None:
        """Nothing of these was written to anybody: Ready again at once, and the attempts do not count."""
        receipts = [receipt.decode(delivery.receipt_handle) for delivery in granted]
        if receipts:
            withdraw = holds.Withdraw(receipts)
            self._errands.do(receipts[0], lambda: self._writer.submit(withdraw))

    def orphan(self, granted: Sequence[Delivery]) -> None:
        """Their client broke off while these were written to it: Ready again after one second (protocol 1.7)."""
        receipts = [receipt.decode(delivery.receipt_handle) for delivery in granted]
        if receipts:
            orphan = holds.Orphan(receipts=receipts)
            self._errands.do(receipts[0], lambda: self._writer.submit(orphan))

    async def orphan_client(self, client_id: str, said_goodbye: bool, *, inherits: bool = False) -> None:
        """The client is gone here; if it is gone everywhere its push holds end."""
        if await self._members.go(client_id, inherits=inherits, everywhere=said_goodbye):
            await self._writer.submit(holds.Orphan(client_id=client_id))

    async def adopt(self, client_id: str) -> None:
        """The client is here, or here again: its push holds live as long as it does."""
        await self._members.come(client_id)
        until_ms = self._clock.now_ms() + PUSH_HOLD_MS_MAX
        await self._writer.submit(holds.Adopt(client_id, until_ms))
