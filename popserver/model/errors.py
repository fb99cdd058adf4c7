"""All refusals and failures that callers can get.

A class's docstring is its default sentence. A better sentence names the wrong value, the limit and what to do instead.
`transport/status.py` maps each class to its code on the wire.
"""

from __future__ import annotations

from typing import Any


class PopError(Exception):
    """PopMQ refused the request."""

    database = ""  # its name, if the sentence has it: a user, a host or a path, which are for operators

    def __init__(self, sentence: str | None = None) -> None:
        super().__init__(sentence or (type(self).__doc__ or "").strip())

    @property
    def sentence(self) -> str:
        return str(self.args[0])

    @property
    def sentence_for_callers(self) -> str:
        return self.sentence.replace(self.database, "the database") if self.database else self.sentence


class BadRequest(PopError):
    """The request is malformed."""


class NotFound(PopError):
    """What the request names does not exist."""


class Busy(PopError):
    """The server has reached a limit; try again later."""


class Internal(PopError):
    """The server failed; whether the request took effect is unknown, repeat it."""


class CommitUnknown(Internal):
    """The connection to the database ended during a commit; whether it took effect is unknown, repeat the request."""

    def __init__(self, sentence: str | None = None, outcome: Any = None) -> None:
        super().__init__(sentence)
        self.outcome = outcome  # the result of the request, if it took effect


class IllegalTopic(BadRequest):
    """The topic's name is illegal."""


class IllegalConsumerGroup(BadRequest):
    """The consumer group's name is illegal."""


class IllegalMessageTag(BadRequest):
    """The message's tag is illegal."""


class IllegalMessageKey(BadRequest):
    """A key of the message is illegal."""


class IllegalMessageGroup(BadRequest):
    """The message group is illegal."""


class IllegalLiteTopic(BadRequest):
    """The lite topic's name is illegal."""


class IllegalMessagePropertyKey(BadRequest):
    """A property of the message is illegal."""


class IllegalMessageId(BadRequest):
    """The message id is illegal."""


class IllegalDeliveryTime(BadRequest):
    """The delivery timestamp is illegal."""


class IllegalFilterExpression(BadRequest):
    """The filter expression is illegal."""


class IllegalInvisibleTime(BadRequest):
    """The invisible duration is illegal."""


class IllegalPollingTime(BadRequest):
    """The long-polling timeout is illegal."""


class IllegalOffset(BadRequest):
    """The offset is outside of the queue."""


class InvalidReceiptHandle(BadRequest):
    """The receipt handle is not that of a current hold."""


class MessagePropertyConflictWithType(BadRequest):
    """The message's properties conflict with its type."""


class MessageCorrupted(BadRequest):
    """The message is corrupted."""


class MessageBodyEmpty(BadRequest):
    """The message's body is empty."""


class MessageBodyTooLarge(BadRequest):
    """The message's body is too large."""


class MessagePropertiesTooLarge(BadRequest):
    """The message's properties are too large."""


class ClientIdRequired(BadRequest):
    """The request has no client id; send it in the header x-mq-client-id."""


class UnrecognizedClientType(BadRequest):
    """The server does not know this client type."""


class InvalidClientProperties(BadRequest):
    """The client's properties are illegal."""


class InvalidTransactionId(BadRequest):
    """The transaction id is not that of an undecided half message."""


class TooLate(BadRequest):
    """It is too late for that."""


class RequestTooSlow(BadRequest):
    """The request took too long to arrive; send it again, or split it."""


class TopicRecreated(TooLate):
    """The topic was deleted and created again."""

    def __init__(self, sentence: str | None = None, generation: int = 0) -> None:
        super().__init__(sentence)
        self.generation = generation  # of the topic that has this name now


class NoAnswer(PopError):
    """A client that the server asked has not answered in time."""


class AlreadyExists(BadRequest):
    """It exists already."""


class LeaseTaken(BadRequest):
    """Another process has the lease."""


class Unauthorized(PopError):
    """The caller is unknown."""


class Forbidden(PopError):
    """This is not allowed."""


class TopicClosed(Forbidden):
    """The topic takes no messages of producers."""


class Unimplemented(PopError):
    """This version of the server does not implement that."""


class Unsupported(PopError):
    """This server does not support that."""


class TopicNotFound(NotFound):
    """The topic does not exist."""


class ConsumerGroupNotFound(NotFound):
    """The consumer group does not exist."""


class MessageNotFound(NotFound):
    """The message does not exist."""


class OffsetNotFound(NotFound):
    """The group has no committed offset in the queue."""


class TooManyRequests(Busy):
    """Too many requests at once; try again later."""


class LiteTopicQuotaExceeded(Busy):
    """The topic has as many lite topics as are allowed."""


class LiteSubscriptionQuotaExceeded(Busy):
    """The client subscribes to as many lite topics as are allowed."""


class StoreUnavailable(Internal):
    """The database does not answer; probably nothing was stored, repeat the request."""


class CannotListen(Internal):
    """The server cannot listen on its address."""


class StoreFull(Internal):
    """The database's disk is full; nothing was stored. Free some space, then repeat the request."""
