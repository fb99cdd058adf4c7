"""Which progress of a pull consumer is committed: what was polled; by auto-commit only what is processed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from popclient._pull.fetch import Fetcher
from popclient._queues import calls
from popclient._queues.calls import Committed, QueueProgress
from popclient._session.repeating import FETCHES, Pauses, level_of
from popclient._session.session import Session
from popclient._version import log
from popclient.errors import MultipleResults, NotFound, PopError, for_caller
from popclient.message import MessageQueue


class OffsetCommitter:
    """Commits for the queues that are assigned. A queue whose progress has not changed is not committed again."""

    def __init__(self, session: Session, group: str, fetchers: Mapping[MessageQueue, Fetcher]) -> None:
        self._session = session
        self._group = group
        self._fetchers = fetchers

    def begin_poll(self) -> None:
        """A new poll means that the messages of the poll before are processed."""
        for fetcher in self._fetchers.values():
            fetcher.done = fetcher.position

    @property
    def has_begun(self) -> bool:
        """Whether the beginning of each queue is stored."""
        return all(fetcher.has_begun for fetcher in self._fetchers.values())

    async def keep_beginning(self) -> None:
        """Stores where queues begin, and repeats that; `poll` raises failures that a repetition cannot solve.

        This is before anything is polled, so that after a crash the same messages come again. While the queues of a
        recreated topic are looked up, a refusal is not a failure: the refused queue may be gone.
        """
        pauses = Pauses(FETCHES)
        while begins := {mq: fetcher.position for mq, fetcher in self._fetchers.items() if not fetcher.has_begun}:
            try:
                await self.commit(begins)
            except Exception as raised:  # noqa: BLE001  any failure must be reported
                failure = for_caller(raised)
                if not failure.retryable and not self._awaits_queues(begins):
                    self._fail(begins, failure)
                    break
                log.info("where group %s begins is not stored yet: %s", self._group, failure)
                await asyncio.sleep(pauses.after(failure) if failure.retryable else FETCHES.longest)

    def _awaits_queues(self, mqs: Iterable[MessageQueue]) -> bool:
        return any(fetcher.awaits_queues for mq in mqs if (fetcher := self._fetchers.get(mq)) is not None)

    def _fail(self, mqs: Iterable[MessageQueue], failure: PopError) -> None:
        for mq in mqs:
            if (fetcher := self._fetchers.get(mq)) is not None and not fetcher.has_begun:
                fetcher.fail(failure)

    async def commit_polled(self) -> None:
        await self.commit({mq: fetcher.position for mq, fetcher in self._fetchers.items()})

    async def commit_done(self) -> None:
        """Without the messages of the last poll: the user may still process them."""
        await self.commit({mq: min(fetcher.done, fetcher.position) for mq, fetcher in self._fetchers.items()})

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """For assigned queues. Raises MultipleResults with the refusals, NotFound if no topic exists any more."""
        changed = {
            mq: QueueProgress(offset, self._fetchers[mq].resets, self._fetchers[mq].generation)
            for mq, offset in offsets.items()
            if offset != self._fetchers[mq].committed
        }
        if not changed:
            return
        results = await calls.commit_offsets(self._session, self._group, changed)
        settled = [(mq, self._settle(mq, changed[mq], result)) for mq, result in results.items()]
        if refusals := [(mq, refusal) for mq, refusal in settled if refusal is not None]:
            if all(isinstance(refusal, NotFound) for _, refusal in refusals):
                raise refusals[0][1]
            raise MultipleResults(
                f"{len(refusals)} of {len(changed)} offsets were not committed; the first, of {refusals[0][0]}:"
                f" {refusals[0][1]}",
                failures=refusals,
            )

    def _settle(self, mq: MessageQueue, sent: QueueProgress, result: Committed) -> PopError | None:
        """The refusal, unless the fetcher continues elsewhere: where an operator has moved the progress, or at the
        beginning of a topic that was recreated."""
        fetcher = self._fetchers.get(mq)
        if fetcher is None:
            return result.refusal
        if _differ(sent, result.stored):
            self._restart_if_recreated(fetcher, result.stored)  # unless a pull has answered it meanwhile
            return None
        if result.refusal is None:
            fetcher.committed = sent.offset
        elif result.stored.resets > sent.resets:
            self._continue_at(fetcher, result.stored)
            return None
        return result.refusal

    def _restart_if_recreated(self, fetcher: Fetcher, stored: QueueProgress) -> bool:
        """Is the topic another one than the fetcher's? Then it begins, where another member has brought it to."""
        if not _differ(fetcher, stored):
            return False
        fetcher.restart(stored.generation, max(stored.offset, 0))
        return True

    def _continue_at(self, fetcher: Fetcher, stored: QueueProgress) -> None:
        if stored.resets > fetcher.resets:
            log.warning("%s was reset for group %s; going on from %d", fetcher.mq, self._group, stored.offset)
            fetcher.committed, fetcher.resets = stored.offset, stored.resets
            fetcher.seek(stored.offset)

    async def follow_resets(self) -> None:
        """Continues at the offset to which an operator has moved the progress."""
        try:
            progress = await calls.fetch_offsets(self._session, self._group, list(self._fetchers))
        except PopError as failure:
            log.info("a reset is followed with the next commit: %s", failure)
            return
        for mq, stored in progress.items():
            fetcher = self._fetchers.get(mq)
            if fetcher is not None and not self._restart_if_recreated(fetcher, stored) and stored.offset >= 0:
                self._continue_at(fetcher, stored)

    async def keep_committing(self, interval: float) -> None:
        """Every `interval` seconds, until cancelled. `poll` raises refusals that are final."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.commit_done()
            except PopError as failure:
                refusals = [each for _, each in failure.failures] if isinstance(failure, MultipleResults) else [failure]
                if not any(self._session.give_up(each) for each in refusals):
                    self._log_not_committed(failure)

    async def commit_at_end(self, *, all_done: bool) -> None:
        try:
            await (self.commit_polled() if all_done else self.commit_done())
        except PopError as failure:
            self._log_not_committed(failure)

    def _log_not_committed(self, failure: PopError) -> None:
        log.log(level_of(failure), "progress of group %s is not committed: %s", self._group, failure)


def _differ(one: Fetcher | QueueProgress, other: QueueProgress) -> bool:
    """Whether they belong to different generations of a topic."""
    return 0 not in (one.generation, other.generation) and one.generation != other.generation
