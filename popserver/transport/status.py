"""The code on the wire for each error class: one table."""

from __future__ import annotations

from popproto.v2 import definition_pb2 as pb
from popserver.model import errors
from popserver.model.errors import PopError
from popserver.transport.call import EndCode, EndStatus

CODES: dict[type[PopError], pb.Code.ValueType] = {
    errors.PopError: pb.INTERNAL_SERVER_ERROR,
    # The request is wrong.
    errors.BadRequest: pb.BAD_REQUEST,
    errors.IllegalTopic: pb.ILLEGAL_TOPIC,
    errors.IllegalConsumerGroup: pb.ILLEGAL_CONSUMER_GROUP,
    errors.IllegalMessageTag: pb.ILLEGAL_MESSAGE_TAG,
    errors.IllegalMessageKey: pb.ILLEGAL_MESSAGE_KEY,
    errors.IllegalMessageGroup: pb.ILLEGAL_MESSAGE_GROUP,
    errors.IllegalLiteTopic: pb.ILLEGAL_LITE_TOPIC,
    errors.IllegalMessagePropertyKey: pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
    errors.IllegalMessageId: pb.ILLEGAL_MESSAGE_ID,
    errors.IllegalDeliveryTime: pb.ILLEGAL_DELIVERY_TIME,
    errors.IllegalFilterExpression: pb.ILLEGAL_FILTER_EXPRESSION,
    errors.IllegalInvisibleTime: pb.ILLEGAL_INVISIBLE_TIME,
    errors.IllegalPollingTime: pb.ILLEGAL_POLLING_TIME,
    errors.IllegalOffset: pb.ILLEGAL_OFFSET,
    errors.InvalidReceiptHandle: pb.INVALID_RECEIPT_HANDLE,
    errors.InvalidClientProperties: pb.INVALID_CLIENT_PROPERTIES,
    errors.MessagePropertyConflictWithType: pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    errors.MessageCorrupted: pb.MESSAGE_CORRUPTED,
    errors.MessageBodyEmpty: pb.MESSAGE_BODY_EMPTY,
    errors.MessageBodyTooLarge: pb.MESSAGE_BODY_TOO_LARGE,
    errors.MessagePropertiesTooLarge: pb.MESSAGE_PROPERTIES_TOO_LARGE,
    errors.ClientIdRequired: pb.CLIENT_ID_REQUIRED,
    errors.UnrecognizedClientType: pb.UNRECOGNIZED_CLIENT_TYPE,
    errors.InvalidTransactionId: pb.INVALID_TRANSACTION_ID,
    errors.RequestTooSlow: pb.REQUEST_TIMEOUT,
    errors.TooLate: pb.PRECONDITION_FAILED,
    errors.TopicRecreated: pb.PRECONDITION_FAILED,
    errors.AlreadyExists: pb.PRECONDITION_FAILED,
    errors.LeaseTaken: pb.PRECONDITION_FAILED,
    errors.Unauthorized: pb.UNAUTHORIZED,
    errors.Forbidden: pb.FORBIDDEN,
    errors.TopicClosed: pb.FORBIDDEN,
    errors.Unimplemented: pb.NOT_IMPLEMENTED,
    errors.Unsupported: pb.UNSUPPORTED,
    # The request names something that does not exist.
    errors.NotFound: pb.NOT_FOUND,
    errors.NoAnswer: pb.REQUEST_TIMEOUT,
    errors.TopicNotFound: pb.TOPIC_NOT_FOUND,
    errors.ConsumerGroupNotFound: pb.CONSUMER_GROUP_NOT_FOUND,
    errors.MessageNotFound: pb.MESSAGE_NOT_FOUND,
    errors.OffsetNotFound: pb.OFFSET_NOT_FOUND,
    # The server cannot do it.
    errors.Busy: pb.TOO_MANY_REQUESTS,
    errors.TooManyRequests: pb.TOO_MANY_REQUESTS,
    errors.LiteTopicQuotaExceeded: pb.LITE_TOPIC_QUOTA_EXCEEDED,
    errors.LiteSubscriptionQuotaExceeded: pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    errors.Internal: pb.INTERNAL_SERVER_ERROR,
    errors.CannotListen: pb.INTERNAL_SERVER_ERROR,
    errors.CommitUnknown: pb.INTERNAL_SERVER_ERROR,
    errors.StoreUnavailable: pb.INTERNAL_SERVER_ERROR,
    errors.StoreFull: pb.INTERNAL_SERVER_ERROR,
}

# How a refused Telemetry stream ends; every other refusal ends it with INVALID_ARGUMENT.
_STREAM_ENDS: dict[type[PopError], EndCode] = {
    errors.RequestTooSlow: EndCode.DEADLINE_EXCEEDED,
    errors.Unauthorized: EndCode.UNAUTHENTICATED,
    errors.Forbidden: EndCode.PERMISSION_DENIED,
    errors.Busy: EndCode.RESOURCE_EXHAUSTED,
    errors.Unimplemented: EndCode.UNIMPLEMENTED,
    errors.Unsupported: EndCode.UNIMPLEMENTED,
    errors.Internal: EndCode.INTERNAL,
}
# gRPC sends the sentence in a header, and some clients accept at most 8 KiB of headers.
_STREAM_SENTENCE_LENGTH_MAX = 512

# A sentence repeats names from the request, whose length is not checked yet.
_SENTENCE_LENGTH_MAX = 2_000

OK = pb.Status(code=pb.OK, message="OK")


def listed(count: int, limit: int, what: str, advice: str) -> pb.Status:
    """The status of a list without pages, which says if entries are missing. `count` may end at `limit` + 1."""
    if count <= limit:
        return OK
    return pb.Status(code=pb.OK, message=f"only the first {limit} {what}; {advice}")


def of(outcome: PopError | None) -> pb.Status:
    """The status of one outcome; None means success."""
    if outcome is None:
        return OK
    # Tests of official clients expect the code's name in the sentence of a refused handle.
    named = "INVALID_RECEIPT_HANDLE: " if isinstance(outcome, errors.InvalidReceiptHandle) else ""
    sentence = outcome.sentence_for_callers
    if len(sentence) > _SENTENCE_LENGTH_MAX:
        sentence = sentence[: _SENTENCE_LENGTH_MAX - 1] + "…"
    return pb.Status(code=CODES[type(outcome)], message=named + sentence)


def end_of_stream(refusal: PopError) -> EndStatus:
    """The gRPC status and sentence with which a refused Telemetry stream ends (protocol 3.1).

    Official clients show only these: they ignore a command that has only a status.
    """
    codes = (code for kind, code in _STREAM_ENDS.items() if isinstance(refusal, kind))
    return EndStatus(next(codes, EndCode.INVALID_ARGUMENT), refusal.sentence_for_callers[:_STREAM_SENTENCE_LENGTH_MAX])


def code_names() -> dict[int, str]:
    """The names of all codes, such as OK and TOO_MANY_REQUESTS; 0 stands for a call that its client ended."""
    return {number: name for name, number in pb.Code.items()} | {0: "CANCELLED"}


def combined(statuses: list[pb.Status]) -> pb.Status:
    """The common status of several outcomes: the first one if all have the same code, otherwise MULTIPLE_RESULTS."""
    if all(status is OK for status in statuses):
        return OK
    first = statuses[0]
    if all(status.code == first.code for status in statuses):
        return first
    refused = sum(status.code != pb.OK for status in statuses)
    return pb.Status(
        code=pb.MULTIPLE_RESULTS,
        message=f"{refused} of {len(statuses)} entries were refused; each entry has its own status",
    )
