"""What a holder does with what it holds: ack, change its time, give it up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from popserver.catalog.flow import Catalog
from popserver.cluster.servers import Members
from popserver.engine.clock import Clock
from popserver.engine.timers import Errands
from popserver.engine.writer import Writer
from popserver.model import handles
from popserver.model.errors import InvalidReceiptHandle, PopError
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.names import Resource
from popserver.model.retry import PUSH_HOLD_MS_MAX
from popserver.model.topic import Topic, queue_of
from popserver.settling import change, release
from popserver.settling.ack import Ack


class Settling:
    """Reads receipt handles, and has the writer act on the holds they name."""

    def __init__(self, writer: Writer, catalog: Catalog) -> None:
        self._writer = writer
        self._catalog = catalog

    async def ack(
        self, group_name: Resource, topic_name: Resource, handles: Sequence[str], message_ids: Iterable[str] = ()
    ) -> list[PopError | None]:
        """Commit messages by their receipt handles; None where it is done, the refusal where it is not.

        `message_ids`, one for each handle or none at all, must be those that the handles came with, or blank.
        """
        group, topic = await self._catalog.of_a_hold(group_name, topic_name)
        named = zip_longest(handles, message_ids, fillvalue="")
        receipts: list[Receipt | PopError] = []
        for handle, message_id in named:
            try:
                receipts.append(await self._receipt(handle, message_id, group, topic))
            except InvalidReceiptHandle as refusal:
                receipts.append(refusal)
        good = [each for each in receipts if isinstance(each, Receipt)]
        request = Ack(group, good)
        outcomes = iter(await self._writer.submit(request)) if good else iter(())
        return [next(outcomes) if isinstance(each, Receipt) else each for each in receipts]

    async def change_invisible(
        self,
        group_name: Resource,
        topic_name: Resource,
        handle: str,
        duration_ms: int,
        *,
        give_back: bool = False,
        message_id: str = "",
    ) -> str:
        """Restart the hold's time from now; returns the new handle, the old one is dead.

        For a push holder this is a failure: the message waits `duration_ms`, then comes again. With `give_back` it is
        Ready at once and the attempt does not count. Raises `InvalidReceiptHandle`, with nothing changed.
        """
        group, topic = await self._catalog.of_a_hold(group_name, topic_name)
        held = await self._receipt(handle, message_id, group, topic)
        request = change.ChangeInvisible(group, held, duration_ms, give_back)
        return handles.encode_receipt(await self._writer.submit(request))

    async def forward(self, group_name: Resource, topic_name: Resource, handle: str, message_id: str = "") -> None:
        """Give a message up: it becomes a dead letter. Done as well when it already is one, or is committed."""
        group, topic = await self._catalog.of_a_hold(group_name, topic_name)
        request = change.Forward(group, await self._receipt(handle, message_id, group, topic))
        await self._writer.submit(request)

    async def _receipt(self, handle: str, message_id: str, group: Group, topic: Topic) -> Receipt:
        decoded = handles.decode_receipt(handle)
        decoded.check_message(message_id)
        if decoded.group_id != group.group_id:
            raise InvalidReceiptHandle(f"receipt handle '{handle}' was not given to group '{group.name}'")
        queue_id = queue_of(decoded.message_key)
        if any(queue.queue_id == queue_id for queue in topic.queues):
            return decoded
        # What was redriven to the group comes as a message of the topic, and stands in one of the group's own.
        if queue_id not in await self._catalog.own_queues(group):
            raise InvalidReceiptHandle(f"receipt handle '{handle}' is not of a message of topic '{topic.name}'")
        return decoded


# Holds that lose their holder: a client that is gone, an answer that reached nobody.


class Orphans:
    """Has them end; has those of a client that comes back live on."""

    def __init__(self, writer: Writer, clock: Clock, errands: Errands, members: Members) -> None:
        self._writer = writer
        self._clock = clock
        self._errands = errands
        self._members = members

    def withdraw(self, granted: Sequence[Delivery]) -> None:
        """Nothing of these was written to anybody: Ready again at once, and the attempts do not count."""
        receipts = [handles.decode_receipt(delivery.receipt_handle) for delivery in granted]
        if receipts:
            withdraw = release.Withdraw(receipts)
            self._errands.do(receipts[0], lambda: self._writer.submit(withdraw))

    def orphan(self, granted: Sequence[Delivery]) -> None:
        """Their client broke off while these were written to it: Ready again after one second (protocol 1.7)."""
        receipts = [handles.decode_receipt(delivery.receipt_handle) for delivery in granted]
        if receipts:
            orphan = release.Orphan(receipts=receipts)
            self._errands.do(receipts[0], lambda: self._writer.submit(orphan))

    async def orphan_client(self, client_id: str, said_goodbye: bool, *, inherits: bool = False) -> None:
        """The client is gone here; if it is gone everywhere its push holds end."""
        if await self._members.go(client_id, inherits=inherits, everywhere=said_goodbye):
            await self._writer.submit(release.Orphan(client_id=client_id))

    async def adopt(self, client_id: str) -> None:
        """The client is here, or here again: its push holds live as long as it does."""
        await self._members.come(client_id)
        until_ms = self._clock.now_ms() + PUSH_HOLD_MS_MAX
        await self._writer.submit(release.Adopt(client_id, until_ms))
