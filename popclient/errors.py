"""The errors of the client: a class for each family of status codes, and the table from code to class.

The server answers with a five-digit code and a sentence; the exception has both. `repeat` of the class says when the
same call may succeed; all loops of the clients go by it (`_session/repeating.py`). `Unreachable` is for calls without
an answer: no server listens, the connection broke, or the deadline passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol

from popproto.v2 import definition_pb2 as pb


class Repeat(StrEnum):
    """When the same call may succeed."""

    NEVER = "never"
    SOON = "soon"
    LATER = "later"
    WHEN_REACHED = "when a server answers"


class PopError(Exception):
    """The call failed.

    Attributes: `code` (the number of the status code, 0 when no server answered), `name` (the code's name),
    `sentence` (what the server said, for people), `repeat` (when the same call may succeed) and `retryable` (whether it
    may).
    """

    repeat: ClassVar[Repeat] = Repeat.NEVER
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.retryable = cls.repeat is not Repeat.NEVER

    def __init__(self, sentence: str = "", *, code: int = 0, name: str = "") -> None:
        self.code = code
        self.name = name or type(self).__name__
        self.sentence = sentence or (type(self).__doc__ or "").split("\n", 1)[0]
        super().__init__(f"{self.name} ({code}): {self.sentence}" if code else self.sentence)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied_error, (type(self), self.args), self.__dict__


def _copied_error(kind: type[PopError], args: tuple[Any, ...]) -> PopError:
    """Without `__init__`, whose arguments differ from kind to kind."""
    return kind.__new__(kind, *args)


class BadRequest(PopError):
    """The request breaks a rule of the server; the sentence names the value and the limit."""


class InvalidReceiptHandle(BadRequest):
    """The hold is over: it expired, was replaced by a newer one, or the message is done."""


class HoldLost(InvalidReceiptHandle):
    """The transaction must not be committed: the message is done, or another consumer has it or will receive it."""


class Unauthorized(PopError):
    """The access key or the signature was refused."""


class PaymentRequired(PopError):
    """The server requires payment."""


class Forbidden(PopError):
    """This client may not do that."""


class NotFound(PopError):
    """The topic, group, message or offset does not exist."""


class RequestTimeout(PopError):
    """The server ran out of time with this request."""

    repeat = Repeat.LATER


class PayloadTooLarge(PopError):
    """The message body is too large."""


class PreconditionFailed(PopError):
    """The state of things does not allow the call."""


class TooManyRequests(PopError):
    """The server is busy; the same call may succeed a little later."""

    repeat = Repeat.SOON


class QuotaExceeded(PopError):
    """A limit on lite topics or their subscriptions is reached."""


class PropertiesTooLarge(PopError):
    """Headers or message properties are too many or too large."""


class ServerError(PopError):
    """The server failed; the same call may succeed later."""

    repeat = Repeat.LATER


class ServerTimeout(PopError):
    """Something behind the server did not answer in time; the same call may succeed later."""

    repeat = Repeat.LATER


class OutOfOrder(PopError):
    """A message before this one in its message group is not acked; ack them in their order."""


class UnsupportedByServer(PopError):
    """This server does not offer the call."""


class UnsupportedByStore(PopError):
    """This database does not allow that; the sentence says which does."""


class RefusedByProxy(PopError):
    """A proxy between the client and its server does not pass the call on."""


class FailedToConsume(PopError):
    """A message that was tried out on a consumer failed there."""


class UnexpectedAnswer(PopError):
    """The answer has no status code, or one that this client does not know."""


class MultipleResults(PopError):
    """Of several calls that travelled together, some failed.

    `failures` holds (what was handed in, why it failed), in the order given; all others succeeded.
    """

    def __init__(
        self,
        sentence: str = "",
        *,
        code: int = pb.MULTIPLE_RESULTS,
        name: str = "MULTIPLE_RESULTS",
        failures: Sequence[tuple[Any, PopError]] = (),
    ) -> None:
        super().__init__(sentence, code=code, name=name)
        self.failures = list(failures)


class Unreachable(PopError):
    """No server answered: nothing listens there, the connection broke, or the deadline passed."""

    repeat = Repeat.WHEN_REACHED


class ClientClosed(PopError):
    """The client is closed; make a new one."""


class Forked(ClientClosed):
    """The process was forked while a client was in use; the sentence says what to do instead."""


# Every Code but OK; a test compares with the enum.
EXCEPTION_OF: Final[dict[int, type[PopError]]] = {
    pb.CODE_UNSPECIFIED: UnexpectedAnswer,
    pb.MULTIPLE_RESULTS: MultipleResults,
    pb.BAD_REQUEST: BadRequest,
    pb.ILLEGAL_ACCESS_POINT: BadRequest,
    pb.ILLEGAL_TOPIC: BadRequest,
    pb.ILLEGAL_CONSUMER_GROUP: BadRequest,
    pb.ILLEGAL_MESSAGE_TAG: BadRequest,
    pb.ILLEGAL_MESSAGE_KEY: BadRequest,
    pb.ILLEGAL_MESSAGE_GROUP: BadRequest,
    pb.ILLEGAL_MESSAGE_PROPERTY_KEY: BadRequest,
    pb.INVALID_TRANSACTION_ID: BadRequest,
    pb.ILLEGAL_MESSAGE_ID: BadRequest,
    pb.ILLEGAL_FILTER_EXPRESSION: BadRequest,
    pb.ILLEGAL_INVISIBLE_TIME: BadRequest,
    pb.ILLEGAL_DELIVERY_TIME: BadRequest,
    pb.INVALID_RECEIPT_HANDLE: InvalidReceiptHandle,
    pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE: BadRequest,
    pb.UNRECOGNIZED_CLIENT_TYPE: BadRequest,
    pb.MESSAGE_CORRUPTED: BadRequest,
    pb.CLIENT_ID_REQUIRED: BadRequest,
    pb.ILLEGAL_POLLING_TIME: BadRequest,
    pb.ILLEGAL_OFFSET: BadRequest,
    pb.ILLEGAL_LITE_TOPIC: BadRequest,
    pb.INVALID_CLIENT_PROPERTIES: BadRequest,
    pb.UNAUTHORIZED: Unauthorized,
    pb.PAYMENT_REQUIRED: PaymentRequired,
    pb.FORBIDDEN: Forbidden,
    pb.NOT_FOUND: NotFound,
    pb.MESSAGE_NOT_FOUND: NotFound,
    pb.TOPIC_NOT_FOUND: NotFound,
    pb.CONSUMER_GROUP_NOT_FOUND: NotFound,
    pb.OFFSET_NOT_FOUND: NotFound,
    pb.REQUEST_TIMEOUT: RequestTimeout,
    pb.PAYLOAD_TOO_LARGE: PayloadTooLarge,
    pb.MESSAGE_BODY_TOO_LARGE: PayloadTooLarge,
    pb.MESSAGE_BODY_EMPTY: BadRequest,
    pb.PRECONDITION_FAILED: PreconditionFailed,
    pb.TOO_MANY_REQUESTS: TooManyRequests,
    pb.LITE_TOPIC_QUOTA_EXCEEDED: QuotaExceeded,
    pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: QuotaExceeded,
    pb.REQUEST_HEADER_FIELDS_TOO_LARGE: PropertiesTooLarge,
    pb.MESSAGE_PROPERTIES_TOO_LARGE: PropertiesTooLarge,
    pb.INTERNAL_ERROR: ServerError,
    pb.INTERNAL_SERVER_ERROR: ServerError,
    pb.HA_NOT_AVAILABLE: ServerError,
    pb.NOT_IMPLEMENTED: UnsupportedByServer,
    pb.PROXY_TIMEOUT: ServerTimeout,
    pb.MASTER_PERSISTENCE_TIMEOUT: ServerTimeout,
    pb.SLAVE_PERSISTENCE_TIMEOUT: ServerTimeout,
    pb.UNSUPPORTED: UnsupportedByServer,
    pb.VERSION_UNSUPPORTED: UnsupportedByServer,
    pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED: UnsupportedByServer,
    pb.FAILED_TO_CONSUME_MESSAGE: FailedToConsume,
}

_NAME_OF: Final[dict[int, str]] = {value: name for name, value in pb.Code.items()}


def error_of(status: pb.Status) -> PopError:
    """The exception for a status that is not OK."""
    code = int(status.code)
    kind = EXCEPTION_OF.get(code, UnexpectedAnswer)
    name = _NAME_OF.get(code, f"CODE_{code}")
    # Some sentences begin with the code's name, which the exception shows anyway.
    return kind(status.message.removeprefix(f"{name}: "), code=code, name=name)


def for_caller(failure: BaseException) -> PopError:
    """What one of the callers that wait for the same thing is told of its failure.

    Each gets an exception of its own: a shared one would collect the tracebacks of all. Cancelled work means that the
    client was closed; anything else that is no PopError is a defect, which no repetition mends.
    """
    if isinstance(failure, PopError):
        return type(failure)(failure.sentence, code=failure.code, name=failure.name)
    if isinstance(failure, asyncio.CancelledError):
        return ClientClosed()
    error = PopError(f"the client failed: {failure!r}")
    error.__cause__ = failure
    return error


class Answered(Protocol):
    """An answer that says how the call ended."""

    @property
    def status(self) -> pb.Status:
        """Its code and its words."""


def check(status: pb.Status) -> None:
    """Raises unless the status is OK."""
    if status.code != pb.OK:
        raise error_of(status)
