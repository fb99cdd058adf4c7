"""Health and reflection, which answer everybody: so they get little, and no address gets more than half of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from popproto.pool import POOL
from popserver.domain.budget import Budgets, Shares
from popserver.domain.errors import BadRequest, PopError
from popserver.rpc import status
from popserver.rpc.call import Call, Encodable, EndCode, EndStatus, Handler, Route, Service, encode
from popserver.rpc.calls import reader
from popserver.rpc.half_sent import Read
from popserver.rpc.health import Health
from popserver.rpc.incoming import SMALL_BYTES, Incoming
from popserver.rpc.limits import Limits

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name

Request = TypeVar("Request", bound=Message)


class Anybody:
    """Both services. A refusal of theirs is the call's own status: their answers have none."""

    def __init__(self, incoming: Incoming, budgets: Budgets, limits: Limits, names: Sequence[str]) -> None:
        """`names` are those of the other services, which reflection lists."""
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        self.health = Health()
        self._reflection = reflection.ReflectionServicer([*names, _HEALTH, _REFLECTION], pool=POOL)
        self._incoming = incoming
        self._watches = _shares(budgets, "health watches", limits.watches_max)
        self._lookers = _shares(budgets, "reflection streams", limits.watches_max)

    @property
    def services(self) -> list[Service]:
        check = Route(_refusable(self._check), encode, streams=False)
        watch = Route(_refusable(self._watch), encode, streams=True)
        reflect = Route(_refusable(self._reflect), encode, streams=True)
        return [
            Service(_HEALTH, {"Check": check, "Watch": watch}),
            Service(_REFLECTION, {"ServerReflectionInfo": reflect}),
        ]

    async def _check(self, call: Call) -> Encodable | None:
        request = await self._asked(call)
        answer = self.health.check(request.service)
        if answer is None:
            call.end(EndStatus(EndCode.NOT_FOUND))
        return answer

    async def _watch(self, call: Call) -> None:
        with _one_of(self._watches, call):
            request = await self._asked(call)
            await self.health.watch(request.service, call.write)

    async def _reflect(self, call: Call) -> None:
        with _one_of(self._lookers, call):
            while (question := await self._next(call, _read_reflection)) is not None:
                for answer in self._reflection.ServerReflectionInfo(iter([question]), None):
                    await call.write(answer)

    async def _asked(self, call: Call) -> health_pb2.HealthCheckRequest:
        request = await self._next(call, _read_health)
        if request is None:
            raise BadRequest("the call ended without a request; send one")
        return request

    async def _next(self, call: Call, read: Read[Request]) -> Request | None:
        """None where no more comes. Raises the `PopError` of a request that is refused."""
        arrived = await self._incoming.receive(call, read, is_stranger=True)
        arrived.budget.give_back(arrived.size)
        if arrived.is_end:
            return None
        return arrived.decoded()


_read_health = reader(health_pb2.HealthCheckRequest, SMALL_BYTES)
_read_reflection = reader(reflection_pb2.ServerReflectionRequest, SMALL_BYTES)


def _shares(budgets: Budgets, name: str, limit: int) -> Shares:
    return Shares(budgets.add(name, limit, "streams", "max_watches"), max(1, limit // 2))


@contextmanager
def _one_of(shares: Shares, call: Call) -> Iterator[None]:
    """Raises `TooManyRequests`."""
    address = call.peer.rpartition(":")[0]
    if not shares.take(address):
        raise shares.refusal("one more stream", address)
    try:
        yield
    finally:
        shares.give_back(address)


def _refusable(handler: Handler) -> Handler:
    """The call ends with the status of the refusal that the handler raises."""

    async def handle(call: Call) -> Encodable | None:
        try:
            return await handler(call)
        except PopError as refusal:
            call.end(status.end_of_stream(refusal))
            return None

    return handle
