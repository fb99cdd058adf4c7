"""From a gRPC call to a room's verb, and back.

Everything a call can suffer ends in a status inside the answer: a refusal in the code of `rpc.status`, an unforeseen
error in one plain sentence (and its traceback in the log), bytes that are no request in BAD_REQUEST. A gRPC error
status would be taken for a broken connection and retried.

Who calls is judged by the headers: the request of a caller who may not come in is not read at all.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from popproto.v2 import definition_pb2 as pb
from popserver.broker.undelivered import Undelivered
from popserver.domain.errors import BadRequest, Internal, PopError
from popserver.front.inner import peer_address
from popserver.rpc import caps, status
from popserver.rpc.half_sent import Frames
from popserver.rpc.incoming import NOTHING, SMALL_BYTES, Arrived, Incoming
from popserver.rpc.limits import MIB
from popserver.rpc.wire_fields import bytes_beside_bodies, has_more_fields

log = structlog.get_logger("popserver.rpc")

# Of a request that carries no messages. Decoded, a list of empty entries takes fifty times as much.
OTHER_REQUEST_BYTES_MAX = 4 * MIB
# A request of so many fields is not decoded: it holds no legal list, and would take fifty times its size.
FIELDS_MAX = 16_384
# So many fields are looked at for bodies: in a legal request all bodies are among them.
FIELDS_TO_BODIES_MAX = 2 * FIELDS_MAX

# Writes one frame of a streamed answer.
Write = Callable[[Any], Awaitable[None]]


class Gate(Protocol):
    """Stands before every verb of a service; whoever may not pass gets the `PopError` it raises."""

    def enter(self, method: str, caller: Caller, *, anonymous: bool) -> None:
        """Before the request is read: who calls?"""

    def allow(self, method: str, request: Any, caller: Caller) -> None:
        """May the caller do what the request asks? A stream of requests is asked about frame by frame, by its verb."""


class Verb(NamedTuple):
    """How one RPC is answered.

    `answer` takes (request, caller) and returns the response; a streaming one takes (request, caller, write) and
    writes its frames. `refuse` builds the frames of a refusal; without it they are one response with the status.
    """

    answer: Callable[..., Awaitable[Any]]
    refuse: Callable[[Any, pb.Status], list[Any]] | None = None
    anonymous: bool = False  # may come without a client id, and then unsigned
    # Waits before a refused (request, caller) ends, where a client would ask again at once, without end.
    hold_up: Callable[[Any, Caller], Awaitable[None]] | None = None
    # How a frame becomes bytes, where it is not always the method's own message.
    encode: Callable[[Any], bytes] | None = None
    bytes_max: int = OTHER_REQUEST_BYTES_MAX
    echoes: bool = False  # a refusal repeats something of the request, so a refused caller's is read all the same


class Unreadable(NamedTuple):
    """Stands for a request whose bytes are no request."""

    type_name: str
    size: int


class NotTaken(Exception):
    """A client does not take its answer; a refusal would only wait behind it."""


class TooMany(NamedTuple):
    """Stands for a request with a list that is too long."""

    sentence: str


class Caller:
    """Who calls, by the headers of the call (protocol 2.1); unknown languages, odd dates, missing headers are fine."""

    __slots__ = (
        "_context",
        "_headers",
        "client_id",
        "is_stranger",
        "require",
        "require_origins",
        "stands_on",
        "user",
        "withholds",
    )

    def __init__(self, context: Any) -> None:
        self._context = context
        self._headers: dict[str, Any] = dict(context.invocation_metadata() or ())
        # With users, the id within the user's own: nobody can be, or end, a client of somebody else.
        self.client_id: str = self.header("x-mq-client-id").strip()
        # The access key of whoever signed the call; empty where nobody need sign.
        self.user = ""
        # Whether it did not sign where others must; the gate says so.
        self.is_stranger = False
        # Raises unless the caller is still let in and has these rights; the gate puts it there.
        self.require: Callable[[Sequence[Any]], None] = _let_through
        # Whether some messages are kept from the caller because of where they come from; raises for such topics.
        self.withholds: Callable[[], bool] = _nothing_withheld
        self.require_origins: Callable[[Any], None] = _let_through
        # What it needs for as long as its stream is open.
        self.stands_on: Sequence[Any] = ()

    def header(self, name: str) -> str:
        value = self._headers.get(name, "")
        return value if isinstance(value, str) else ""

    def binary(self, name: str) -> bytes | None:
        """A header of bytes, whose name ends in `-bin`; None where there is none."""
        value = self._headers.get(name)
        return value if isinstance(value, bytes) else None

    @property
    def namespace(self) -> str:
        return self.header("x-mq-namespace")

    @property
    def peer(self) -> str:
        """Where the call comes from: `HOST:PORT`, or nothing where that is not known."""
        return peer_address(self._context.peer())

    def carries(self, undelivered: Undelivered, size: int) -> None:
        """The call's answer has so many bytes of bodies, which are in memory until the call has ended."""
        if size:
            undelivered.carry(size)
            self._context.add_done_callback(lambda _: undelivered.carried(size))

    def remaining_ms(self) -> int | None:
        """Until the call's deadline; None where it has none."""
        remaining_s = self._context.time_remaining()
        return None if remaining_s is None else int(remaining_s * 1_000)


def handlers(
    service: ServiceDescriptor, verbs: Mapping[str, Verb], message_classes: Any, gate: Gate, incoming: Incoming
) -> Any:
    """Every method of the service with its verb; KeyError where one has none."""
    by_name = {
        method.name: _handler(method, verbs[method.name], message_classes, gate, incoming) for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, by_name)


def readable(request: Any) -> Any:
    """The request itself; raise `BadRequest` for bytes that are none."""
    if isinstance(request, Unreadable):
        raise BadRequest(f"the {request.size} bytes sent are no {request.type_name}")
    if isinstance(request, TooMany):
        raise BadRequest(request.sentence)
    return request


def _let_through(_needs: Any) -> None:
    """Where nobody signs, everybody may everything."""


def _nothing_withheld() -> bool:
    return False


def _handler(
    method: MethodDescriptor, verb: Verb, message_classes: Any, gate: Gate, incoming: Incoming
) -> grpc.RpcMethodHandler[Any, Any]:
    request_class: type[Message] = getattr(message_classes, method.input_type.name)
    response_class: type[Message] = getattr(message_classes, method.output_type.name)
    read = reader(request_class, verb.bytes_max, caps.check(method.name, request_class.DESCRIPTOR))
    call = _Call(method.name, verb, response_class, gate, incoming, read)
    encode: Any = verb.encode or response_class.SerializeToString
    # Every call is a stream of requests to gRPC: of any other it reads the request before it says who calls.
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(call.conversation, response_serializer=encode)
    if method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(call.stream, response_serializer=encode)
    return grpc.stream_unary_rpc_method_handler(call.unary, response_serializer=encode)


def reader(
    message_class: type[Message], bytes_max: int, too_many: Callable[[Any, int], str] | None = None
) -> Callable[[bytes], Any]:
    """From bytes to a request, or to what stands for one. `too_many` says which of its lists is too long, if one is."""
    parse, type_name = message_class.FromString, message_class.DESCRIPTOR.full_name

    def read(data: bytes) -> Any:
        size = len(data)
        if size > SMALL_BYTES:
            if size > bytes_max:
                return Unreadable(f"{type_name}, which has at most {bytes_max} bytes", size)
            if has_more_fields(data, FIELDS_MAX):
                return Unreadable(f"{type_name}, which has at most {FIELDS_MAX} fields", size)
        if size > OTHER_REQUEST_BYTES_MAX:
            beside = bytes_beside_bodies(data, message_class.DESCRIPTOR, FIELDS_TO_BODIES_MAX)
            if beside > OTHER_REQUEST_BYTES_MAX:
                return Unreadable(f"{type_name}, which has at most {OTHER_REQUEST_BYTES_MAX} bytes beside bodies", size)
        try:
            request = parse(data)
        except DecodeError:
            return Unreadable(type_name, size)
        refusal = too_many(request, size) if too_many is not None else ""
        return TooMany(refusal) if refusal else request

    return read


class _Call:
    """One method's way through the door."""

    def __init__(
        self,
        name: str,
        verb: Verb,
        response_class: type[Message],
        gate: Gate,
        incoming: Incoming,
        read: Callable[[bytes], Any],
    ) -> None:
        self._name = name
        self._verb = verb
        self._response_class: Callable[..., Message] = response_class
        self._gate = gate
        self._incoming = incoming
        self._read = read

    async def unary(self, _requests: Any, context: Any) -> Any:
        caller, arrived = Caller(context), NOTHING
        try:
            try:
                self._enter(caller, context)
            except PopError:
                if self._verb.echoes:
                    with suppress(PopError):
                        arrived = await self._incoming.receive(context, self._read, is_stranger=True)
                raise
            arrived = await self._receive(context, caller)
            if arrived.refusal is not None:
                raise arrived.refusal
            self._gate.allow(self._name, readable(arrived.request), caller)
            return await self._verb.answer(arrived.request, caller)
        except PopError as refusal:
            return self._refusal(arrived.request, refusal)[0]
        except Exception:  # noqa: BLE001
            return self._refusal(arrived.request, self._failure(caller))[0]
        finally:
            arrived.budget.give_back(arrived.size)

    async def stream(self, _requests: Any, context: Any) -> None:
        caller, arrived = Caller(context), NOTHING
        try:
            self._enter(caller, context)
            arrived = await self._receive(context, caller)
            refusal = arrived.refusal or await self._answer_stream(arrived.request, caller, context)
        except PopError as refused:
            refusal = refused
        finally:
            arrived.budget.give_back(arrived.size)
        if refusal is not None:
            await self._hold_up(arrived.request, caller)
            await self._write(self._refusal(arrived.request, refusal), context)

    async def conversation(self, _requests: Any, context: Any) -> None:
        """A refusal is a frame, and then the stream's own end: official clients see nothing but the second."""
        # At once: one client says nothing before it has seen the headers (protocol 3.1).
        await context.send_initial_metadata(())
        caller = Caller(context)
        frames: Frames | None = None
        try:
            self._enter(caller, context)
            with self._incoming.frames(context, self._read) as frames:
                refusal = await self._answer_stream(frames, caller, context)
        except PopError as refused:
            refusal = refused
        if refusal is not None:
            await self._write(self._refusal(None, refusal), context)
            if frames is None or frames.refusal is None:  # else the frame goes on to arrive
                await self._hold_up(None, caller)
            code, sentence = status.end_of_stream(refusal)
            context.set_code(code)
            context.set_details(sentence)

    def _enter(self, caller: Caller, context: Any) -> None:
        self._gate.enter(self._name, caller, anonymous=self._verb.anonymous)
        if caller.user:
            self._incoming.signed(context)

    def _receive(self, context: Any, caller: Caller) -> Awaitable[Arrived]:
        return self._incoming.receive(context, self._read, is_stranger=caller.is_stranger)

    async def _answer_stream(self, request: Any, caller: Caller, context: Any) -> PopError | None:
        """The refusal with which the stream has to end; None where nothing is left to be said."""
        try:
            self._gate.allow(self._name, readable(request), caller)
            await self._verb.answer(request, caller, context.write)
        except PopError as refusal:
            return refusal
        except NotTaken:
            self._incoming.hang_up(context)
            return None
        except grpc.aio.InternalError:
            # A frame could not be written: the connection is gone, and nobody is there to be told.
            return None
        except Exception:  # noqa: BLE001
            return None if context.cancelled() else self._failure(caller)
        return None

    async def _hold_up(self, request: Any, caller: Caller) -> None:
        if self._verb.hold_up is not None:
            await self._verb.hold_up(request, caller)

    @staticmethod
    async def _write(frames: list[Any], context: Any) -> None:
        for frame in frames:
            await context.write(frame)

    def _refusal(self, request: Any, refusal: PopError) -> list[Any]:
        refused = status.of(refusal)
        if self._verb.refuse is not None:
            return self._verb.refuse(request, refused)
        return [self._response_class(status=refused)]

    def _failure(self, caller: Caller) -> Internal:
        request_id = caller.header("x-mq-request-id")
        # The traceback as text: a renderer given the exception itself may print local variables, and so bodies.
        where = {"rpc": self._name, "client_id": caller.client_id, "request_id": request_id, "peer": caller.peer}
        log.error("call failed", **where, exception=traceback.format_exc())
        return Internal(
            f"the server failed on {self._name}; whether it took effect is unknown, repeat it"
            f" (the server's log has the reason under request id '{request_id}')"
        )
