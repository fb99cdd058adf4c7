"""What a holder does with what it holds: ack, change its time, give it up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from popserver.broker.catalog import Catalog
from popserver.broker.writer import Writer
from popserver.domain import receipt
from popserver.domain.errors import InvalidReceiptHandle, PopError
from popserver.domain.group import Group
from popserver.domain.names import Resource
from popserver.domain.receipt import Receipt
from popserver.domain.topic import Topic, queue_of
from popserver.store import holds


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
        request = holds.Ack(group, good)
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
        request = holds.ChangeInvisible(group, held, duration_ms, give_back)
        return receipt.encode(await self._writer.submit(request))

    async def forward(self, group_name: Resource, topic_name: Resource, handle: str, message_id: str = "") -> None:
        """Give a message up: it becomes a dead letter. Done as well when it already is one, or is committed."""
        group, topic = await self._catalog.of_a_hold(group_name, topic_name)
        request = holds.Forward(group, await self._receipt(handle, message_id, group, topic))
        await self._writer.submit(request)

    async def _receipt(self, handle: str, message_id: str, group: Group, topic: Topic) -> Receipt:
        decoded = receipt.decode(handle)
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
