"""What the log says of a listener that failed: how, and when its message comes again."""

from __future__ import annotations

from typing import Final

from popclient import _convert as convert
from popclient._engine.backlog import Batch, Held
from popclient._engine.options import PushOptions
from popclient._session import Session
from popclient.listening import ConsumeResult, ConsumeStatus, Consumption

_COUNTS: Final = f"which counts as {ConsumeResult.FAILURE}"


def failure(batch: Batch, consumption: Consumption, session: Session, options: PushOptions) -> str:
    """One call of the listener that did not succeed. Of a late one the next attempt was decided before."""
    several = len(batch.views)
    shown = str(batch.views[0]) if several == 1 else f"{several} messages from {batch.views[0]}"
    said = f"{shown}: the listener {_ended(consumption, options)}"
    if not (undecided := batch.undecided):
        return said
    return f"{said}; {'' if several == 1 else 'of the first, '}{next_attempt(undecided[0], session)}"


def next_attempt(held: Held, session: Session) -> str:
    """When a failed message comes again, as far as the server has told."""
    attempt, most = held.view.delivery_attempt, session.settings.backoff_policy.max_attempts
    if most and attempt >= most:
        return f"it was attempt {attempt} of {most}: it becomes a dead letter"
    return f"attempt {attempt + 1}{f' of {most}' if most else ''} follows {_when(held, session)}"


def _ended(consumption: Consumption, options: PushOptions) -> str:
    if consumption.status is ConsumeStatus.TIMEOUT:
        return f"ended after the consumption timeout of {options.consumption_timeout:g} s, {_COUNTS}"
    if consumption.status is ConsumeStatus.RETURNNULL:
        return f"returned nothing, {_COUNTS}"
    if consumption.error is not None:
        return f"raised {type(consumption.error).__name__}, {_COUNTS}"
    return f"ended with {ConsumeResult.FAILURE}"


def _when(held: Held, session: Session) -> str:
    if held.chain.ordered and session.is_popmq:  # which keeps that interval to itself
        return "after its group's interval for messages in order"
    return f"in {convert.retry_interval(session.settings, held.view.delivery_attempt).total_seconds():g} s"
