"""Shows a stream's progress beside that of other consumers: as the group's, which `group_lag` and the command see.

Only shows it. Where a stream stands is written in Spark's checkpoint alone; what an operator does to the group's
progress does not move the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from popclient._queues import calls
from popclient._queues.calls import QueueProgress
from popclient._session import Session
from popclient.errors import BadRequest, PopError, Unreachable
from popclient.message import MessageQueue
from popclient.spark.link import link_to
from popclient.spark.queue.offsets import Offsets
from popclient.spark.queue.options import QueueReadOptions

log = logging.getLogger("popclient.spark")

PATIENCE_S = 5.0


class ProgressReporter:
    """Tells the server what Spark has committed. Belongs to one process."""

    def __init__(self, options: QueueReadOptions) -> None:
        self._options = options
        self._told: dict[MessageQueue, int] = {}
        self._resets: dict[MessageQueue, int] = {}
        self._is_first = True

    def tell(self, done: Offsets) -> None:
        """Everything before these offsets is done. A failure is logged, and made good with the next progress.

        At the first time it raises what would fail for ever: a PopError, or `ValueError` for a group that consumes
        message by message, and so has no offsets.
        """
        news = {queue: offset for queue, offset in done.items() if self._told.get(queue) != offset}
        if not news:
            return
        link = link_to(self._options.server, self._options.group)
        try:
            link.ask(lambda session: self._commit(session, news), PATIENCE_S)
        except PopError as failure:
            if self._is_first and isinstance(failure, BadRequest):
                raise ValueError(
                    f"option consumerGroup={self._options.group!r} cannot keep this query's progress: {failure}; give"
                    " this query a group of its own, in which nothing else consumes"
                ) from None
            if self._is_first and not (failure.retryable or isinstance(failure, Unreachable)):
                raise
            log.warning(
                "the progress of group %s is shown later, the query itself is not concerned: %s",
                self._options.group,
                failure,
            )
            self._resets.clear()
        else:
            self._told.update(news)
        self._is_first = False

    async def _commit(self, session: Session, news: Offsets) -> None:
        await self._learn_resets(session, [queue for queue in news if queue not in self._resets])
        offsets = {queue: QueueProgress(offset, self._resets[queue]) for queue, offset in news.items()}
        committed = await calls.commit_offsets(session, self._options.group, offsets)
        for each in committed.values():
            if each.refusal is not None:
                raise each.refusal

    async def _learn_resets(self, session: Session, queues: Collection[MessageQueue]) -> None:
        if queues:
            found = await calls.fetch_offsets(session, self._options.group, queues)
            self._resets |= {queue: progress.resets for queue, progress in found.items()}
