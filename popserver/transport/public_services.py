"""Health and reflection. They answer callers without a signature, so their streams are few.

One address gets at most half of the streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from popport.addresses import network_of
from popproto.pool import POOL
from popserver.model.budget import Budgets, Shares
from popserver.model.errors import BadRequest, PopError
from popserver.transport import status
from popserver.transport.call import Call, Encodable, EndCode, EndStatus, Handler, Route, Service, Write, encode
from popserver.transport.incoming import SMALL_BYTES, Incoming, Read, reader
from popserver.transport.limits import CallLimits

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name

Request = TypeVar("Request", bound=Message)


class PublicServices:
    """Both services. A refusal ends the call with a gRPC status, because their answers have no status field."""

    def __init__(self, incoming: Incoming, budgets: Budgets, limits: CallLimits, condition: ServerCondition) -> None:
        for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            POOL.AddSerializedFile(file.serialized_pb)
        self._condition = condition
        self._incoming = incoming
        self._watches = _shares(budgets, "health watches", limits.watches_max)
        self._reflections = _shares(budgets, "reflection streams", limits.watches_max)

    def beside(self, services: Sequence[Service]) -> list[Service]:
        """Both services, for a port that serves these other ones: only they are known to health and reflection."""
        names = [*(each.name for each in services), _HEALTH, _REFLECTION]
        health = Health(self._condition, names)
        check = Route(_refusable(partial(self._check, health=health)), encode, streams=False)
        watch = Route(_refusable(partial(self._watch, health=health)), encode, streams=True)
        reflect = Route(_refusable(partial(self._reflect, names=names)), encode, streams=True)
        return [
            Service(_HEALTH, {"Check": check, "Watch": watch}),
            Service(_REFLECTION, {"ServerReflectionInfo": reflect}),
        ]

    async def _check(self, call: Call, health: Health) -> Encodable | None:
        request = await self._asked(call)
        answer = await health.check(request.service)
        if answer is None:
            call.end(EndStatus(EndCode.NOT_FOUND))
        return answer

    async def _watch(self, call: Call, health: Health) -> None:
        with _one_of(self._watches, call):
            request = await self._asked(call)
            await health.watch(request.service, call.write)

    async def _reflect(self, call: Call, names: Sequence[str]) -> None:
        # gRPC's library loads slowly, and few servers are asked.
        from grpc_reflection.v1alpha.reflection import ReflectionServicer

        with _one_of(self._reflections, call):
            servicer = ReflectionServicer(names, pool=POOL)
            while (question := await self._next(call, _read_reflection)) is not None:
                for answer in servicer.ServerReflectionInfo(iter([question]), None):
                    await call.write(answer)

    async def _asked(self, call: Call) -> health_pb2.HealthCheckRequest:
        request = await self._next(call, _read_health)
        if request is None:
            raise BadRequest("the call ended without a request; send one")
        return request

    async def _next(self, call: Call, read: Read[Request]) -> Request | None:
        """The next request, or None after the last one. Raises a `PopError` if the request is refused."""
        await asyncio.sleep(0)  # other clients have their turn, even if this one has sent many questions
        arrived = await self._incoming.receive(call, read, SMALL_BYTES, is_anonymous=True)
        arrived.budget.give_back(arrived.size)
        if arrived.is_end:
            return None
        if arrived.refusal is not None:
            raise arrived.refusal
        assert not isinstance(arrived.request, BadRequest)
        return arrived.request


_read_health = reader(health_pb2.HealthCheckRequest, SMALL_BYTES)
_read_reflection = reader(reflection_pb2.ServerReflectionRequest, SMALL_BYTES)


def _shares(budgets: Budgets, name: str, limit: int) -> Shares:
    return Shares(budgets.add(name, limit, "streams", "max_watches"), max(1, limit // 2))


@contextmanager
def _one_of(shares: Shares, call: Call) -> Iterator[None]:
    """Count this stream while it is open. Raises `TooManyRequests` if the address has too many."""
    address = network_of(call.peer.rpartition(":")[0])
    if not shares.take(address):
        raise shares.refusal("one more stream", address)
    try:
        yield
    finally:
        shares.give_back(address)


def _refusable(handler: Handler) -> Handler:
    """If the handler raises a `PopError`, end the call with its status."""

    async def handle(call: Call) -> Encodable | None:
        try:
            return await handler(call)
        except PopError as refusal:
            call.end(status.end_of_stream(refusal))
            return None

    return handle


# grpc.health.v1. Its answers have no field for reasons; `popmq.v1.Admin/GetHealth` and /readyz have them.

_LIVENESS = frozenset({"startup", "liveness"})
WATCH_S = 5.0  # how often a watch checks whether the state has changed


class ServerCondition(Protocol):
    """The facts that health is made from."""

    leaving: asyncio.Event

    def is_live(self) -> bool:
        """Whether the process works."""

    async def is_ready(self) -> bool:
        """Whether the server should get requests."""


class Health:
    """What supervisors ask a server by name: the names that Kubernetes uses, and those of the services."""

    def __init__(self, condition: ServerCondition, services: Iterable[str]) -> None:
        self._condition = condition
        # The empty name is the whole server.
        self._readiness = frozenset({"", "readiness", *services})

    async def check(self, name: str) -> health_pb2.HealthCheckResponse | None:
        """The state; None for an unknown name."""
        if name in self._readiness:
            return _SERVING if await self._condition.is_ready() else _NOT_SERVING
        if name in _LIVENESS:
            return _SERVING if self._condition.is_live() else _NOT_SERVING
        return None

    async def watch(self, name: str, write: Write) -> None:
        """Write the state now and at each change. The stream ends when the server stops."""
        leaving, last = self._condition.leaving, None
        while True:
            is_last = leaving.is_set()
            state = await self.check(name) or _SERVICE_UNKNOWN
            if state != last:
                await write(state)
                last = state
            if is_last:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(leaving.wait(), WATCH_S)


_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = (
    health_pb2.HealthCheckResponse(status=each)
    for each in (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
        health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
    )
)
