"""The listeners of queue consumers: their types, contexts and results.

A listener takes `(messages, context)`: a read-only sequence of messages of one queue, and a context that it may change
before it returns. Its type tells whether it is concurrent or orderly (requirement F1): an `OrderlyListener` gets the
messages of a queue one batch after the other, anything else that can be called gets many batches at once.

A value in a context that means nothing is logged and counts as the default (requirements E8, E15, F7): the listener has
ended, and the outcome of its messages must not depend on a wrong setting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from popclient import _arguments
from popclient._version import log
from popclient.listening import ConsumeStatus, Consumption
from popclient.message import MessageQueue, MessageView

ALL: Final = 2**31 - 1  # ack_index, unless the listener sets it
BY_THE_CONSUMER: Final = -1  # suspend_current_queue_millis, unless the listener sets it


class ConsumeConcurrentlyStatus(StrEnum):
    """What a concurrent listener returns. An exception, or anything else, counts as RECONSUME_LATER."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(StrEnum):
    """What an orderly listener returns. An exception, or anything else, counts as SUSPEND_CURRENT_QUEUE_A_MOMENT.

    COMMIT and ROLLBACK are for listeners that switch `auto_commit` off.
    """

    SUCCESS = "SUCCESS"
    ROLLBACK = "ROLLBACK"
    COMMIT = "COMMIT"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """A concurrent listener gets it with each batch.

    delay_level_when_next_consume: of failed messages; 0: the group's intervals, 1 to 18: that level of the delay table,
        negative: a dead letter at once (requirement E15).
    ack_index: of a success, the last message that is done; what comes after it has failed (requirement E8).
    """

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int = ALL


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """An orderly listener gets it with each batch.

    auto_commit: if it is off, a batch that succeeds stays open until the listener returns COMMIT, or ROLLBACK: then it
        is delivered again from its first message (requirement F11).
    suspend_current_queue_millis: the pause before a failed batch comes again, 10 to 30,000; -1: the consumer's.
    """

    message_queue: MessageQueue
    auto_commit: bool = True
    suspend_current_queue_millis: int = BY_THE_CONSUMER


Context = ConsumeConcurrentlyContext | ConsumeOrderlyContext
Status = ConsumeConcurrentlyStatus | ConsumeOrderlyStatus
ConcurrentListener = Callable[[Sequence[MessageView], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None]
AsyncConcurrentListener = Callable[
    [Sequence[MessageView], ConsumeConcurrentlyContext], Awaitable[ConsumeConcurrentlyStatus | None]
]


class OrderlyListener:
    """Marks a listener as one that takes the messages of a queue in their order; use it as a decorator, or derive from
    it and define `consume`.

    >>> @OrderlyListener
    ... def listener(messages, context):
    ...     return ConsumeOrderlyStatus.SUCCESS
    """

    def __init__(self, consume: Callable[[Sequence[MessageView], ConsumeOrderlyContext], Any] | None = None) -> None:
        if consume is None and type(self).consume is OrderlyListener.consume:
            raise TypeError(
                f"{type(self).__name__} has no listener; define consume(self, messages, context), or give a function"
            )
        self._consume = consume

    def consume(self, messages: Sequence[MessageView], context: ConsumeOrderlyContext, /) -> Any:
        """The listener itself; a coroutine for the asyncio consumer."""
        assert self._consume is not None, "a subclass without a function defines this"
        return self._consume(messages, context)


class Outcome:
    """How one call of the listener ended. `returned`: its status by `status_of`; None if it raised."""

    __slots__ = ("consumption", "returned")

    def __init__(self, returned: Status | None, consumption: Consumption) -> None:
        self.returned = returned
        self.consumption = consumption


_SUCCESSES: Final = frozenset(
    {ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT}
)


def status_of(returned: object, context: Context) -> Status | None:
    """The status that a listener has returned, which may also be the text of a status.

    None for anything else, which is logged unless it is None.

    >>> status_of("CONSUME_SUCCESS", ConsumeConcurrentlyContext(MessageQueue("t", 0)))
    <ConsumeConcurrentlyStatus.CONSUME_SUCCESS: 'CONSUME_SUCCESS'>
    """
    kind = ConsumeOrderlyStatus if isinstance(context, ConsumeOrderlyContext) else ConsumeConcurrentlyStatus
    if isinstance(returned, str) and returned in tuple(kind):
        return kind(returned)
    if returned is not None:
        wanted = ", ".join(kind)
        log.error("the listener has returned %r, which is none of %s: that is a failure", returned, wanted)
    return None


def consumption_of(
    returned: object, status: Status | None, error: BaseException | None, seconds: float, timeout: float
) -> Consumption:
    """The class of a listener's end, for metrics (requirement E7).

    returned, status: what the listener returned, and what `status_of` makes of it. timeout: in seconds.
    """
    if error is not None:
        end = ConsumeStatus.EXCEPTION
    elif returned is None:
        end = ConsumeStatus.RETURNNULL
    elif seconds >= timeout:
        end = ConsumeStatus.TIMEOUT
    else:
        end = ConsumeStatus.SUCCESS if status in _SUCCESSES else ConsumeStatus.FAILED
    return Consumption(end, seconds, error)


def consume_of(listener: Any) -> Callable[..., Any]:
    """What is called with messages and context: the listener's own `consume`, or the listener."""
    consume: Callable[..., Any] = getattr(listener, "consume", listener)
    return consume if callable(consume) else listener


def is_async(listener: Any) -> bool:
    """Whether it is a coroutine function, or an object that consumes with one."""
    if isinstance(listener, OrderlyListener) and listener._consume is not None:
        return is_async(listener._consume)
    return _arguments.is_async(consume_of(listener))


BY_THE_GROUP: Final = 0  # delay level, unless the listener sets it
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
