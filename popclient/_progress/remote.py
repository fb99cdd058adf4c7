"""Progress kept by the server (requirement H3): for clustering, so that the next owner of a queue continues there.

The server counts how often an operator has moved a queue's progress (`resets`). Commits carry the count that they know,
so a commit from before a reset is refused and cannot undo it, and `on_reset` tells the consumer to begin again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from popclient._progress.store import NO_OFFSET, OFFSET_ERROR, RememberingStore
from popclient._queues import calls
from popclient._queues.calls import Committed, QueueProgress
from popclient._session.repeating import level_of
from popclient._session.session import Session
from popclient.errors import PopError
from popclient.message import MessageQueue

log = logging.getLogger("popclient")

Fetch = Callable[[Collection[MessageQueue]], Awaitable[Mapping[MessageQueue, QueueProgress]]]


class Commit(Protocol):
    """`calls.commit_offsets` of one session and group."""

    async def __call__(
        self, offsets: Mapping[MessageQueue, QueueProgress], /, *, begin: bool = False
    ) -> Mapping[MessageQueue, Committed]: ...


class RemoteOffsetStore(RememberingStore):
    """Belongs to one event loop, except for the methods that only use memory.

    on_reset: called with a queue whose commit was refused, because an operator has moved its progress or its topic was
        recreated. Its offset in memory is forgotten by then; `read_offset` gets the new one from the store. It is
        called in the event loop and must not block.
    give_up: called with each failure. Returns whether it has ended the consumer: then nothing is logged here.
    """

    def __init__(
        self,
        group: str,
        fetch: Fetch,
        commit: Commit,
        on_reset: Callable[[MessageQueue], None],
        give_up: Callable[[PopError], bool] = lambda _: False,
    ) -> None:
        super().__init__()
        self._group = group
        self._fetch = fetch
        self._commit = commit
        self._on_reset = on_reset
        self._give_up = give_up
        self._stored: dict[MessageQueue, QueueProgress] = {}  # as the server has told last

    @classmethod
    def of(cls, session: Session, group: str, on_reset: Callable[[MessageQueue], None]) -> RemoteOffsetStore:
        """With the calls of a session. A server without the Legacy service is asked queue by queue."""
        fetch, commit = partial(calls.fetch_offsets, session, group), partial(calls.commit_offsets, session, group)
        return cls(group, fetch, commit, on_reset, session.give_up)

    async def load(self) -> None:
        """Nothing to do: the server is asked for each queue when it is assigned."""

    async def _read_stored(self, mq: MessageQueue) -> int:
        try:
            progress = (await self._fetch((mq,)))[mq]
        except PopError as failure:
            if not self._give_up(failure):
                log.log(level_of(failure), "offset of %s for group %s is not known: %s", mq, self._group, failure)
            return OFFSET_ERROR
        if progress.generation != self.generation(mq):
            self._memory.remove(mq)
        self._stored[mq] = progress
        if progress.offset < 0:
            return NO_OFFSET
        self._memory.update(mq, progress.offset, increase_only=False)
        return progress.offset

    async def persist_all(self, mqs: Collection[MessageQueue]) -> None:
        for mq in self._stored.keys() - set(mqs):
            del self._stored[mq]
        await super().persist_all(mqs)

    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
        try:
            refusals = await self._send({mq: offset})
        except PopError as failure:
            refusals = {mq: failure}
        for refusal in refusals.values():
            if not is_oneway:
                raise refusal
            self._log_not_committed({mq: offset}, refusal)

    async def begin(self, mq: MessageQueue, offset: int) -> int:
        committed = (await self._commit({mq: self._stored_of(mq)._replace(offset=offset)}, begin=True))[mq]
        if committed.refusal is not None:
            raise committed.refusal
        # Another member may have begun it since its progress was read.
        begun = QueueProgress(offset) if committed.stored is None else committed.stored
        self._stored[mq] = begun
        return begun.offset

    def resets(self, mq: MessageQueue) -> int:
        """The count for a commit of the queue's present offset; for pulls that carry a commit."""
        return self._stored_of(mq).resets

    def generation(self, mq: MessageQueue) -> int:
        return self._stored_of(mq).generation

    async def _persist(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Leaves out queues whose offset the server has already."""
        changed = {mq: offset for mq, offset in offsets.items() if offset != self._stored_of(mq).offset}
        if not changed:
            return
        try:
            refusals = await self._send(changed)
        except PopError as failure:
            self._log_not_committed(changed, failure)
        else:
            for mq, refusal in refusals.items():
                self._log_not_committed({mq: changed[mq]}, refusal)

    async def _send(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, PopError]:
        """Handles the refused commits."""
        sent = {mq: self._stored_of(mq)._replace(offset=offset) for mq, offset in offsets.items()}
        refusals: dict[MessageQueue, PopError] = {}
        for mq, committed in (await self._commit(sent)).items():
            if committed.refusal is not None:
                refusals[mq] = committed.refusal
            if committed.stored is not None and self._is_overtaken(mq, committed.stored):
                self._memory.remove(mq)
                self._on_reset(mq)
            elif committed.refusal is None and self._stored_of(mq)[1:] == sent[mq][1:]:  # not read again
                self._stored[mq] = sent[mq]
        return refusals

    def _is_overtaken(self, mq: MessageQueue, stored: QueueProgress) -> bool:
        """Whether an operator has moved the progress, or the topic was recreated."""
        known = self._stored_of(mq)
        return stored.resets > known.resets or stored.generation not in (0, known.generation)

    def _stored_of(self, mq: MessageQueue) -> QueueProgress:
        return self._stored.get(mq, QueueProgress(NO_OFFSET))

    def _log_not_committed(self, offsets: Mapping[MessageQueue, int], failure: PopError) -> None:
        if not self._give_up(failure):
            what = ", ".join(f"{mq} at {offset}" for mq, offset in offsets.items())
            log.log(level_of(failure), "progress of group %s is not committed (%s): %s", self._group, what, failure)
