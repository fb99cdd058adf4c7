"""One queue of a pull consumer: fetched ahead by long polls, until it is polled, paused, or read elsewhere."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from popclient._engine.flow import CacheBudget
from popclient._pull.options import HOLD, PullOptions
from popclient._queues import pull as pull_call
from popclient._queues.calls import QueueProgress
from popclient._queues.pull import Pulled, PullStatus, backwards, pull_extras, pull_status
from popclient._session.repeating import FETCHES, Pauses
from popclient._session.session import Session
from popclient._tasks import begin_task
from popclient._version import log
from popclient.errors import PopError, TooManyRequests, for_caller
from popclient.message import MessageQueue, MessageView

LEAST_PACE: Final = 1.0  # seconds; a server that answers empty at once must not make its clients spin (requirement A11)
GUESSED_BYTES: Final = 64 * 1024  # of a message, before the first one has arrived


class Begin(NamedTuple):
    """Where a queue begins.

    asked: it was looked up by an end or a time, because the group has no progress. A later look-up may give another
        place: the next reader of the queue would skip what is between, unless the place is stored.
    """

    progress: QueueProgress
    asked: bool = False


class Fetcher:
    """Belongs to one event loop.

    begin: where to begin. Later, `position` is the first offset that is not taken and may be wanted.
    resets: of the progress that commits of this queue continue. generation: of the topic; 0 until it is known.
    left: how far the queue of an earlier topic of that name was read; -1 if there was none.
    sharing: how many fetchers share the budget.
    arrived: called when there is a message to take, or a failure.
    on_recreated: awaited before the next pull when the topic was recreated; it may have other queues now.
    """

    def __init__(
        self,
        session: Session,
        options: PullOptions,
        mq: MessageQueue,
        begin: Begin,
        budget: CacheBudget,
        sharing: Callable[[], int],
        arrived: Callable[[], None],
        on_recreated: Callable[[Fetcher], Awaitable[None]],
    ) -> None:
        self.mq = mq
        self.resets = begin.progress.resets
        self.generation = begin.progress.generation
        self.left = -1
        self.done = (
            begin.progress.offset
        )  # the position when the present poll began: what was taken before is processed
        self.committed = -1  # by this consumer, as far as it knows
        self.paused = False
        self.awaits_queues = False  # the topic was recreated; this queue may be none of its queues now
        self._asked = begin.asked
        self._failure: PopError | None = None
        self._session = session
        self._options = options
        self._budget = budget
        self._sharing = sharing
        self._arrived = arrived
        self._on_recreated = on_recreated
        self._ahead: deque[MessageView] = deque()
        self._next_offset = begin.progress.offset
        self._message_bytes = GUESSED_BYTES
        self._corrections = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def position(self) -> int:
        return self._ahead[0].queue_offset if self._ahead else self._next_offset

    @property
    def has_begun(self) -> bool:
        """Whether the next reader of the queue would begin here or before. No message may be taken until then."""
        return not self._asked or self.committed >= 0

    # ---- Being polled ----

    def start(self) -> None:
        """Begins to fetch, if it may and does not yet."""
        if not self.paused and (self._task is None or self._task.done()):
            self._task = begin_task(self._keep_fetching())

    def take(self, most: int) -> list[MessageView]:
        """Up to so many messages."""
        taken = [self._ahead.popleft() for _ in range(min(most, len(self._ahead)))]
        for view in taken:
            self._budget.leave(len(view.body))
        return taken

    def raise_failure(self) -> None:
        """If a failure has ended the fetching, raises it, and fetches again."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.start()
            raise failure

    def seek(self, offset: int, generation: int = 0) -> None:
        """Continues at the offset, and drops what was fetched before.

        generation: of the topic that the offset belongs to. If it is an earlier one than the present, the queue begins
        at its first message.
        """
        self.stop()
        if 0 not in (generation, self.generation) and generation != self.generation:
            log.warning("%s begins at its first message: offset %d is of an earlier topic", self.mq, offset)
            offset = 0
        self.generation = self.generation or generation
        self._asked = False  # the caller names the place
        self._next_offset = self.done = offset
        self.start()

    def pause(self) -> None:
        self.paused = True
        self.stop()

    def resume(self) -> None:
        self.paused = False
        self.start()

    def stop(self) -> asyncio.Task[None] | None:
        """Stops fetching, and forgets what was not taken. Returns the task that ends."""
        self._next_offset = self.position
        self._forget_ahead()
        self._failure = None
        ending, self._task = self._task, None
        if ending is not None:
            ending.cancel()
        return ending

    def _forget_ahead(self) -> None:
        for view in self._ahead:
            self._budget.leave(len(view.body))
        self._ahead.clear()

    def restart(self, generation: int, offset: int) -> None:
        """The topic was deleted and recreated: the queue begins there, and no message of the earlier topic is taken."""
        log.warning("topic %s was deleted and recreated: %s begins at its first message", self.mq.topic, self.mq)
        self.left = self.position
        self._forget_ahead()
        self._next_offset = self.done = offset
        self.generation, self.resets, self.committed = generation, 0, -1
        self._asked = True  # begun without progress at another place than here, it would be read in part
        self._arrived()

    # ---- Fetching ----

    async def _keep_fetching(self) -> None:
        pauses = Pauses(FETCHES)
        while True:
            try:
                await self._fetch()
                pauses.succeeded()
            except PopError as failure:
                if not failure.retryable:
                    return self.fail(failure)
                if not isinstance(failure, TooManyRequests):
                    log.info("pulling %s again from %d: %s", self.mq, self._next_offset, failure)
                await asyncio.sleep(pauses.after(failure))
            except Exception as defect:  # noqa: BLE001  any failure must be reported
                return self.fail(for_caller(defect))

    def fail(self, failure: PopError) -> None:
        """Keeps it for `raise_failure`."""
        self._failure = failure
        self._arrived()

    def refuse(self, refusal: PopError) -> None:
        """Stops fetching, and keeps the refusal for `raise_failure`."""
        self.stop()
        self.fail(refusal)

    async def _fetch(self) -> None:
        """One pull, as large as the budget allows."""
        clock = asyncio.get_running_loop().time
        permit = await self._budget.acquire(self._options.batch_size, self._message_bytes, self._sharing())
        begun = clock()
        try:
            pulled = await pull_call.pull(
                self._session,
                self._options.group,
                self.mq,
                self._next_offset,
                batch_size=permit.messages,
                expression=self._options.filter_of(self.mq.topic),
                hold=HOLD,
                extras=pull_extras(hold=HOLD, post_subscription=True, generation=self.generation),
            )
            is_another = 0 not in (pulled.generation, self.generation) and pulled.generation != self.generation
            if is_another:
                self.restart(pulled.generation, pulled.next_offset)
            else:
                status = self._handle_answer(pulled)
        finally:
            self._budget.release(permit)
        if is_another:
            self.awaits_queues = True
            try:
                await self._on_recreated(self)
            finally:
                self.awaits_queues = False
        elif status is PullStatus.NO_NEW_MSG or self._corrections > 1:
            await asyncio.sleep(max(0.0, LEAST_PACE - (clock() - begun)))

    def _handle_answer(self, pulled: Pulled) -> PullStatus:
        """Handles the answer of a pull."""
        code, messages, next_offset, generation = pulled
        self.generation = generation or self.generation
        offset = self._next_offset
        status = pull_status(code, next_offset, offset)
        self._corrections = self._corrections + 1 if status is PullStatus.OFFSET_ILLEGAL else 0
        if status is PullStatus.OFFSET_ILLEGAL:
            log.warning("%s has no offset %d; going on from %d", self.mq, offset, next_offset)
        elif strange := backwards(offset, next_offset, messages[0].queue_offset if messages else None):
            log.warning("%s: %s", self.mq, strange)
        self._next_offset = next_offset
        if messages:
            sizes = [len(view.body) for view in messages]
            self._message_bytes = max(1, sum(sizes) // len(sizes))
            for size in sizes:
                self._budget.take(size)
            self._ahead.extend(messages)
            self._arrived()
        return status
