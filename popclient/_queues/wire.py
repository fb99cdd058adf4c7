"""How the calls of queue granularity reach a server, and how the client recognizes a server without them.

A RocketMQ 5 proxy offers none of them: it answers them with gRPC's UNIMPLEMENTED, and no session to a client that owns
queues. A client that meets it gets UnsupportedByServer, which names the call, the server's kind and the way out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, TypeVar

from popclient._session import convert
from popclient._session.session import Session
from popclient._session.transport import Link
from popclient.errors import BadRequest, PopError, ServerError, UnsupportedByServer, check
from popclient.message import MessageQueue
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

Answer = TypeVar("Answer")
Result = TypeVar("Result")

LEGACY: Final = "legacy"  # the capability of a server that has popmq.v1.Legacy
PULL_BATCH: Final = "pull-batch"  # of one whose Legacy has PullBatch


# ---- Meeting a server ----


async def open_session(session: Session) -> None:
    """Opens the session of a consumer that owns queues; raises UnsupportedByServer if the server has none for it."""
    try:
        await session.start()
    except PopError as refusal:
        if refusal.code == pb.UNRECOGNIZED_CLIENT_TYPE:
            raise unsupported(session, "a session with client type PULL_CONSUMER") from refusal
        if isinstance(refusal, ServerError | BadRequest):  # older proxies answer an unknown client type so
            await _probe(session)
        raise
    if not session.is_popmq:
        await _probe(session)


async def _probe(session: Session) -> None:
    """Sends an empty request, which a server with the call refuses as invalid. Raises UnsupportedByServer for a server
    without the call."""
    pick = _query_offset
    timeout = session.config.request_timeout
    await offered(session, "QueryOffset", session.transport.unary(pick, rpc.QueryOffsetRequest(), timeout))


def _query_offset(link: Link) -> Callable[..., Awaitable[rpc.QueryOffsetResponse]]:
    return link.messaging.QueryOffset


async def has_legacy(session: Session) -> bool:
    return await offers(session, LEGACY)


async def offers(session: Session, capability: str) -> bool:
    if not session.settled:
        await session.start()
    return capability in session.capabilities


# ---- Calling ----


async def call_legacy(
    session: Session, name: str, pick: Callable[[Link], Callable[..., Awaitable[Answer]]], request: Any
) -> Answer:
    """Makes a call of popmq.v1.Legacy. Raises UnsupportedByServer, without a call, if the server lacks that service."""
    if not await has_legacy(session):
        raise unsupported(session, name)
    return await call(session, name, pick, request)


async def call(
    session: Session,
    name: str,
    pick: Callable[[Link], Callable[..., Awaitable[Answer]]],
    request: Any,
    *,
    has_results: Callable[[Answer], bool] = lambda _: False,
) -> Answer:
    """One request and its answer, whose status is OK; raises a PopError.

    tells_of_each: whether the answer has a result for each part of the request. Then its status is not checked.
    """

    async def checked() -> Answer:
        answer = await session.transport.unary(pick, request, session.config.request_timeout)
        if not has_results(answer):
            check(answer.status)  # type: ignore[attr-defined]
        return answer

    return await offered(session, name, checked())


async def offered(session: Session, name: str, work: Awaitable[Result]) -> Result:
    """The result of the work. If the server does not have the call, raises an UnsupportedByServer that says what to do.
    Other errors are not changed."""
    try:
        return await work
    except UnsupportedByServer as refusal:
        if refusal.code == pb.UNSUPPORTED:
            raise
        raise unsupported(session, name) from None


def unsupported(session: Session, what: str) -> UnsupportedByServer:
    version = session.settings.client_properties.get("popmq.server", "")
    kind = f"PopMQ {version}".strip() if session.is_popmq else "a RocketMQ server without queue granularity"
    return UnsupportedByServer(
        f"{what} is not offered by the server at {session.transport.where}, which is {kind}; consume there with"
        " SimpleConsumer or PushConsumer, or connect this consumer to a PopMQ server of this version",
    )


# ---- Names on the wire ----


async def queue_of(session: Session, mq: MessageQueue) -> pb.MessageQueue:
    """The queue as the route has it; an unknown one with its names only, so that the server refuses it."""
    for queue in await session.route(mq.topic):
        if queue.id == mq.queue_id:
            return queue
    return pb.MessageQueue(topic=resource_of(session, mq.topic), id=mq.queue_id)


def readable(topic: str, route: Iterable[pb.MessageQueue]) -> list[MessageQueue]:
    """The queues of a route that can be read, in order."""
    return sorted({MessageQueue(topic, each.id) for each in route if each.permission in (pb.READ, pb.READ_WRITE)})


def names_of(session: Session, queues: Collection[MessageQueue]) -> list[legacy.QueueName]:
    return [name_of(session, mq) for mq in queues]


def name_of(session: Session, mq: MessageQueue, generation: int = 0) -> legacy.QueueName:
    return legacy.QueueName(topic=resource_of(session, mq.topic), queue_id=mq.queue_id, generation=generation)


def resource_of(session: Session, name: str) -> pb.Resource:
    return convert.resource(name, session.config.namespace)
