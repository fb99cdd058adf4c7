"""Holds that lose their holder: the client disconnected, or the answer did not reach it."""

from __future__ import annotations

from collections.abc import Sequence

from popserver.cluster.servers import Servers
from popserver.engine.background import BackgroundTasks
from popserver.engine.clock import Clock
from popserver.engine.writer import Writer
from popserver.model.handles import decode_receipt
from popserver.model.message import Delivery
from popserver.model.retry import PUSH_HOLD_MS_MAX
from popserver.settling import release


class HoldRelease:
    """Ends holds without a holder, and prolongs those of a client that comes back."""

    def __init__(self, writer: Writer, clock: Clock, background: BackgroundTasks, servers: Servers) -> None:
        self._writer = writer
        self._clock = clock
        self._background = background
        self._servers = servers

    def cancel_delivery(self, granted: Sequence[Delivery]) -> None:
        """These messages were not sent to any client: they are READY at once, and the attempts do not count."""
        receipts = [decode_receipt(delivery.receipt_handle) for delivery in granted]
        if receipts:
            withdraw = release.CancelDelivery(receipts)
            self._background.submit(receipts[0], lambda: self._writer.submit(withdraw))

    def abandon_holds(self, handles: Sequence[str]) -> None:
        """The client disconnected while these messages were sent to it: READY after one second (protocol 1.7)."""
        receipts = [decode_receipt(handle) for handle in handles]
        if receipts:
            orphan = release.AbandonHolds(receipts=receipts)
            self._background.submit(receipts[0], lambda: self._writer.submit(orphan))

    async def abandon_client(self, client_id: str, said_goodbye: bool, *, inherits: bool = False) -> None:
        """The client left this server. Its push holds end if it is connected to no other server."""
        if await self._servers.detach(client_id, inherits=inherits, everywhere=said_goodbye):
            await self._writer.submit(release.AbandonHolds(client_id=client_id))

    async def extend_client_holds(self, client_id: str) -> None:
        """The client is connected (again): its push holds last as long as it stays connected."""
        await self._servers.attach(client_id)
        until_ms = self._clock.now_ms() + PUSH_HOLD_MS_MAX
        await self._writer.submit(release.ExtendClientHolds(client_id, until_ms))
