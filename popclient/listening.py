"""Functions that users of the clients write: listeners, interceptors, and checkers of transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias

from popclient.errors import PopError
from popclient.message import MessageView


class ConsumeResult(StrEnum):
    """What a listener returns: SUCCESS acks the message; after FAILURE it is delivered again after the retry interval.

    An exception, or None, is a failure too.
    """

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"


class ConsumeStatus(StrEnum):
    """How a listener ended, for metrics (requirement E7)."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"  # it returned FAILURE, or a value that is no ConsumeResult
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    TIMEOUT = "TIMEOUT"  # the consumption timeout passed first, in the queue or in the listener


class Consumption(NamedTuple):
    """How one call of the listener ended, and how many seconds it took; `error` is what it raised."""

    status: ConsumeStatus
    seconds: float
    error: BaseException | None = None


Listener = Callable[[MessageView], ConsumeResult | None]
BatchListener = Callable[[Sequence[MessageView]], ConsumeResult | None]
AsyncListener = Callable[[MessageView], Awaitable[ConsumeResult | None]]
AsyncBatchListener = Callable[[Sequence[MessageView]], Awaitable[ConsumeResult | None]]


class Interceptor:
    """Its methods are called when messages are received, consumed and acked (requirement E17). Override what you need.

    `before_consume` and `after_consume` run right before and after the listener, in its thread or task, the latter in
    reverse order of the interceptors; for a message that times out before its turn they run in the client's event loop.
    The other methods run there too and must not block. An exception of an interceptor is logged and changes nothing.
    """

    def before_receive(self, topic: str, /) -> None:
        """The consumer is about to poll the topic."""

    def after_receive(self, topic: str, messages: Sequence[MessageView], error: PopError | None, /) -> None:
        """The poll has returned these messages (perhaps none), or has failed."""

    def before_consume(self, messages: Sequence[MessageView], /) -> None:
        """The listener is about to get these messages: one, or a batch."""

    def after_consume(self, messages: Sequence[MessageView], consumption: Consumption, /) -> None:
        """The listener has ended."""

    def before_ack(self, message: MessageView, /) -> None:
        """The consumer is about to ack the message."""

    def after_ack(self, message: MessageView, error: PopError | None, /) -> None:
        """The server has answered the ack. After an error it is repeated, unless the hold is over."""


class TransactionResolution(Enum):
    """What the server does with a half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"  # no decision yet: the server asks again, and discards the message after its last check


# Returns what became of the work behind a half message. The server may ask any producer of the topic, so the answer
# must come from the place where the work is recorded, not from the memory of this process.
Checker: TypeAlias = Callable[[MessageView], TransactionResolution]
AsyncChecker: TypeAlias = Callable[[MessageView], Awaitable[TransactionResolution]]
