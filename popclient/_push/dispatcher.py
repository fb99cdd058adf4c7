"""From the arrival of a message to its outcome (requirements L4, L6, L18).

If a message has waited for the listener for half of the consumption timeout, it is given back, so that another
consumer gets it. Before that, the consumer asks for nothing more: a slow consumer must not use up the attempts of
messages that its listener never got.

Without order: a success is acked, everything else is delivered again after the group's retry interval. In a message
group no message may overtake a failed one: the rest of its group is given back too, and the server delivers all of them
again, in order. A RocketMQ server leaves that to its clients: then the listener gets the message again here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from popclient._engine.flow import CacheBudget
from popclient._engine.options import PushOptions
from popclient._engine.runner import Rejected, Runner
from popclient._engine.settle import Settling
from popclient._push.backlog import Backlog, Batch, Buffered, Deadlines, GroupBacklog
from popclient._push.listener import BatchCall, PushListener
from popclient._push.outcomes import OutcomeSender, describe_failure, describe_next_attempt, reason_of
from popclient._session import convert
from popclient._session.session import Session
from popclient._session.transport import FORGOTTEN_AFTER
from popclient._tasks import Tasks
from popclient._version import log
from popclient.listening import ConsumeStatus, Consumption, GiveBack, GiveUp
from popclient.message import MessageView

# Parts of the consumption timeout.
ENOUGH_AFTER: Final = 0.25
GIVEN_BACK_AFTER: Final = 0.5
RUN_AGAIN: Final = 1.0  # seconds, if the system has no thread for the listener

Report = Callable[[], Awaitable[None]]


class Dispatcher:
    """Everything that was received and is not settled."""

    def __init__(
        self,
        session: Session,
        options: PushOptions,
        settling: Settling,
        budget: CacheBudget,
        listener: PushListener,
        runner: Runner,
    ) -> None:
        self._session = session
        self._options = options
        self._budget = budget
        self._listener = listener
        self._interceptors = listener.interceptors
        self._runner = runner
        self._deadlines = Deadlines(options.consumption_timeout, self._time_out)
        self._waits = Deadlines(options.consumption_timeout * GIVEN_BACK_AFTER, self._give_back_unused)
        self._backlog = Backlog(options.batch_size or 1, self._turn_came)
        self._outcomes = OutcomeSender(
            settling, listener.interceptors, lambda held: budget.leave(held.size), self._ack_came_too_late
        )
        self._trials: deque[tuple[Batch, asyncio.Future[Consumption]]] = deque()
        self._here_again: deque[Batch] = deque()  # the listener gets these again, without the server
        self._here_later: dict[Batch, asyncio.TimerHandle] = {}
        self._tasks = Tasks()
        self._draining = False
        self._is_behind = False  # something was given back unused, and no call of the listener has ended since
        self._moved = asyncio.Event()

    # ---- To the listener ----

    def arrived(self, views: Sequence[MessageView]) -> None:
        """Takes messages that have arrived, and gives the listener what may run."""
        in_order = self._session.keeps_order
        for view in views:
            size = len(view._wire.body)
            self._budget.take(size)
            held = self._backlog.put(view, size, (view.message_group or view.lite_topic) if in_order else None)
            if held.group.is_stuck:
                self._deadlines.watch(held)
            elif not held.group.ordered:
                self._turn_came(held)
        self._hand_out()

    async def keeps_up(self) -> None:
        """Returns when the consumer can take more: the listener will get in time what is here already."""
        while self._is_behind or self._waits.longest > self._options.consumption_timeout * ENOUGH_AFTER:
            self._moved.clear()
            await self._moved.wait()

    def return_late(self, views: Sequence[MessageView]) -> None:
        """Gives back messages that arrived after their poll was cancelled."""
        for view in views:
            held = Buffered(view, len(view._wire.body), GroupBacklog((view.topic, None)))
            self._budget.take(held.size)
            self._report(partial(self._outcomes.give_back, [held]))

    def _turn_came(self, held: Buffered) -> None:
        """It waits only for the listener: from now on its time counts."""
        self._deadlines.watch(held)
        self._waits.watch(held)

    def server_is_silent(self) -> None:
        """The server has ended the holds, so what waits may be with another consumer already."""
        if waiting := self._backlog.withdraw_all():
            log.warning(
                "%d messages from %s are not begun: the server has not answered for %g s, and may have given them away",
                len(waiting), waiting[0].view, FORGOTTEN_AFTER,
            )  # fmt: skip
            self._give_back(waiting)

    def _hand_out(self) -> None:
        if self._session.transport.is_silent:
            self.server_is_silent()
            return
        while self._runner.unfinished < self._options.concurrency and not self._draining:
            if self._trials:
                batch_on_trial, ended = self._trials[0]
                if not ended.done() and not self._run(batch_on_trial, partial(self._trial_ended, ended)):
                    return
                self._trials.popleft()
                continue
            batch = self._next_again() if self._here_again else self._backlog.next_batch()
            if batch is None:
                return
            for held in batch.held:
                self._deadlines.watch(held)
                self._waits.forget(held)
            self._moved.set()
            if not self._run(batch, self._ended):
                self._here_again.appendleft(batch)
                return

    def _next_again(self) -> Batch | None:
        """The next batch to try again here, without those that have timed out."""
        while self._here_again:
            batch = self._here_again.popleft()
            if batch.undecided:
                return batch
            if batch.group.ordered:
                batch.group.is_stuck = False
                self._backlog.free(batch.group)
        return self._backlog.next_batch()

    def _run(self, batch: Batch, report: Callable[[Batch, Consumption], None]) -> bool:
        """Gives the listener the batch. False if the runner takes nothing now; then it is tried again later."""
        batch.call = BatchCall(self._listener, batch, report)
        try:
            self._runner.run(batch.call)
        except Rejected as rejected:
            log.error("%d messages from %s wait: %s", len(batch.views), batch.views[0], rejected)
            asyncio.get_running_loop().call_later(RUN_AGAIN, self._hand_out)
            return False
        return True

    def try_out(self, view: MessageView) -> asyncio.Future[Consumption]:
        """Gives the listener a message that is not held, when its turn comes. The server does not know of it."""
        held = Buffered(view, 0, GroupBacklog((view.topic, None)))
        held.decided = True
        ended = asyncio.get_running_loop().create_future()
        self._trials.append((Batch([held]), ended))
        self._hand_out()
        return ended

    def _trial_ended(self, ended: asyncio.Future[Consumption], _batch: Batch, consumption: Consumption) -> None:
        self._moved.set()
        if not ended.done():
            ended.set_result(consumption)
        self._hand_out()

    # ---- Back from the listener ----

    def _ended(self, batch: Batch, consumption: Consumption) -> None:
        self._is_behind = batch.group.is_stuck = False
        self._moved.set()
        error = consumption.error
        if consumption.status is not ConsumeStatus.SUCCESS and not isinstance(error, GiveBack):
            told = describe_failure(batch, consumption, self._session, self._options)
            is_told = isinstance(error, GiveUp) and error.__cause__ is None
            log.warning("%s", told, exc_info=None if is_told else error)
        if undecided := batch.undecided:
            if consumption.status is ConsumeStatus.SUCCESS:
                self._succeed(undecided)
            elif isinstance(error, GiveBack):
                self._return_unused(undecided)
            elif isinstance(error, GiveUp):
                self._give_up(undecided, reason_of(consumption, self._options.consumption_timeout))
            elif batch.group.ordered and not self._session.is_popmq:
                self._try_again_here(batch)
            else:
                self._fail(undecided, reason_of(consumption, self._options.consumption_timeout))
        if batch.group.ordered and batch not in self._here_later:
            self._backlog.free(batch.group)
        self._hand_out()

    def _succeed(self, several: Sequence[Buffered]) -> None:
        for held in several:
            self._decide(held)
            self._outcomes.ack(held)

    def _fail(self, several: Sequence[Buffered], reason: str) -> None:
        """In an ordered batch the first message is the one that failed; those behind it have to wait."""
        if several[0].group.ordered:
            first, *behind = several
            rest = [*behind, *self._backlog.withdraw_rest(first.group)]
            self._decide(first, *rest)
            self._report(partial(self._fail_in_order, first, rest, reason), first.group)
            return
        for held in several:
            self._decide(held)
            self._report(partial(self._outcomes.fail, held, self._retry_interval(held), reason))

    def _give_up(self, several: Sequence[Buffered], reason: str = "") -> None:
        self._decide(*several)
        group = several[0].group
        self._report(partial(self._outcomes.give_up, several, reason), group if group.ordered else None)

    def _return_unused(self, several: Sequence[Buffered]) -> None:
        """The listener has not begun them. In a message group the rest has to wait for them."""
        group = several[0].group
        self._return([*several, *self._backlog.withdraw_rest(group)] if group.ordered else several)

    def _give_back(self, several: Sequence[Buffered]) -> None:
        """They may be of several message groups. No group waits for the answer."""
        self._decide(*several)
        self._report(partial(self._outcomes.give_back, several))

    def _return(self, several: Sequence[Buffered]) -> None:
        self._decide(*several)
        group = several[0].group
        self._report(partial(self._outcomes.give_back, several), group if group.ordered else None)

    async def _fail_in_order(self, first: Buffered, rest: Sequence[Buffered], reason: str) -> None:
        await self._outcomes.fail(first, self._retry_interval(first), reason)
        await self._outcomes.give_back(rest)

    def _ack_came_too_late(self, held: Buffered) -> None:
        """The first message of a message group is delivered again, so the rest must be delivered again after it."""
        if held.group.ordered and (rest := self._backlog.withdraw_rest(held.group)):
            self._return(rest)

    def _retry_interval(self, held: Buffered) -> timedelta:
        return convert.retry_interval(self._session.settings, held.view.delivery_attempt)

    def _decide(self, *several: Buffered) -> None:
        for held in several:
            held.decided = True
            self._deadlines.forget(held)
            self._waits.forget(held)

    def _report(self, report: Report, in_order: GroupBacklog | None = None) -> None:
        """Reports to the server. An ordered group continues only when the server has answered."""
        if in_order is not None:
            self._backlog.hold_up(in_order)
        self._tasks.spawn(self._report_in_background(report, in_order))

    async def _report_in_background(self, report: Report, in_order: GroupBacklog | None) -> None:
        await report()
        if in_order is not None:
            self._backlog.free(in_order)
            self._hand_out()

    # ---- Too late ----

    def _give_back_unused(self, held: Buffered) -> None:
        """Half of its time is over and the listener has not begun it, so it will not begin those behind it in time.

        If the server leaves the order to its clients, nothing is given back: it could overtake what is not given back.
        """
        if held.batch is not None or (held.group.ordered and not self._session.is_popmq):
            return
        rest = self._backlog.withdraw_rest(held.group)
        self._is_behind = True
        log.info(
            "%d messages from %s are given back: the listener is too slow to begin them in time", len(rest), held.view
        )
        self._return(rest)

    def _time_out(self, held: Buffered) -> None:
        """The consumption timeout is over. The message is with the listener, or still waits for it."""
        batch, timeout = held.batch, Consumption(ConsumeStatus.TIMEOUT, 0.0)
        reason = reason_of(timeout, self._options.consumption_timeout)
        if batch is None:
            self._backlog.withdraw(held)
            views = (held.view,)
            self._interceptors.before_consume(views)
            self._interceptors.after_consume(views, timeout)
            log.warning("%s timed out before its turn came; %s", held.view, describe_next_attempt(held, self._session))
            self._fail([held], reason)
            return
        batch.timed_out = True
        batch.group.is_stuck = batch.group.ordered
        self._fail(batch.undecided, reason)
        if batch.call is not None:
            self._runner.cancel(batch.call)

    # ---- Again, without the server ----

    def _try_again_here(self, batch: Batch) -> None:
        head, policy = batch.held[0].view, self._session.settings.backoff_policy
        if policy.max_attempts and head.delivery_attempt >= policy.max_attempts:
            self._give_up(batch.undecided)
            return
        delay = convert.retry_interval(self._session.settings, head.delivery_attempt).total_seconds()
        for held in batch.held:
            self._deadlines.forget(held)
            held.view._try_again_here()
        self._here_later[batch] = asyncio.get_running_loop().call_later(delay, self._here_now, batch)

    def _here_now(self, batch: Batch) -> None:
        del self._here_later[batch]
        self._here_again.append(batch)
        self._hand_out()

    # ---- The end ----

    def begin_no_more(self) -> None:
        """The listener gets no new messages any more."""
        self._draining = True

    async def drain(self, patience: float) -> None:
        """Gives back what the listener has not begun. Waits for what it has begun, for at most that many seconds."""
        self.begin_no_more()
        for timer in self._here_later.values():
            timer.cancel()
        for _, ended in self._trials:
            ended.cancel()
        waiting = self._backlog.withdraw_all()
        for batch in (*self._here_later, *self._here_again):
            waiting += batch.undecided
        self._give_back(waiting)
        if self._runner.unfinished:
            if patience:
                log.info("%d calls of the listener may end, within %g s", self._runner.unfinished, patience)
            try:
                await asyncio.wait_for(self._runner.idle(), patience)
            except TimeoutError:
                level = logging.WARNING if patience else logging.DEBUG
                log.log(level, "%d calls of the listener have not ended within %s s", self._runner.unfinished, patience)
        self._runner.stop()

    async def flush(self) -> None:
        """Returns when the server has answered all outcomes."""
        await self._tasks.ended()
        await self._outcomes.flush()

    def abandon(self) -> None:
        self._deadlines.stop()
        self._waits.stop()
        self._outcomes.abandon()
        self._tasks.cancel()
