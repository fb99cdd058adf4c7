"""Health and reflection, which answer everybody: so they get little, and no address gets more than half of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from popproto.pool import POOL
from popserver.domain.budget import Budgets, Shares
from popserver.domain.errors import BadRequest, PopError
from popserver.front.inner import peer_address
from popserver.rpc import status
from popserver.rpc.calls import Unreadable, reader
from popserver.rpc.incoming import SMALL_BYTES, Incoming
from popserver.rpc.limits import Limits

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name


class Anybody:
    """Both services. What they refuse is a gRPC status: their answers have no other."""

    def __init__(self, incoming: Incoming, budgets: Budgets, limits: Limits, names: Sequence[str]) -> None:
        """`names` are those of the other services, which reflection lists."""
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        self.health = health.aio.HealthServicer()
        self._reflection = reflection.aio.ReflectionServicer([*names, _HEALTH, _REFLECTION], pool=POOL)
        self._incoming = incoming
        self._watches = _shares(budgets, "health watches", limits.watches_max)
        self._lookers = _shares(budgets, "reflection streams", limits.watches_max)

    @property
    def services(self) -> list[Any]:
        check: Any = grpc.stream_unary_rpc_method_handler(self._check, response_serializer=_encoded)
        watch: Any = grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=_encoded)
        reflect: Any = grpc.stream_stream_rpc_method_handler(self._reflect, response_serializer=_encoded)
        return [
            grpc.method_handlers_generic_handler(_HEALTH, {"Check": check, "Watch": watch}),
            grpc.method_handlers_generic_handler(_REFLECTION, {"ServerReflectionInfo": reflect}),
        ]

    async def _check(self, _requests: Any, context: Any) -> Any:
        return await self.health.Check(await self._asked(context), context)

    async def _watch(self, _requests: Any, context: Any) -> None:
        try:
            with _one_of(self._watches, context):
                await self.health.Watch(await self._asked(context), context)
        except PopError as refusal:
            await _end(context, refusal)

    async def _asked(self, context: Any) -> Any:
        try:
            request = await self._next(context, _read_health)
        except PopError as refusal:
            await _end(context, refusal)
        if request is None:
            await _end(context, BadRequest("the call ended without a request; send one"))
        return request

    async def _reflect(self, _requests: Any, context: Any) -> None:
        try:
            with _one_of(self._lookers, context):
                async for answer in self._reflection.ServerReflectionInfo(self._questions(context), context):
                    await context.write(answer)
        except PopError as refusal:
            await _end(context, refusal)

    async def _questions(self, context: Any) -> AsyncIterator[Any]:
        while (question := await self._next(context, _read_reflection)) is not None:
            yield question

    async def _next(self, context: Any, read: Callable[[bytes], Any]) -> Any:
        """None where no more comes. Raises the `PopError` of a request that is refused."""
        arrived = await self._incoming.receive(context, read, is_stranger=True)
        arrived.budget.give_back(arrived.size)
        if arrived.is_end:
            return None
        if arrived.refusal is not None:
            raise arrived.refusal
        if isinstance(arrived.request, Unreadable):
            raise BadRequest(f"the {arrived.request.size} bytes sent are no {arrived.request.type_name}")
        return arrived.request


def _encoded(answer: Any) -> bytes:
    data: bytes = answer.SerializeToString()
    return data


_read_health = reader(health_pb2.HealthCheckRequest, SMALL_BYTES)
_read_reflection = reader(reflection_pb2.ServerReflectionRequest, SMALL_BYTES)


def _shares(budgets: Budgets, name: str, limit: int) -> Shares:
    return Shares(budgets.add(name, limit, "streams", "max_watches"), max(1, limit // 2))


@contextmanager
def _one_of(shares: Shares, context: Any) -> Iterator[None]:
    """Raises `TooManyRequests`."""
    address = peer_address(context.peer()).rpartition(":")[0]
    if not shares.take(address):
        raise shares.refusal("one more stream", address)
    try:
        yield
    finally:
        shares.give_back(address)


async def _end(context: Any, refusal: PopError) -> NoReturn:
    code, sentence = status.end_of_stream(refusal)
    await context.abort(code, sentence)
    raise AssertionError("an aborted call goes on")
