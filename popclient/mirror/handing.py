"""One task of a mirror: what a group has not done in a topic is received, stored at the target, and then acked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from popclient._tasks import begin_task
from popclient.aio.simple_consumer import SimpleConsumer
from popclient.errors import MultipleResults, PopError
from popclient.message import MessageView
from popclient.mirror.counts import Counts
from popclient.mirror.outgoing import handed_over
from popclient.mirror.plans import Task
from popclient.mirror.side import Side

HOLD_S: Final = 60.0
TRYING_S: Final = HOLD_S / 2  # how long messages are tried, before they go back to the source
PAUSES_S: Final = (0.1, 5.0)  # between tries while a side is away: the first, and the longest

log = logging.getLogger("popclient.mirror")


class RefusedByTarget(PopError):
    """The target refuses a message for good: a person has to decide."""


class Handing:
    """Hands over one `Handover`.

    trouble: why it waits now; empty if it does not. empty_receives: how many receives in a row brought nothing.
    """

    def __init__(self, task: Task, source: Side, target: Side, counts: Counts, *, was_killed: bool) -> None:
        """was_killed: whether the process before was: the target may have what comes again now."""
        self.handover = task.handover
        self.group = task.group
        self.trouble = ""
        self.empty_receives = 0
        self._topic = task.topic
        self._source = source
        self._target = target
        self._counts = counts
        self._was_killed = was_killed

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises RefusedByTarget, and a refusal of the source."""
        consumer = SimpleConsumer(
            self._source.config,
            self.group,
            self.handover.topic,
            invisible_duration=HOLD_S,
            await_duration=self._source.poll_s,
        )
        began = asyncio.get_running_loop().time()
        stopping = begin_task(stop.wait())
        stopping.add_done_callback(lambda _: consumer.stop())
        try:
            while not stop.is_set():
                views = await self._received(stop, consumer)
                if not views and asyncio.get_running_loop().time() > began + 2 * HOLD_S:
                    self._was_killed = False  # what the process before held has come
                if views and not await self._hand_over(stop, consumer, views):
                    await self._target_back(stop)
        finally:
            stopping.cancel()
            await consumer.close()

    async def _received(self, stop: asyncio.Event, consumer: SimpleConsumer) -> list[MessageView]:
        """What the source has; nothing at `stop`. Waits while the source is away."""
        pause_s = PAUSES_S[0]
        while not stop.is_set():
            try:
                views = await consumer.receive()
            except PopError as failure:
                if stop.is_set():
                    break
                if not failure.retryable:
                    raise
                self.trouble = f"{self._source.where}: {failure}"
                await pause(stop, pause_s)
                pause_s = min(2 * pause_s, PAUSES_S[1])
            else:
                self.trouble = ""
                self.empty_receives = 0 if views else self.empty_receives + 1
                return views
        return []

    async def _hand_over(self, stop: asyncio.Event, consumer: SimpleConsumer, views: Sequence[MessageView]) -> bool:
        """Whether the target has answered for each message. Raises RefusedByTarget."""
        outcomes: list[bool | PopError | None] = [None] * len(views)
        try:
            await self._write(stop, views, outcomes)
        finally:
            told = list(zip(views, outcomes, strict=True))
            await self._ack(consumer, [view for view, outcome in told if isinstance(outcome, bool)])
            self._counts.repeated += sum(outcome is True for outcome in outcomes)
            if self._was_killed:
                self._perhaps_twice(
                    sum(isinstance(outcome, bool) and view.delivery_attempt > 1 for view, outcome in told)
                )
            if rest := [view for view, outcome in told if not isinstance(outcome, bool)]:
                await _give_back(consumer, rest)
        for view, outcome in told:
            if isinstance(outcome, PopError):
                raise RefusedByTarget(
                    f"{self._target.where} refuses message {view.message_id} of {self.handover}: {outcome}. It is still"
                    " at the source: skip it there, or change what the sentence names; then start the mirror again"
                )
        return not rest

    async def _write(
        self, stop: asyncio.Event, views: Sequence[MessageView], outcomes: list[bool | PopError | None]
    ) -> None:
        """Fill in what has become of the messages. Those that the target cannot take now are tried again for a time,
        and then have no outcome. RocketMQ may have several messages with one id, so they go by their places."""
        clock = asyncio.get_running_loop().time
        until, pause_s = clock() + TRYING_S, PAUSES_S[0]
        # A whole topic is copied: its messages stay at the source, and keep their ids.
        moves = self.handover.group is not None
        left = list(range(len(views)))
        while left:
            given = [handed_over(views[number]) if moves else views[number] for number in left]
            try:
                results: Sequence[bool | PopError] = await self._target.write(self.handover, self._topic, given)
            except PopError as failure:
                results = [failure] * len(left)
            tried, left = left, []
            for number, result in zip(tried, results, strict=True):
                if isinstance(result, PopError) and result.retryable:
                    left.append(number)
                else:
                    outcomes[number] = result
            self.trouble = next((f"{self._target.where}: {each}" for each in results if isinstance(each, PopError)), "")
            self._counts.unsure += self._target.perhaps_stored(results)
            if left:
                if stop.is_set() or clock() + pause_s > until:
                    return
                await pause(stop, pause_s)
                pause_s = min(2 * pause_s, PAUSES_S[1])

    async def _ack(self, consumer: SimpleConsumer, stored: Sequence[MessageView]) -> None:
        if not stored:
            return
        self._counts.handed += len(stored)
        self._counts.bytes += sum(len(view.stored_body) for view in stored)
        try:
            await consumer.ack(stored)
        except MultipleResults as failed:
            self._perhaps_twice(len(failed.failures))
            log.warning("%d messages of %s may come again: %s", len(failed.failures), self.handover, failed)
        except PopError as failure:
            self._perhaps_twice(len(stored))
            log.warning("%d messages of %s may come again: %s", len(stored), self.handover, failure)

    def _perhaps_twice(self, count: int) -> None:
        if not self._target.stores_once:
            self._counts.unsure += count

    async def _target_back(self, stop: asyncio.Event) -> None:
        """Wait until the target answers, so that no attempts are spent at the source meanwhile."""
        pause_s = PAUSES_S[0]
        while not stop.is_set():
            try:
                await self._target.route(self._topic.name)
            except PopError as failure:
                if not failure.retryable:
                    raise
                self.trouble = f"{self._target.where}: {failure}"
            else:
                return
            await pause(stop, pause_s)
            pause_s = min(2 * pause_s, PAUSES_S[1])


async def _give_back(consumer: SimpleConsumer, views: Sequence[MessageView]) -> None:
    try:
        await consumer.give_back(views)
    except PopError as failure:
        log.warning("%d messages come again when their holds end: %s", len(views), failure)


async def pause(stop: asyncio.Event, pause_s: float) -> None:
    """Wait, but not beyond `stop`."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), pause_s)
