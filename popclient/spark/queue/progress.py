"""Commits a stream's progress as that of its group, so that `popmq` and dashboards show it.

The stream itself reads its progress only from Spark's checkpoint; a reset of the group does not move the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from popclient._queues import calls
from popclient._queues.calls import QueueProgress
from popclient._session.session import Session
from popclient.errors import BadRequest, PopError, Unreachable
from popclient.message import MessageQueue
from popclient.spark.link import link_to
from popclient.spark.queue.offsets import Offsets
from popclient.spark.queue.options import QueueReadOptions

log = logging.getLogger("popclient.spark")

PATIENCE_S = 5.0


class ProgressReporter:
    """Commits offsets that Spark has committed. Belongs to one process."""

    def __init__(self, options: QueueReadOptions) -> None:
        self._options = options
        self._committed: dict[MessageQueue, int] = {}
        self._resets: dict[MessageQueue, int] = {}
        self._is_first = True

    def report(self, done: Offsets) -> None:
        """Commits these offsets. A failure is logged; the next call repeats it.

        The first call raises failures that are permanent: a PopError, or `ValueError` for a group that consumes message
        by message, and so has no offsets.
        """
        news = {queue: offset for queue, offset in done.items() if self._committed.get(queue) != offset}
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
                "the progress of group %s is committed later, the query continues: %s",
                self._options.group,
                failure,
            )
            self._resets.clear()
        else:
            self._committed.update(news)
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
