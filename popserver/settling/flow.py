"""What a holder does with its messages: ack, change the invisible duration, give up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from popserver.catalog.flow import Catalog
from popserver.engine.writer import Writer
from popserver.model.errors import InvalidReceiptHandle, PopError
from popserver.model.group import Group
from popserver.model.handles import Receipt, decode_receipt, encode_receipt
from popserver.model.names import Resource
from popserver.model.topic import OFFSET_BITS, Topic, queue_of
from popserver.settling import change
from popserver.settling.ack import Ack, PlainAck


class Settling:
    """Reads receipt handles and submits what to do with their holds to the writer."""

    def __init__(self, writer: Writer, catalog: Catalog) -> None:
        self._writer = writer
        self._delivered = writer.meters.delivered
        self._catalog = catalog

    async def ack(
        self, group_name: Resource, topic_name: Resource, handles: Sequence[str], message_ids: Iterable[str] = ()
    ) -> list[PopError | None]:
        """Commit messages by their receipt handles. The answer has one entry per handle: None, or the refusal.

        `message_ids` is empty or has one entry per handle: the id that came with the handle, or a blank text.
        """
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        queue_ids = {queue.queue_id for queue in topic.queues}
        receipts: list[Receipt | PopError] = []
        for handle, message_id in zip_longest(handles, message_ids, fillvalue=""):
            try:
                receipt = decode_receipt(handle, message_id)
                if receipt.group_id != group.group_id or receipt.message_key >> OFFSET_BITS not in queue_ids:
                    await self._check_handle(handle, receipt, group, topic)
                receipts.append(receipt)
            except InvalidReceiptHandle as refusal:
                receipts.append(refusal)
        good = [each for each in receipts if isinstance(each, Receipt)]
        request = (Ack if any(each.in_order for each in good) else PlainAck)(group, good)
        outcomes = await self._writer.submit(request) if good else []
        self._delivered[group.group_id, topic.topic_id].acks += outcomes.count(None)
        each_outcome = iter(outcomes)
        return [next(each_outcome) if isinstance(each, Receipt) else each for each in receipts]

    async def change_invisible(
        self,
        group_name: Resource,
        topic_name: Resource,
        handle: str,
        duration_ms: int,
        *,
        give_back: bool = False,
        suspend: bool = False,
        message_id: str = "",
        reason: str = "",
    ) -> str:
        """Restart the hold's time from now. Returns the new handle; the old one is no longer valid.

        For a push consumer this is a failure, with its `reason` (may be empty): the message is delivered again after
        `duration_ms`. With `give_back` it is READY at once and the attempt does not count. With `suspend` the lite
        topic of the message stops for `duration_ms`, and the attempt does not count. Raises `InvalidReceiptHandle` and
        then changes nothing.
        """
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        held = decode_receipt(handle, message_id)
        await self._check_handle(handle, held, group, topic)
        suspends = suspend and topic.is_lite and not give_back
        request = change.ChangeInvisible(group, held, duration_ms, give_back, reason, suspends)
        return encode_receipt(await self._writer.submit(request))

    async def forward(
        self, group_name: Resource, topic_name: Resource, handle: str, message_id: str = "", reason: str = ""
    ) -> None:
        """Give a message up: it becomes a dead letter. No error if it is one already, or is committed."""
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        held = decode_receipt(handle, message_id)
        await self._check_handle(handle, held, group, topic)
        await self._writer.submit(change.Forward(group, held, reason))

    async def _check_handle(self, handle: str, decoded: Receipt, group: Group, topic: Topic) -> None:
        """Raise `InvalidReceiptHandle` unless the group was given the handle for a message of the topic."""
        if decoded.group_id != group.group_id:
            raise InvalidReceiptHandle(f"receipt handle '{handle}' was not given to group '{group.name}'")
        queue_id = queue_of(decoded.message_key)
        if any(queue.queue_id == queue_id for queue in topic.queues):
            return
        # A message that was redriven to the group is delivered as one of the topic, and stored in a topic of the group.
        if queue_id not in await self._catalog.own_queues(group):
            raise InvalidReceiptHandle(f"receipt handle '{handle}' belongs to another topic than '{topic.name}'")
