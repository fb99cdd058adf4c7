"""The service of gRPC's own interoperability tests, `grpc.testing.TestService`, for any door.

Its messages have only the fields that the tests use; clients may send others. The door's interface has no headers and
trailers for handlers, because the broker sends none: the case `custom_metadata` cannot be served. Answers are never
compressed.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from popserver.transport.call import Call, Encodable, EndCode, EndStatus, Route, Service, encode

_Field = descriptor_pb2.FieldDescriptorProto
_INT, _BYTES, _TEXT = _Field.TYPE_INT32, _Field.TYPE_BYTES, _Field.TYPE_STRING
# Per message its fields: name, number, and a type or the name of another message; `*` before a name: repeated.
_MESSAGES: dict[str, tuple[tuple[str, int, int | str], ...]] = {
    "Empty": (),
    "Payload": (("type", 1, _INT), ("body", 2, _BYTES)),
    "EchoStatus": (("code", 1, _INT), ("message", 2, _TEXT)),
    "SimpleRequest": (("response_size", 2, _INT), ("payload", 3, "Payload"), ("response_status", 7, "EchoStatus")),
    "SimpleResponse": (("payload", 1, "Payload"),),
    "StreamingInputCallRequest": (("payload", 1, "Payload"),),
    "StreamingInputCallResponse": (("aggregated_payload_size", 1, _INT),),
    "ResponseParameters": (("size", 1, _INT), ("interval_us", 2, _INT)),
    "StreamingOutputCallRequest": (
        ("*response_parameters", 2, "ResponseParameters"),
        ("payload", 3, "Payload"),
        ("response_status", 7, "EchoStatus"),
    ),
    "StreamingOutputCallResponse": (("payload", 1, "Payload"),),
}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="test.proto", package="grpc.testing", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, kind in fields:
            label = _Field.LABEL_REPEATED if name.startswith("*") else _Field.LABEL_OPTIONAL
            field = described.field.add(name=name.lstrip("*"), number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".grpc.testing.{kind}"
            else:
                field.type = cast("Any", kind)
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_described())


def message(name: str) -> Any:
    """The class of a message of the service."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"grpc.testing.{name}"))


Empty, SimpleRequest, SimpleResponse = message("Empty"), message("SimpleRequest"), message("SimpleResponse")
InputRequest, InputResponse = message("StreamingInputCallRequest"), message("StreamingInputCallResponse")
OutputRequest, OutputResponse = message("StreamingOutputCallRequest"), message("StreamingOutputCallResponse")


async def next_request(call: Call) -> bytes | None:
    """The next request of a call, whatever its size; None after the last one."""
    if await call.next_size() is None:
        return None
    call.grant()
    return await call.next()


async def _empty(call: Call) -> Encodable:
    await next_request(call)
    return cast("Encodable", Empty())


async def _unary(call: Call) -> Encodable | None:
    request = SimpleRequest.FromString(await next_request(call) or b"")
    if _is_ended(call, request):
        return None
    answer = SimpleResponse()
    answer.payload.body = bytes(request.response_size)
    return cast("Encodable", answer)


async def _input(call: Call) -> Encodable:
    size = 0
    while (data := await next_request(call)) is not None:
        size += len(InputRequest.FromString(data).payload.body)
    return cast("Encodable", InputResponse(aggregated_payload_size=size))


async def _output(call: Call) -> None:
    """A stream of answers to one request, or to each of a stream."""
    while (data := await next_request(call)) is not None:
        request = OutputRequest.FromString(data)
        if _is_ended(call, request):
            return
        for wanted in request.response_parameters:
            await asyncio.sleep(wanted.interval_us / 1e6)
            answer = OutputResponse()
            answer.payload.body = bytes(wanted.size)
            await call.write(answer)


def _is_ended(call: Call, request: Any) -> bool:
    """End the call with the status that the request asks for, if any."""
    wanted = request.response_status
    if wanted.code:
        # The tests ask for codes that the broker does not use.
        call.end(EndStatus(cast("EndCode", wanted.code), wanted.message))
    return bool(wanted.code)


TEST_SERVICE = Service(
    "grpc.testing.TestService",
    {
        "EmptyCall": Route(_empty, encode, streams=False),
        "UnaryCall": Route(_unary, encode, streams=False),
        "StreamingInputCall": Route(_input, encode, streams=False),
        "StreamingOutputCall": Route(_output, encode, streams=True),
        "FullDuplexCall": Route(_output, encode, streams=True),
    },
)
