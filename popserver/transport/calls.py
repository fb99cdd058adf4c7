"""From a call to a method, and back.

Every failure of a call becomes a status inside the answer. The gRPC status stays OK, because clients take any other
gRPC status for a broken connection and try again. A refusal has a code from `transport.status`. An unexpected error
has one plain sentence; its traceback is in the log. Bytes that cannot be decoded are a BAD_REQUEST. An answer without a
status (`ChangeLogLevelResponse`) cannot say that: a failure of its call is the gRPC status.

The headers identify the caller and are checked first. The request of a refused caller is not read.
"""

from __future__ import annotations

import traceback
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Never, Protocol, TypeVar, cast

import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from popproto.v1 import legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.engine.meters import now_s
from popserver.engine.undelivered import Undelivered
from popserver.model.acl import AnyOfRights
from popserver.model.errors import BadRequest, IllegalPollingTime, Internal, PopError
from popserver.model.names import Resource
from popserver.transport import entry_limits, status
from popserver.transport.call import Call, Encodable, Route, Service, Write
from popserver.transport.convert import duration_ms
from popserver.transport.incoming import NOTHING, OTHER_REQUEST_BYTES_MAX, Arrived, Frames, Incoming, Read, reader
from popserver.transport.limits import CallLimits

log = structlog.get_logger("popserver.rpc")

# Older clients do not know ILLEGAL_POLLING_TIME. Versions are compared as text, as RocketMQ does (protocol 1.7).
_KNOWS_ILLEGAL_POLLING_TIME = "5.0.3"
# Half of the timeout of an ordinary call: subtracted if a receive gives no polling time (protocol 1.7).
_REQUEST_TIMEOUT_HALF_MS = 1_500

Request = TypeVar("Request", contravariant=True)
RequiredRights = Sequence[AnyOfRights]


class NotTaken(Exception):
    """A client does not read its answer. It would not read a refusal either."""


class Caller:
    """Who calls, from the headers of the call (protocol 2.1).

    Unknown languages, unusual dates and missing headers are accepted.
    """

    __slots__ = (
        "_headers",
        "call",
        "check_origins",
        "client_id",
        "is_anonymous",
        "namespace",
        "require",
        "stands_on",
        "user",
    )

    def __init__(self, call: Call) -> None:
        self.call = call
        self._headers = headers = call.headers
        client_id, namespace = headers.get("x-mq-client-id"), headers.get("x-mq-namespace")
        # If callers must sign, the gate puts the user's name before it, so no user can act as another user's client.
        self.client_id = client_id.strip() if isinstance(client_id, str) else ""
        self.namespace = namespace if isinstance(namespace, str) else ""
        # The access key of the user who signed the call; empty if callers need not sign.
        self.user = ""
        # Whether signatures are required and this call has none. The gate sets it.
        self.is_anonymous = False
        # Raises unless the user is still enabled and has these rights. The gate sets it.
        self.require: Callable[[RequiredRights], None] = _let_through
        # Raises if one of these messages (topic, keys) comes from a topic that the user may not read. The gate sets it.
        self.check_origins: Callable[[str, Sequence[int]], Awaitable[None]] = _let_all_through
        # The rights that the caller needs while its stream is open.
        self.stands_on: RequiredRights = ()

    def header(self, name: str) -> str:
        value = self._headers.get(name, "")
        return value if isinstance(value, str) else ""

    def binary(self, name: str) -> bytes | None:
        """A header with bytes, whose name ends in `-bin`; None if there is none."""
        value = self._headers.get(name)
        return value if isinstance(value, bytes) else None

    def resource(self, named: pb.Resource) -> Resource:
        """A topic or group. Some clients give the namespace only in the call's header."""
        return Resource(named.resource_namespace or self.namespace, named.name)

    @property
    def peer(self) -> str:
        """The client's `HOST:PORT`; empty if unknown."""
        return self.call.peer

    def carries(self, undelivered: Undelivered, size: int) -> None:
        """Count the bodies of the call's answer (`size` bytes): they stay in memory until the call has ended."""
        if size:
            undelivered.carry(size)
            self.call.on_end(lambda: undelivered.carried(size))


@dataclass(frozen=True, slots=True)
class Method(Generic[Request]):
    """An RPC with one request and one response."""

    answer: Callable[[Request, Caller], Awaitable[Message]]
    rights: Callable[[Request, Caller], RequiredRights]  # the rights that this request needs
    # Makes the response to a refused request, if the response has more than a status.
    refuse: Callable[[Request | BadRequest | None, pb.Status], Message] | None = None
    anonymous: bool = False  # a call without a client id is allowed, and need not be signed
    bytes_max: int = OTHER_REQUEST_BYTES_MAX
    echoes: bool = False  # a refusal repeats a part of the request, so the request of a refused caller is read too


@dataclass(frozen=True, slots=True)
class StreamMethod(Generic[Request]):
    """An RPC with one request and a stream as the response: `answer` writes its frames."""

    answer: Callable[[Request, Caller, Write], Awaitable[None]]
    rights: Callable[[Request, Caller], RequiredRights]
    refuse: Callable[[pb.Status], Sequence[Message]] | None = None  # the frames of a refusal; default: one, the status
    # Waits before a refused call ends, for clients that otherwise repeat the call at once and without end.
    delay_refusal: Callable[[Request | BadRequest | None, Caller], Awaitable[None]] | None = None
    # Encodes a frame, if some frames are not the method's protobuf message.
    encode: Callable[[Encodable], bytes] | None = None


@dataclass(frozen=True, slots=True)
class ConversationMethod(Generic[Request]):
    """An RPC with a stream of requests and a stream of responses. `answer` checks the rights of each request."""

    answer: Callable[[Frames[Request], Caller, Write], Awaitable[None]]
    delay_refusal: Callable[[], Awaitable[None]]


AnyMethod = Method[Never] | StreamMethod[Never] | ConversationMethod[Never]


# Gets the function that names the rights, the request and the caller. Raises the `PopError` that the caller gets.
Allow = Callable[[Callable[[Message, Caller], RequiredRights], Message, Caller], None]


class Gate(Protocol):
    """Checks every call of a service. Its methods raise the `PopError` that the caller gets."""

    def enter(self, method: str, caller: Caller, *, anonymous: bool) -> None:
        """Identify the caller, before the request is read."""

    @property
    def allow(self) -> Allow | None:
        """Checks that the caller may do what the request asks. Not called for streams of requests.

        None if every caller that has entered may do everything.
        """


def serve(service: ServiceDescriptor, methods: Mapping[str, AnyMethod], gate: Gate, incoming: Incoming) -> Service:
    """Make a service for a door. Raises `ValueError` unless `methods` has exactly the methods of the service."""
    differ = methods.keys() ^ service.methods_by_name.keys()
    if differ:
        raise ValueError(f"{service.full_name} and its table of methods differ in: {', '.join(sorted(differ))}")
    routes = {each.name: _route(each, methods[each.name], gate, incoming) for each in service.methods}
    return Service(service.full_name, routes)


def poll_ms_of(
    request: wire.ReceiveMessageRequest | wire.PullMessageRequest | legacy_pb2.PullBatchRequest,
    caller: Caller,
    limits: CallLimits,
    open_polls: int = 0,
) -> int:
    """How long a receive or a pull may wait, in ms (requirement A12, protocol 1.7).

    The request's polling time, within the limits; without one, what is left until its deadline. The poll ends before
    the deadline, by a margin that grows with the number of open polls, up to half of the remaining time. Raises
    `IllegalPollingTime` (`BadRequest` for old clients) if the deadline leaves less than the shortest poll.
    """
    remaining_ms = caller.call.remaining_ms()
    if request.HasField("long_polling_timeout"):
        wanted_ms = duration_ms(request.long_polling_timeout)
    else:
        wanted_ms = limits.poll_ms_max if remaining_ms is None else remaining_ms - _REQUEST_TIMEOUT_HALF_MS
    poll_ms = min(max(wanted_ms, limits.poll_ms_min), limits.poll_ms_max)
    if remaining_ms is None:
        return poll_ms
    if poll_ms > remaining_ms < limits.poll_ms_min:
        refusal = IllegalPollingTime
        if caller.header("x-mq-client-version") < _KNOWS_ILLEGAL_POLLING_TIME:
            refusal = BadRequest  # type: ignore[assignment]
        raise refusal(
            f"the call's deadline leaves {remaining_ms} ms, but the shortest poll takes {limits.poll_ms_min} ms;"
            " use a longer deadline"
        )
    shared_ms = min(open_polls * limits.poll_margin_us_each // 1_000, remaining_ms // 2)
    return max(0, min(poll_ms, remaining_ms - limits.poll_margin_ms - shared_ms))


def _let_through(_needs: object) -> None:
    """If callers need not sign, each caller may do everything."""


async def _let_all_through(_topic_name: str, _keys: Sequence[int]) -> None:
    """The same for found messages."""


def _route(descriptor: MethodDescriptor, method: AnyMethod, gate: Gate, incoming: Incoming) -> Route:
    request_class = GetMessageClass(descriptor.input_type)
    lists = entry_limits.check(descriptor.name, descriptor.input_type)
    bytes_max = method.bytes_max if isinstance(method, Method) else OTHER_REQUEST_BYTES_MAX
    read = reader(request_class, bytes_max, lists)
    way = _Way(descriptor.name, GetMessageClass(descriptor.output_type), gate, incoming, read, bytes_max)
    # The casts drop the request's type: the class comes from the descriptor, which mypy cannot see.
    if isinstance(method, Method):
        return Route(_Unary(way, cast("Method[Message]", method)).handle, way.encode, streams=False)
    if isinstance(method, StreamMethod):
        return Route(
            _Stream(way, cast("StreamMethod[Message]", method)).handle, method.encode or way.encode, streams=True
        )
    conversation = _Conversation(way, cast("ConversationMethod[Message]", method))
    return Route(conversation.handle, way.encode, streams=True)


class _Way:
    """What the handlers of all kinds of methods share."""

    def __init__(
        self, name: str, response: type[Message], gate: Gate, incoming: Incoming, read: Read[Message], bytes_max: int
    ) -> None:
        self.name = name
        self.gate = gate
        self.allow = gate.allow
        self.incoming = incoming
        self.read = read
        self.bytes_max = bytes_max
        self.calls = incoming.meters.calls_of(name)
        self.encode = cast("Callable[[Encodable], bytes]", response.SerializeToString)
        self.has_status = "status" in response.DESCRIPTOR.fields_by_name
        self._respond = cast("Callable[..., Message]", response)

    def refusal(self, refused: pb.Status) -> Message:
        return self._respond(status=refused)

    def failure(self, caller: Caller) -> Internal:
        """Log the exception that is being handled; return the error for the caller."""
        request_id = caller.header("x-mq-request-id")
        # The traceback as text: given the exception itself, a log renderer may print local variables, with bodies.
        where = {"rpc": self.name, "client_id": caller.client_id, "request_id": request_id, "peer": caller.peer}
        log.error("call failed", **where, exception=traceback.format_exc())
        return Internal(
            f"the server failed on {self.name}; whether it took effect is unknown, repeat it"
            f" (the server's log has the reason under request id '{request_id}')"
        )

    def outcome(self, error: Exception, call: Call, caller: Caller) -> PopError | None:
        """The refusal that a stream sends after this exception; None if the client will not read it."""
        if isinstance(error, PopError):
            return error
        if isinstance(error, NotTaken):
            call.hang_up("the client does not read its answers")
            return None
        return None if isinstance(error, call.Disconnected) or call.is_cancelled else self.failure(caller)


class _Unary:
    """The handler of a `Method`."""

    def __init__(self, way: _Way, method: Method[Message]) -> None:
        self._way = way
        self._method = method

    async def handle(self, call: Call) -> Message | None:
        way, method = self._way, self._method
        began_s, code = now_s(), 0
        caller = Caller(call)
        arrived: Arrived[Message] = NOTHING
        try:
            try:
                way.gate.enter(way.name, caller, anonymous=method.anonymous)
            except PopError:
                if method.echoes:
                    with suppress(PopError):
                        arrived = await way.incoming.receive(call, way.read, way.bytes_max, is_anonymous=True)
                raise
            if caller.user:
                call.signed()
            arrived = await way.incoming.receive(call, way.read, way.bytes_max, is_anonymous=caller.is_anonymous)
            if arrived.refusal is not None:
                raise arrived.refusal
            request = arrived.request
            assert isinstance(request, Message)
            if way.allow is not None:
                way.allow(method.rights, request, caller)
            answer = await method.answer(request, caller)
            code = answer.status.code if way.has_status else pb.OK  # type: ignore[attr-defined]
            return answer
        except PopError as refusal:
            code = status.CODES[type(refusal)]
            return self._refusal(call, arrived.request, refusal)
        except Exception:  # noqa: BLE001
            code = pb.INTERNAL_SERVER_ERROR
            return self._refusal(call, arrived.request, way.failure(caller))
        finally:
            arrived.budget.give_back(arrived.size)
            took_ms, took = (now_s() - began_s) * 1_000, way.calls[code]
            took.counts[bisect_left(took.limits, took_ms)] += 1
            took.total += took_ms

    def _refusal(self, call: Call, request: Message | BadRequest | None, refusal: PopError) -> Message | None:
        if not self._way.has_status:
            call.end(status.end_of_stream(refusal))
            return None
        refused = status.of(refusal)
        return self._way.refusal(refused) if self._method.refuse is None else self._method.refuse(request, refused)


class _Stream:
    """The handler of a `StreamMethod`."""

    def __init__(self, way: _Way, method: StreamMethod[Message]) -> None:
        self._way = way
        self._method = method

    async def handle(self, call: Call) -> None:
        way, method = self._way, self._method
        began_s, code = now_s(), 0
        caller = Caller(call)
        arrived: Arrived[Message] = NOTHING
        refusal: PopError | None = None
        try:
            way.gate.enter(way.name, caller, anonymous=False)
            if caller.user:
                call.signed()
            arrived = await way.incoming.receive(call, way.read, way.bytes_max, is_anonymous=caller.is_anonymous)
            if arrived.refusal is not None:
                raise arrived.refusal
            request = arrived.request
            assert isinstance(request, Message)
            if way.allow is not None:
                way.allow(method.rights, request, caller)
            await method.answer(request, caller, call.write)
            code = pb.OK
        except Exception as error:  # noqa: BLE001
            refusal = way.outcome(error, call, caller)
            code = 0 if refusal is None else status.CODES[type(refusal)]
        finally:
            arrived.budget.give_back(arrived.size)
            took_ms, took = (now_s() - began_s) * 1_000, way.calls[code]
            took.counts[bisect_left(took.limits, took_ms)] += 1
            took.total += took_ms
        if refusal is None:
            return
        if method.delay_refusal is not None:
            await method.delay_refusal(arrived.request, caller)
        refused = status.of(refusal)
        for frame in [way.refusal(refused)] if method.refuse is None else method.refuse(refused):
            await call.write(frame)


class _Conversation:
    """The handler of a `ConversationMethod`."""

    def __init__(self, way: _Way, method: ConversationMethod[Message]) -> None:
        self._way = way
        self._method = method

    async def handle(self, call: Call) -> None:
        """Answer a stream. A refusal is a frame and the gRPC status, because official clients see only the status."""
        # Sent at once, because one client waits for the headers before it sends anything (protocol 3.1).
        await call.send_headers()
        way, caller = self._way, Caller(call)
        frames: Frames[Message] | None = None
        refusal: PopError | None = None
        try:
            way.gate.enter(way.name, caller, anonymous=False)
            if caller.user:
                call.signed()
            with way.incoming.frames(call, way.read) as frames:
                caller.require(())
                await self._method.answer(frames, caller, call.write)
        except Exception as error:  # noqa: BLE001
            refusal = way.outcome(error, call, caller)
        if refusal is None:
            return
        await call.write(way.refusal(status.of(refusal)))
        if frames is None or frames.refusal is None:  # otherwise a frame is still arriving: end the stream at once
            await self._method.delay_refusal()
        call.end(status.end_of_stream(refusal))
