"""Requests: how large they may be, how they are decoded, and what makes room for them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, NamedTuple, Never, Protocol, Self, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from popserver.model.budget import Budget
from popserver.model.errors import BadRequest, PopError
from popserver.transport.call import Call
from popserver.transport.entry_limits import NO_LISTS, ListLimits, bytes_beside_bodies, has_more_fields
from popserver.transport.limits import MIB

# For a request without messages. A decoded list of empty entries needs fifty times its encoded size.
OTHER_REQUEST_BYTES_MAX = 4 * MIB
# A request with more fields is not decoded: its lists are too long in any case, and it would need fifty times its size.
FIELDS_MAX = 16_384
# The search for bodies stops after this many fields. In a legal request it has found all bodies by then.
FIELDS_TO_BODIES_MAX = 2 * FIELDS_MAX
SMALL_BYTES = 64 * 1024  # what a client may send before the server reads

Request = TypeVar("Request", covariant=True)
Sent = TypeVar("Sent")
Decoded = TypeVar("Decoded", bound=Message)

# Decodes a request, or returns the refusal of bytes that are not a request.
Read = Callable[[bytes], Request | BadRequest]


class Arrived(NamedTuple, Generic[Request]):
    """A decoded request. Its `size` in bytes counts in `budget` until the caller gives it back."""

    request: Request | BadRequest | None  # a `BadRequest` if the bytes are not a request
    size: int
    budget: Budget
    refusal: PopError | None = None  # `request`, if it is one; or there is no room, and only a small one is decoded
    is_end: bool = False  # the call ended without a request


NOTHING: Arrived[Never] = Arrived(None, 0, Budget("nothing", 0, "bytes", ""))


class Frames(Protocol[Request]):
    """The frames of one stream of requests. Use it in a `with` block, which raises the refusal that ended it."""

    refusal: PopError | None  # why the stream was ended

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Request | BadRequest: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None: ...


class Incoming(Protocol):
    """The requests that arrive at one server, and the budgets for them."""

    async def receive(self, call: Call, read: Read[Sent], *, is_anonymous: bool) -> Arrived[Sent]:
        """The next request of a call, decoded by `read`. The caller must give its size back to its budget.

        Raises `TooManyRequests` or `RequestTooSlow` if the request does not arrive in time.
        """

    def frames(self, call: Call, read: Read[Sent]) -> Frames[Sent]:
        """The frames of a stream of requests. A frame that arrives too slowly, or does not fit, ends the stream."""

    def signed(self, call: Call) -> None:
        """The caller signed: other connections are closed first when there are too many."""

    def hang_up(self, call: Call) -> None:
        """Close the connection of a call and drop what it carries."""


def reader(message_class: type[Decoded], bytes_max: int, lists: ListLimits = NO_LISTS) -> Read[Decoded]:
    """A function that decodes a request, or returns the refusal of bytes that it cannot decode or may not accept."""
    parse, descriptor = message_class.FromString, cast("Descriptor", message_class.DESCRIPTOR)
    type_name = descriptor.full_name

    def read(data: bytes) -> Decoded | BadRequest:
        size = len(data)
        if size > SMALL_BYTES:
            if size > bytes_max:
                return _no_request(f"{type_name}, which has at most {bytes_max} bytes", size)
            if has_more_fields(data, FIELDS_MAX):
                return _no_request(f"{type_name}, which has at most {FIELDS_MAX} fields", size)
        if size > OTHER_REQUEST_BYTES_MAX:
            beside = bytes_beside_bodies(data, descriptor, FIELDS_TO_BODIES_MAX)
            if beside > OTHER_REQUEST_BYTES_MAX:
                return _no_request(
                    f"{type_name}, which has at most {OTHER_REQUEST_BYTES_MAX} bytes beside bodies", size
                )
        try:
            request = parse(data)
        except DecodeError:
            return _no_request(type_name, size)
        refusal = lists.refusal(request, size) if size > lists.bytes_min else ""
        return BadRequest(refusal) if refusal else request

    return read


def _no_request(what: str, size: int) -> BadRequest:
    return BadRequest(f"the {size} bytes sent are no {what}")
