"""Where a newly assigned queue begins: at its stored progress, or as the setting says (requirements I1 to I7)."""

from __future__ import annotations

from datetime import datetime

from popclient._progress.start import Generations, StartQuery, consume_timestamp_of, start_of
from popclient._progress.store import NO_OFFSET, OffsetStore, ReadOffsetType
from popclient._queue_push.options import QueueOptions
from popclient._queues import calls
from popclient._queues.calls import QueueEnd
from popclient._session.session import Session
from popclient._version import log
from popclient.errors import PopError, for_caller
from popclient.message import MessageQueue

UNKNOWN = -1


class StartOffset:
    """For the queues of one consumer. When it is made, it computes the time for CONSUME_FROM_TIMESTAMP without one."""

    def __init__(
        self, session: Session, options: QueueOptions, offset_store: OffsetStore, generations: Generations
    ) -> None:
        self._session = session
        self._group = options.group
        self._generations = generations
        self._recreated: set[MessageQueue] = set()
        self._consume_from = options.consume_from
        self._timestamp = consume_timestamp_of(options.consume_timestamp, datetime.now().astimezone())
        self._offset_store = offset_store

    async def of(self, mq: MessageQueue) -> int:
        """The offset; it is stored if it was looked up. -1 if it is not known or the store fails.

        With -1 the queue is not taken now (requirement I6).
        """
        stored = await self._offset_store.read_offset(mq, ReadOffsetType.READ_FROM_STORE)
        generation = self._offset_store.generation(mq)
        self._generations.met(mq.topic, generation)
        is_outdated = mq in self._recreated and not generation  # perhaps of the earlier topic
        begin = start_of(self._consume_from, mq.topic, NO_OFFSET if is_outdated and stored >= 0 else stored)
        if begin is None:
            return UNKNOWN
        if isinstance(begin, int) and not is_outdated:
            return begin
        try:
            where: int | QueueEnd | datetime = begin if isinstance(begin, int) else self._where(mq.topic, begin)
            offset = where if isinstance(where, int) else await calls.query_offset(self._session, mq, where)
            # A later look-up would give another offset. The next owner of the queue continues here, also after a crash.
            offset = await self._offset_store.begin(mq, offset)
        except Exception as failure:  # noqa: BLE001  a store of the user's may raise anything
            if not (isinstance(failure, PopError) and self._session.give_up(failure)):
                log.warning("where to begin %s is not known, or not stored: %s", mq, for_caller(failure))
            return UNKNOWN
        self._recreated.discard(mq)
        self._offset_store.update_offset(mq, offset, True)
        return offset

    def _where(self, topic: str, begin: StartQuery) -> QueueEnd | datetime:
        if begin is StartQuery.TIMESTAMP:
            return self._timestamp
        return QueueEnd.BEGINNING if self._generations.wants_all(topic) else QueueEnd.END

    def topic_recreated(self, mq: MessageQueue) -> None:
        """Its topic was recreated. The stored progress is ignored from now on, unless the store knows generations."""
        self._recreated.add(mq)

    async def learn_generation(self, mq: MessageQueue) -> None:
        """Learns the generation of a topic in which this consumer has no queue; it may take one up when another topic
        has that name."""
        if not self._generations.has_topic(mq.topic):
            progress = await calls.fetch_offsets(self._session, self._group, [mq])
            self._generations.met(mq.topic, progress[mq].generation)
