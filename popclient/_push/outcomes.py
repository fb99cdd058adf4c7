"""Sends the outcomes of messages to the server, and repeats them until it answers. Logs failures of a listener.

A message keeps its part of the budget until then: a client whose outcomes the server does not get asks for no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from popclient._engine.interceptors import InterceptorChain
from popclient._engine.options import PushOptions
from popclient._engine.settle import CHANGES_AT_ONCE, Settling
from popclient._push.backlog import Batch, Buffered
from popclient._session import convert
from popclient._session.repeating import OUTCOMES
from popclient._session.session import Session
from popclient._version import log
from popclient.errors import PopError
from popclient.listening import ConsumeResult, ConsumeStatus, Consumption, GiveUp

RETRY_AFTER_S: Final = OUTCOMES.first  # seconds, as the official clients do


class OutcomeSender:
    """Acks, failures and what is given back.

    on_answer: called with each message whose outcome the server has answered, with OK or a refusal.
    lost: called with each message whose ack came too late.
    """

    def __init__(
        self,
        settling: Settling,
        interceptors: InterceptorChain,
        on_answer: Callable[[Buffered], None],
        lost: Callable[[Buffered], None],
    ) -> None:
        self._settling = settling
        self._interceptors = interceptors
        self._on_answer = on_answer
        self._lost = lost
        self._open: set[Buffered] = set()
        self._all_answered = asyncio.Event()

    # ---- Done ----

    def ack(self, held: Buffered) -> None:
        self._open.add(held)
        self._submit(held)

    def _submit(self, held: Buffered) -> None:
        if held in self._open:
            self._interceptors.before_ack(held.view)
            self._settling.submit_ack(held.view, _AckReply(self._answered, held))

    def _answered(self, held: Buffered, error: PopError | None) -> None:
        self._interceptors.after_ack(held.view, error)
        if error is None:
            self._close(held)
        elif not error.retryable:  # the hold is over, the topic or group was deleted, or the right was taken away
            log.info("%s is not acked, it may come again: %s", held.view, error)
            self._close(held)
            self._lost(held)
        else:
            log.info("%s is acked again: %s", held.view, error)
            asyncio.get_running_loop().call_later(RETRY_AFTER_S, self._submit, held)

    # ---- Anything else ----

    async def fail(self, held: Buffered, interval: timedelta, reason: str) -> None:
        """It is delivered again after the interval; this attempt counts."""
        fail = partial(self._settling.change_invisible_duration, held.view, interval, reason=reason)
        await self._until_answered(held, fail)

    async def give_up(self, several: Sequence[Buffered], reason: str) -> None:
        """They become dead letters."""
        for held in several:
            forward = partial(self._settling.forward_to_dead_letter_queue, held.view, reason)
            await self._until_answered(held, forward)

    async def give_back(self, several: Sequence[Buffered]) -> None:
        """They are Ready again at once; the attempt does not count."""
        waiting = iter(several)

        async def work() -> None:
            for held in waiting:  # all workers share it
                await self._until_answered(held, partial(self._settling.give_back_one, held.view))

        await asyncio.gather(*(work() for _ in range(min(len(several), CHANGES_AT_ONCE))))

    async def _until_answered(self, held: Buffered, send: Callable[[], Awaitable[None]]) -> None:
        self._open.add(held)
        try:
            while True:
                try:
                    return await send()
                except PopError as failure:
                    if not failure.retryable:
                        return log.info("%s cannot be settled any more: %s", held.view, failure)
                    log.info("the outcome of %s is sent again: %s", held.view, failure)
                await asyncio.sleep(RETRY_AFTER_S)
        finally:
            self._close(held)

    def _close(self, held: Buffered) -> None:
        if held in self._open:
            self._open.remove(held)
            self._on_answer(held)
            if not self._open:
                self._all_answered.set()

    # ---- The end ----

    async def flush(self) -> None:
        """Returns when the server has answered all outcomes so far."""
        while self._open:
            self._all_answered.clear()
            await self._all_answered.wait()

    def abandon(self) -> None:
        self._open.clear()


class _AckReply:
    __slots__ = ("_answered", "_held")

    def __init__(self, answered: Callable[[Buffered, PopError | None], None], held: Buffered) -> None:
        self._answered = answered
        self._held = held

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self._answered(self._held, result)


_COUNTS: Final = f"which counts as {ConsumeResult.FAILURE}"


def describe_failure(batch: Batch, consumption: Consumption, session: Session, options: PushOptions) -> str:
    """A sentence for the log about a call that failed. Its next attempt is left out if it was decided before."""
    several = len(batch.views)
    shown = str(batch.views[0]) if several == 1 else f"{several} messages from {batch.views[0]}"
    sentence = f"group {options.group}, {shown}: the listener {_ended(consumption, options)}"
    if isinstance(consumption.error, GiveUp):
        return sentence
    if not (undecided := batch.undecided):
        return sentence
    return f"{sentence}; {'' if several == 1 else 'of the first, '}{describe_next_attempt(undecided[0], session)}"


def reason_of(consumption: Consumption, timeout_s: float) -> str:
    """Why the call failed, for the server: the exception's type and first line; empty if the listener only said so."""
    if consumption.status is ConsumeStatus.TIMEOUT:
        return f"the consumption timeout of {timeout_s:g} s was over"
    if consumption.status is ConsumeStatus.RETURNNULL:
        return "the listener returned nothing"
    if (error := consumption.error) is None:
        return ""
    if isinstance(error, GiveUp):
        return _text_of(error)
    return ": ".join([type(error).__name__, *_text_of(error).splitlines()[:1]])


def _text_of(error: BaseException) -> str:
    try:
        return str(error).strip()
    except Exception:  # noqa: BLE001  a user's class may fail here, too
        return ""


def describe_next_attempt(held: Buffered, session: Session) -> str:
    """When a failed message is delivered again, if the server has told."""
    attempt, most = held.view.delivery_attempt, session.settings.backoff_policy.max_attempts
    if most and attempt >= most:
        return f"it was attempt {attempt} of {most}: it becomes a dead letter"
    return f"attempt {attempt + 1}{f' of {most}' if most else ''} follows {_when(held, session)}"


def _ended(consumption: Consumption, options: PushOptions) -> str:
    if consumption.status is ConsumeStatus.TIMEOUT:
        return f"ended after the consumption timeout of {options.consumption_timeout:g} s, {_COUNTS}"
    if consumption.status is ConsumeStatus.RETURNNULL:
        return f"returned nothing, {_COUNTS}"
    if isinstance(consumption.error, GiveUp):
        return f"gives up, so this becomes a dead letter: {_text_of(consumption.error)}"
    if consumption.error is not None:
        return f"raised {type(consumption.error).__name__}, {_COUNTS}"
    return f"ended with {ConsumeResult.FAILURE}"


def _when(held: Buffered, session: Session) -> str:
    interval = f"in {convert.retry_interval(session.settings, held.view.delivery_attempt).total_seconds():g} s"
    if held.group.ordered and session.is_popmq:
        # The settings have neither the interval nor whether a message was redriven; then it has no order in its group.
        return f"after its group's interval for messages in order, or {interval} if it was redriven"
    return interval
