"""Messages on their way to the target: as their producers sent them, with their ids, and in a form that it takes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from popclient._session import convert
from popclient._session.convert import Outbound
from popclient.errors import BadRequest
from popclient.message import MessageView
from popclient.mirror.routes import TopicFacts
from popproto.v2 import definition_pb2 as pb

BYTES_MAX: Final = 8 * 1024 * 1024  # of the bodies of one request; one message may be larger

HAND_OVERS: Final = "popmq.hand-overs"
NUMBER_DIGITS_MAX: Final = 9

S = TypeVar("S")


def handed_over(view: MessageView) -> MessageView:
    """The message as it is handed over for a group, which leaves the source: with the number of its hand-overs.

    From the second one on it has an id of its own for each, `ID-2`, `ID-3`: a server that had the message before would
    take it for a repetition, and drop it.
    """
    wire = pb.Message()
    wire.CopyFrom(view._wire)
    given = view.properties.get(HAND_OVERS, "")
    number = 1 + (int(given) if given.isdecimal() and len(given) < NUMBER_DIGITS_MAX else 0)
    wire.user_properties[HAND_OVERS] = str(number)
    if number > 1:
        wire.system_properties.message_id = f"{view.message_id.removesuffix(f'-{number - 1}')}-{number}"
    return MessageView.unheld(wire)


def to_topic(view: MessageView, topic: TopicFacts, namespace: str) -> Outbound:
    """The message for its topic. Raises BadRequest for one that the topic cannot take."""
    wire = convert.as_sent(view, convert.resource(topic.name, namespace))
    system = wire.system_properties
    if not system.HasField("message_group"):
        _set_type(view, topic, system)
    elif topic.accepts and not topic.has_order:
        raise BadRequest(
            f"message {view.message_id} is of message group {system.message_group!r}, and topic {topic.name} takes"
            f" {' and '.join(topic.accepts)} messages; let it take FIFO messages too"
        )
    return outbound(wire)


def _set_type(view: MessageView, topic: TopicFacts, system: pb.SystemProperties) -> None:
    """The type by which the topic takes a message that is due and committed."""
    accepts = topic.accepts
    if not accepts or "NORMAL" in accepts or "MIXED" in accepts:
        system.message_type = pb.NORMAL
    elif "DELAY" in accepts:
        system.message_type = pb.DELAY
        system.delivery_timestamp.FromNanoseconds(time.time_ns())
    elif "TRANSACTION" in accepts:
        system.message_type = pb.TRANSACTION
    elif "PRIORITY" in accepts:
        system.message_type, system.priority = pb.PRIORITY, view.priority or 0
    else:
        raise BadRequest(
            f"message {view.message_id} has no message group, and topic {topic.name} takes FIFO messages alone; let it"
            " take NORMAL messages too"
        )


def later(view: MessageView, topic: TopicFacts, namespace: str) -> Outbound:
    """A delayed message that is not due yet."""
    wire = convert.as_sent(view, convert.resource(topic.name, namespace))
    wire.system_properties.message_type = pb.DELAY
    due = view.delivery_timestamp
    assert due is not None, "it is delayed"
    wire.system_properties.delivery_timestamp.FromDatetime(due)
    return outbound(wire)


def to_retry_topic(view: MessageView, retry_topic: str, max_attempts: int, namespace: str) -> Outbound:
    """The message for the retry topic of a RocketMQ group, which gets it as one of its topic.

    RocketMQ goes on with the number of attempts, and makes a dead letter of a message that has none left.
    """
    wire = convert.as_sent(view, convert.resource(retry_topic, namespace))
    system = wire.system_properties
    if system.HasField("message_group"):
        raise BadRequest(
            f"message {view.message_id} is of message group {system.message_group!r}, whose order a retry topic does"
            " not keep; hand over one --group, or let its consumers finish at the source"
        )
    system.delivery_attempt = min(max(0, view.delivery_attempt - 1), max(0, max_attempts - 2))
    return outbound(wire)


def to_dead_letter_topic(view: MessageView, dead_letter_topic: str, why: dict[str, str], namespace: str) -> Outbound:
    """A dead letter for RocketMQ, which reserves its own names for the facts: `why` gives them by other names."""
    wire = convert.as_sent(view, convert.resource(dead_letter_topic, namespace))
    wire.system_properties.ClearField("message_group")
    wire.system_properties.message_type = pb.NORMAL
    wire.user_properties.update(why)
    return outbound(wire)


def outbound(wire: pb.Message) -> Outbound:
    system = wire.system_properties
    return Outbound(
        wire.topic.name,
        system.message_type,
        system.message_group,
        system.message_id,
        len(wire.body),
        wire.SerializeToString(),
        has_key=False,  # the id alone decides: a server that ignores keys may still store the message
    )


def in_requests(batch: Sequence[S], sizes: Iterable[int], count_max: int) -> Iterator[list[S]]:
    """The batch in parts of at most `count_max`, and of BYTES_MAX unless one alone is larger."""
    part: list[S] = []
    size = 0
    for each, its_size in zip(batch, sizes, strict=True):
        if part and (len(part) >= count_max or size + its_size > BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(each)
        size += its_size
    if part:
        yield part
