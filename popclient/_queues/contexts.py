"""What a listener has left in its context, fit for use (requirements E8, E15, F7).

A value that means nothing is logged and counts as one that was left alone: the listener has ended, and what becomes of
its messages must not hang on a slip in a setting.
"""

from __future__ import annotations

from typing import Any, Final

from popclient._queues.listener import ALL, BY_THE_CONSUMER, ConsumeConcurrentlyContext, ConsumeOrderlyContext
from popclient._session import log

BY_THE_GROUP: Final = 0  # delay level of a listener that leaves it alone
DEAD_LETTER: Final = -1  # delay level
LAST_DELAY_LEVEL: Final = 18  # of the server's delay table


def delay_level_of(context: ConsumeConcurrentlyContext) -> int:
    """-1 to 18; every negative one is a dead letter.

    >>> from popclient import MessageQueue
    >>> delay_level_of(ConsumeConcurrentlyContext(MessageQueue("orders", 0), delay_level_when_next_consume=-7))
    -1
    """
    level = context.delay_level_when_next_consume
    if not _is_int(level) or level > LAST_DELAY_LEVEL:
        limit = f"it must be an integer up to {LAST_DELAY_LEVEL}"
        return _default(context, "delay_level_when_next_consume", level, limit, BY_THE_GROUP)
    return max(level, DEAD_LETTER)


def ack_index_of(context: ConsumeConcurrentlyContext) -> int:
    """Any integer; the batch bounds it."""
    index = context.ack_index
    return index if _is_int(index) else _default(context, "ack_index", index, "it must be an integer", ALL)


def suspend_millis_of(context: ConsumeOrderlyContext) -> int:
    """Any integer; the consumer bounds it."""
    millis = context.suspend_current_queue_millis
    if _is_int(millis):
        return millis
    return _default(context, "suspend_current_queue_millis", millis, "it must be an integer", BY_THE_CONSUMER)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _default(
    context: ConsumeConcurrentlyContext | ConsumeOrderlyContext, name: str, value: Any, limit: str, default: int
) -> int:
    log.warning("%s of a listener at %s is %r; %s; it counts as %d", name, context.message_queue, value, limit, default)
    return default
