"""What every server refuses in a message (protocol 4.1, 4.2), for messages that become a part of a transaction.

A relay sends the messages of an outbox after the commit, when it is too late for a refusal. Only a server knows whether
the topic exists and takes the message, and how long a delay may be. The server has its own copy of these rules, because
it imports nothing of the client; a test compares both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from popclient._arguments import shown
from popclient.errors import error_of
from popclient.message import IDEMPOTENCY_KEY, Message
from popproto.v2 import definition_pb2 as pb

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
KEYS_MAX: Final = 1_024
GROUP_BYTES_MAX: Final = 63
NAME_LENGTH_MAX: Final = 127
ID_LENGTH_MAX: Final = 255
KEY_BYTES_MAX: Final = 255  # of an idempotency key
TRACE_CONTEXT_LENGTH_MAX: Final = 1_024

RESERVED_PROPERTIES: Final = frozenset(
    """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES
    CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO
    INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
    """.split()
)
SYSTEM_TOPICS: Final = frozenset(
    """
    TBW102 SCHEDULE_TOPIC_XXXX BenchmarkTest TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT
    CHECKPOINT_TOPIC
    """.split()
)
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_LITE_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TIMES: Final = datetime.fromtimestamp(0, UTC), datetime.max.replace(tzinfo=UTC)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_Faults = Iterator[tuple[pb.Code.ValueType, str]]


def require_acceptable(message: Message) -> None:
    """Raises for a message that no server takes, as `Producer.send` does: TypeError, ValueError or a PopError."""
    message.require_sendable()
    for code, sentence in _faults(message):
        raise error_of(pb.Status(code=code, message=sentence))


def _faults(message: Message) -> _Faults:
    yield from _of_topic(message.topic)
    yield from _of_id(message.message_id)
    if not (size := _size(message.body)):
        yield pb.MESSAGE_BODY_EMPTY, "the message's body is empty; send at least one byte"
    if size > BODY_BYTES_MAX:
        yield (
            pb.MESSAGE_BODY_TOO_LARGE,
            f"the message's body has {size} bytes, at most {BODY_BYTES_MAX} are allowed; send a reference instead",
        )
    yield from _of_words(message)
    yield from _of_properties(message)
    due = message.delivery_timestamp
    if due is not None and not _TIMES[0] <= due <= _TIMES[1]:
        yield pb.ILLEGAL_DELIVERY_TIME, f"delivery_timestamp {due} is not between the years 1970 and 9999"


def _of_topic(name: str) -> _Faults:
    if name.startswith(("%DLQ%", "%RETRY%")):
        yield pb.ILLEGAL_TOPIC, f"only the server sends to topic '{name}'; send to the topic its messages came from"
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        allowed = f"1 to {NAME_LENGTH_MAX} characters of % | A-Z a-z 0-9 _ -"
        yield pb.ILLEGAL_TOPIC, f"topic name {shown(name)} is not allowed; a name has {allowed}"
    if name in SYSTEM_TOPICS or name.startswith(("rmq_sys_", "RMQ_SYS_")):
        yield pb.ILLEGAL_TOPIC, f"topic name '{name}' is reserved for the system; choose another"


def _of_id(message_id: str) -> _Faults:
    if message_id and (not message_id.strip() or len(message_id) > ID_LENGTH_MAX or "\x00" in message_id):
        rule = f"blank, longer than {ID_LENGTH_MAX} characters or has a zero byte"
        yield pb.ILLEGAL_MESSAGE_ID, f"message id {shown(message_id)} is {rule}; leave it out and one is drawn"


def _of_words(message: Message) -> _Faults:
    tag, group, trace = message.tag, message.message_group, message.trace_context or ""
    if tag is not None and (_is_no_word(tag) or "|" in tag):
        yield pb.ILLEGAL_MESSAGE_TAG, f"tag {shown(tag)} is blank, or has '|' or a control character; change it"
    if len(keys := tuple(message.keys)) > KEYS_MAX:
        yield pb.BAD_REQUEST, f"the message has {len(keys)} keys, at most {KEYS_MAX} are allowed"
    for key in filter(_is_no_word, keys):
        yield pb.ILLEGAL_MESSAGE_KEY, f"key {shown(key)} is blank or has a control character; leave it out"
    if group is not None and (_is_no_word(group) or _size(group) > GROUP_BYTES_MAX):
        rule = f"blank, longer than {GROUP_BYTES_MAX} bytes or has a control character"
        yield pb.ILLEGAL_MESSAGE_GROUP, f"message group {shown(group)} is {rule}; leave it out or change it"
    if (lite := message.lite_topic) is not None and not _LITE_TOPIC.fullmatch(lite):
        yield pb.ILLEGAL_LITE_TOPIC, f"lite topic {shown(lite)} is not allowed; a name has 1 to 64 of A-Z a-z 0-9 _ -"
    if len(trace) > TRACE_CONTEXT_LENGTH_MAX:
        rule = f"at most {TRACE_CONTEXT_LENGTH_MAX} are allowed"
        yield pb.MESSAGE_PROPERTIES_TOO_LARGE, f"trace_context has {len(trace)} characters, {rule}"
    if "\x00" in trace:
        yield pb.MESSAGE_CORRUPTED, "trace_context has a zero byte, which some databases cannot store; send it without"


def _of_properties(message: Message) -> _Faults:
    properties = message.all_properties
    for name, value in properties.items():
        if _is_no_word(name) or _CONTROL.search(value):
            fault = "has a blank name, or a control character in its name or value; change it"
            yield pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {shown(name)} {fault}"
        if name in RESERVED_PROPERTIES:
            yield pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property name '{name}' is reserved for the system; choose another"
    key = properties.get(IDEMPOTENCY_KEY)
    if key is not None and (not key.strip() or _size(key) > KEY_BYTES_MAX):
        rule = f"is blank or longer than {KEY_BYTES_MAX} bytes; shorten it or leave it out"
        yield pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"idempotency key {shown(key)} {rule}"
    size = sum(map(_size, (message.tag or "", *message.keys, *properties.keys(), *properties.values())))
    if len(properties) > PROPERTIES_MAX or size > PROPERTIES_BYTES_MAX:
        yield (
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(properties)} properties, and {size} bytes of properties, tag and keys together; at"
            f" most {PROPERTIES_MAX} and {PROPERTIES_BYTES_MAX} are allowed",
        )


def _is_no_word(text: str) -> bool:
    return not text.strip() or _CONTROL.search(text) is not None


def _size(given: str | bytes) -> int:
    return len(given.encode() if isinstance(given, str) else given)
