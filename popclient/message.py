"""Messages to send, receipts, and messages received."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from popclient._arguments import as_timedelta, require_tags, require_text, shown
from popclient.keep_alive import HoldRenewal, KeepAlive
from popproto.v2 import definition_pb2 as pb

# The property that has a message's idempotency key.
IDEMPOTENCY_KEY: Final = "popmq.idempotency-key"
PRIORITY_MAX: Final = 32_767


class MessageQueue(NamedTuple):
    """One queue of a topic: what a member of a group owns, pulls from, and commits the progress of.

    Queues sort by topic, then by id, the same on every member: sharing them relies on that.
    topic: its name, without the client's namespace. queue_id: from 0.
    """

    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.queue_id}"


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Selects messages of a topic: "*", tags such as "a || b", or a SQL92 condition on properties."""

    expression: str = "*"
    type: Literal["TAG", "SQL"] = "TAG"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise TypeError(f"expression is {self.expression!r}; a filter is a text, such as 'a || b'")
        require_text("expression", self.expression)
        if self.type not in ("TAG", "SQL"):
            raise ValueError(f"type is {self.type!r}; it must be 'TAG' or 'SQL'")

    @classmethod
    def of(cls, given: str | FilterExpression) -> FilterExpression:
        """From a filter, or from the text of a tag expression. Raises ValueError for a text that reads as SQL."""
        require_tags(given)
        return given if isinstance(given, FilterExpression) else cls(expression="*" if given in ("", None) else given)

    @classmethod
    def sql(cls, condition: str) -> FilterExpression:
        """A SQL92 condition, such as "distance > 1000 AND origin IN ('JFK', 'LGA')"."""
        return cls(expression=condition, type="SQL")


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A message to send.

    topic: its name. body: bytes; text is sent as UTF-8. properties: text to text.
    tag: one word by which consumers select. keys: words by which the message is found; PopMQ indexes the first 64.
    message_group: messages of one group are delivered in the order in which they were sent.
    delivery_timestamp: an aware datetime; not delivered before. priority: 0 or more, higher first, a hint.
    delay: seconds or a timedelta until the message is delivered, by the server's clock; at a RocketMQ proxy by this
        machine's.
    lite_topic: a name within a topic of the type LITE; its messages go to the consumers that subscribe to it, in the
        order in which they were sent.
        At most one of these five may be given.
    trace_context: W3C traceparent, sent with the message.
    message_id: made up when empty. With an id that no other message has, a repeated send stores the message once.
    idempotency_key: your own name for the message's content, such as "order-42-paid". Within the server's window (24 h)
        a topic stores one message of a key; sending it again gives the first one's result. Sent as the property
        `popmq.idempotency-key`. Sending raises UnsupportedByServer if the server does not support keys.
    """

    topic: str
    body: bytes | str
    tag: str | None = None
    keys: str | Iterable[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None
    delivery_timestamp: datetime | None = None
    priority: int | None = None
    trace_context: str | None = None
    message_id: str = ""
    idempotency_key: str | None = None
    delay: float | timedelta | None = None
    lite_topic: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            require_text("topic", self.topic)
        if isinstance(self.keys, bytes) or not isinstance(self.keys, Iterable):
            raise TypeError(f"keys is {shown(self.keys)}; it must be a str, or several")
        object.__setattr__(self, "keys", (self.keys,) if isinstance(self.keys, str) else tuple(self.keys))
        alone = (self.message_group, self.delivery_timestamp, self.priority, self.delay, self.lite_topic)
        if alone.count(None) < len(alone) - 1:
            names = ("message_group", "delivery_timestamp", "priority", "delay", "lite_topic")
            wanted = [name for name in names if getattr(self, name) is not None]
            raise ValueError(f"{' and '.join(wanted)} exclude each other; give one of them")
        if self.priority is not None:
            if isinstance(self.priority, bool) or not isinstance(self.priority, int):
                raise TypeError(f"priority is {self.priority!r}; it must be a whole number, from 0 to {PRIORITY_MAX}")
            if not 0 <= self.priority <= PRIORITY_MAX:
                raise ValueError(
                    f"priority {self.priority} is not within 0 and {PRIORITY_MAX}; the highest comes first"
                )
        if self.delivery_timestamp is not None:
            if not isinstance(self.delivery_timestamp, datetime):
                raise TypeError(f"delivery_timestamp is {self.delivery_timestamp!r}; it must be an aware datetime")
            if self.delivery_timestamp.tzinfo is None:
                raise ValueError(
                    f"delivery_timestamp {self.delivery_timestamp} has no time zone; use an aware datetime"
                )
        if self.delay is not None:
            as_timedelta("delay", self.delay)
        if self.properties:
            _require_texts(self.properties)

    def __repr__(self) -> str:
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return f"Message({', '.join(f'{name}={shown(value)}' for name, value in given if value)})"

    def require_sendable(self) -> None:
        """Raises for the first field that cannot be sent. Sending is faster than this, and asks only if it fails."""
        for name in ("tag", "message_group", "lite_topic", "trace_context", "idempotency_key"):
            if (value := getattr(self, name)) is not None:
                require_text(name, value)
        require_text("topic", self.topic)
        require_text("message_id", self.message_id)
        for index, key in enumerate(self.keys):
            require_text(f"keys[{index}]", key)
        for name, value in self.properties.items():
            require_text("the name of a property", name)
            require_text(f"property {name!r}", value)
        if not isinstance(self.body, bytes):
            if not isinstance(self.body, str):
                raise TypeError(f"body is {shown(self.body)}; it must be bytes or str")
            require_text("body", self.body)

    @property
    def all_properties(self) -> Mapping[str, str]:
        """The properties as they are sent, with the idempotency key."""
        if self.idempotency_key is None:
            return self.properties
        return {**self.properties, IDEMPOTENCY_KEY: self.idempotency_key}


_OPTIONAL: Final = tuple(each.name for each in fields(Message))[2:]


def as_message(taker: str, given: Mapping[str, Any]) -> Message:
    """The arguments `message`, `body` and fields of a function of this name, as a Message. None is not given."""
    message, body = given["message"], given["body"]
    named = {name: value for name in _OPTIONAL if (value := given.get(name)) is not None}
    if not named.get("keys", True):
        del named["keys"]
    if not isinstance(message, Message):
        return Message(message, body, **named)
    if body or named:
        raise TypeError(f"{taker} takes a Message alone, or a topic, a body and fields; not both")
    return message


def _require_texts(properties: Mapping[str, str]) -> None:
    if not isinstance(properties, Mapping):
        raise TypeError(f"properties is {shown(properties)}; give a mapping of names to values")
    for name, value in properties.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of property {shown(name)} is no str")
        if not isinstance(value, str):
            given, written = shown(value), shown(str(value))
            raise TypeError(f"property {name!r} is {given}; the value of a property is a str, such as {written}")


class DeadLetterOrigin(NamedTuple):
    """The topic and the id that a dead letter had before."""

    topic: str
    message_id: str


class MessageView:
    """A received message. Read-only, except that its hold (`receipt_handle`, `invisible_until`) may be renewed.

    Fields are read from the protobuf message at each access, so receiving many messages is cheap. A copy, also one
    that was pickled, equals the message and can be acked by its receipt handle; its hold is not renewed.
    """

    __slots__ = (
        "__weakref__",
        "_body",
        "_generation",
        "_invisible_until",
        "_keeper",
        "_receipt_handle",
        "_renewal",
        "_system",
        "_wire",
        "message_id",
        "topic",
    )

    def __init__(self, wire: pb.Message, invisible_until: datetime) -> None:
        system = wire.system_properties
        self._wire, self._system = wire, system
        self._body: bytes | None = None
        self._generation = 0  # of the topic, if a pull has brought it
        self._receipt_handle = system.receipt_handle
        self._invisible_until = invisible_until
        self._renewal: HoldRenewal | None = None
        self._keeper: KeepAlive | None = None
        self.topic: str = wire.topic.name
        self.message_id: str = system.message_id

    @classmethod
    def unheld(cls, wire: pb.Message) -> MessageView:
        """A message without a hold."""
        return cls(wire, datetime.now(UTC))

    @property
    def body(self) -> bytes:
        """The bytes that were sent; unpacked when the sender packed them."""
        if self._body is None:
            self._body = zlib.decompress(self._wire.body, 47) if self.is_packed else self._wire.body  # 47: gzip or zlib
        return self._body

    @property
    def is_packed(self) -> bool:
        """Did the sender pack the body?"""
        return self._system.body_encoding == pb.GZIP

    @property
    def stored_body(self) -> bytes:
        """The body as the server has it: packed, if its sender packed it."""
        return self._wire.body

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()

    @property
    def tag(self) -> str | None:
        """The word by which consumers select; None without one."""
        return self._system.tag if self._system.HasField("tag") else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The words by which an operator finds the message."""
        return tuple(self._system.keys)

    @property
    def properties(self) -> dict[str, str]:
        """The producer's own names and values."""
        return dict(self._wire.user_properties)

    @property
    def message_group(self) -> str | None:
        """Its messages come in order; None without one."""
        return self._system.message_group if self._system.HasField("message_group") else None

    @property
    def lite_topic(self) -> str | None:
        """Its messages come in order too; None without one."""
        return self._system.lite_topic if self._system.HasField("lite_topic") else None

    @property
    def priority(self) -> int | None:
        """0 or more, higher first; None without one."""
        return self._system.priority if self._system.HasField("priority") else None

    @property
    def trace_context(self) -> str | None:
        """W3C traceparent of the sender; None without one."""
        return self._system.trace_context if self._system.HasField("trace_context") else None

    @property
    def message_type(self) -> str:
        """NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY."""
        return pb.MessageType.Name(self._system.message_type)

    @property
    def born_timestamp(self) -> datetime:
        """When the message was made, by the sender's clock."""
        return self._system.born_timestamp.ToDatetime(UTC)

    @property
    def born_host(self) -> str:
        """The machine that sent it, as its client named it."""
        return self._system.born_host

    @property
    def store_timestamp(self) -> datetime | None:
        """When the server stored it."""
        return self._system.store_timestamp.ToDatetime(UTC) if self._system.HasField("store_timestamp") else None

    @property
    def delivery_timestamp(self) -> datetime | None:
        """When it was due, if it was delayed."""
        return self._system.delivery_timestamp.ToDatetime(UTC) if self._system.HasField("delivery_timestamp") else None

    @property
    def queue_id(self) -> int:
        """The number of its queue in the topic."""
        return self._system.queue_id

    @property
    def queue_offset(self) -> int:
        """Its place in that queue, from 0."""
        return self._system.queue_offset

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery."""
        return self._system.delivery_attempt

    @property
    def receipt_handle(self) -> str:
        """The newest handle of the current hold."""
        return self._receipt_handle

    @property
    def invisible_until(self) -> datetime:
        """When the hold ends, by this client's clock.

        Counted from the arrival of the receive's first message; after a change, from the moment of its request.
        """
        return self._invisible_until

    @property
    def dead_letter_queue(self) -> DeadLetterOrigin | None:
        """Where the message comes from, if it is a dead letter."""
        origin = self._system.dead_letter_queue
        return DeadLetterOrigin(origin.topic, origin.message_id) if self._system.HasField("dead_letter_queue") else None

    @property
    def corrupted(self) -> bool:
        """Does the body differ from the digest that the server sent with it?"""
        digest = self._system.body_digest
        compute = _DIGESTS.get(digest.type)
        return compute is not None and compute(self._wire.body) != digest.checksum.upper().lstrip("0")

    def keep_alive(self) -> KeepAlive:
        """Renews the hold while a block runs: `with message.keep_alive():`, or `async with`. See `KeepAlive`.

        For messages of a SimpleConsumer; a PushConsumer renews the holds of its messages itself.
        """
        if self._renewal is None:
            raise RuntimeError(
                f"{self!r} is a copy, or was not received by a SimpleConsumer; there is no hold to keep alive"
            )
        change, length, bridge = self._renewal
        return KeepAlive(self, partial(change, self), length, bridge)

    def __eq__(self, other: object) -> bool:
        """Is it the same delivery of the same message?"""
        if not isinstance(other, MessageView):
            return NotImplemented
        return self is other or (self._receipt_handle == other._receipt_handle and self._wire == other._wire)

    def __hash__(self) -> int:
        return hash(self.message_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied, (self._wire.SerializeToString(), self._receipt_handle, self._invisible_until, self._generation)

    def _try_again_here(self) -> None:
        """This client makes the next attempt, without the server."""
        self._system.delivery_attempt += 1

    def _renew_hold(self, receipt_handle: str, invisible_until: datetime) -> None:
        self._receipt_handle = receipt_handle
        self._invisible_until = invisible_until

    def __repr__(self) -> str:
        return (
            f"<MessageView {self.message_id} topic={self.topic!r} queue={self.queue_id} offset={self.queue_offset}"
            f" attempt={self.delivery_attempt} tag={self.tag!r} {len(self._wire.body)} bytes>"
        )


def _copied(wire: bytes, receipt_handle: str, invisible_until: datetime, generation: int) -> MessageView:
    view = MessageView(pb.Message.FromString(wire), invisible_until)
    view._receipt_handle, view._generation = receipt_handle, generation
    return view


# Upper-case hex without leading zeros: clients disagree on padding.
_DIGESTS = {
    pb.MD5: lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest().upper().lstrip("0"),
    pb.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest().upper().lstrip("0"),
    pb.CRC32: lambda body: f"{zlib.crc32(body):X}".lstrip("0"),
}
