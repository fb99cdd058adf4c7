"""Functions that users of the clients write: listeners, interceptors, and checkers of transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, StrEnum
from functools import wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from popclient._arguments import is_async, shown
from popclient.errors import PopError
from popclient.message import MessageView

T = TypeVar("T")
Answer = TypeVar("Answer")


class ConsumeResult(StrEnum):
    """What a listener returns: SUCCESS acks the message; after FAILURE it is delivered again after the retry interval.

    An exception, or None, is a failure too.
    """

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"


class GiveUp(Exception):
    """A listener of a push consumer raises it: the message becomes a dead letter at once, whatever attempts are left.

    For a message that no attempt can consume. Its text is the dead letter's reason, of which 256 characters are kept.
    In a message group the next message follows.
    """


class GiveBack(Exception):
    """A listener of this package raises it: the message is Ready again at once, and the attempt does not count."""


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


def typed(
    model: type[T] | Callable[[bytes], T],
) -> Callable[[Callable[[T, MessageView], Answer]], Callable[[MessageView], Answer]]:
    """Makes a listener of a function that takes a value and the message; the value is made of the message's body.

    model: a pydantic model, or a function that makes the value of bytes, such as `json.loads` or
        `TypeAdapter(list[Order]).validate_json`.

    If the body cannot be read, the function is not called, and the message becomes a dead letter at once: another
    attempt would read the same bytes. The reason names the fields. For push consumers without `batch_size`; the
    function may be a coroutine function. Raises TypeError for a class that cannot read bytes.

    >>> @typed(json.loads)
    ... def listener(order, message):
    ...     print(order["table"], message.delivery_attempt)
    ...     return ConsumeResult.SUCCESS
    """
    read = _reader_of(model)

    def value_of(message: MessageView) -> T:
        try:
            return read(message.body)
        except Exception as error:
            unread = GiveUp(f"the body cannot be read: {_fields_of(error)}")
            if _has_fields(error):
                raise unread from None  # a log shows causes too, and that of pydantic has values of the body
            raise unread from error

    def decorate(consume: Callable[[T, MessageView], Any]) -> Callable[[MessageView], Any]:
        @wraps(consume)
        async def awaited(message: MessageView) -> Any:
            return await consume(value_of(message), message)

        @wraps(consume)
        def called(message: MessageView) -> Any:
            return consume(value_of(message), message)

        return awaited if is_async(consume) else called

    return decorate


def _reader_of(model: type[T] | Callable[[bytes], T]) -> Callable[[bytes], T]:
    read = getattr(model, "model_validate_json", None if isinstance(model, type) else model)
    if not callable(read):
        raise TypeError(
            f"model is {shown(model)}; give a pydantic model, or a function that takes bytes, such as json.loads or"
            " pydantic.TypeAdapter(…).validate_json"
        )
    return cast("Callable[[bytes], T]", read)


def _fields_of(error: Exception) -> str:
    """The fields that are wrong, if pydantic says which, without their values; else the error's words."""
    if not _has_fields(error):
        return f"{type(error).__name__}: {error}"
    errors: Any = error
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in errors.errors())


def _has_fields(error: Exception) -> bool:
    return callable(getattr(error, "errors", None))
