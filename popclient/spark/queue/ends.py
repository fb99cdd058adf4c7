"""The queues of the topics, and their first and last offsets, for planning."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from popclient._queues import calls
from popclient._queues.calls import QueueEnd
from popclient._queues.wire import open_session, readable
from popclient._session import convert
from popclient._session.routes import query_route
from popclient._session.session import Session
from popclient.errors import Forbidden, NotFound, Unauthorized, UnsupportedByServer, check
from popclient.message import MessageQueue
from popclient.spark.link import ServerLink, link_to
from popclient.spark.queue.options import EARLIEST, Bound, QueueReadOptions
from popproto.v1 import admin_pb2

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Ends(NamedTuple):
    """min_offset: of the oldest stored message. max_offset: of the next message that will be stored.

    created_at_ms: the topic's time of creation; None if the server does not tell.
    """

    min_offset: int
    max_offset: int
    created_at_ms: int | None = None


class QueueEnds:
    """Asks the server. Belongs to one process."""

    def __init__(self, options: QueueReadOptions) -> None:
        self._options = options
        self._may_administrate = True

    def topics(self) -> tuple[str, ...]:
        """The topics to read; for a pattern those that exist now."""
        if self._options.pattern is None:
            return self._options.topics
        wanted = re.compile(self._options.pattern)
        named = self._link().ask(self._list_topics)
        # Topics whose names begin with % belong to groups: retries and dead letters.
        return tuple(sorted(each for each in named if wanted.fullmatch(each) and not each.startswith("%")))

    def ends(self, topics: Sequence[str]) -> dict[MessageQueue, Ends]:
        """The ends of all queues of the topics; with a pattern, a deleted topic is left out. Raises NotFound,
        UnsupportedByServer."""

        async def ask(session: Session) -> list[dict[MessageQueue, Ends]]:
            return await asyncio.gather(*(self._ends_of(session, topic) for topic in topics))

        try:
            found = self._link().ask(ask)
        except UnsupportedByServer:
            raise UnsupportedByServer(
                f"the server at {self._options.server.endpoints} cannot read by offsets, which mode=queue needs; use"
                " mode=journal, which works with any RocketMQ 5 server"
            ) from None
        return {queue: ends for each in found for queue, ends in each.items()}

    def at(self, bound: Bound, ends: Mapping[MessageQueue, Ends]) -> dict[MessageQueue, int]:
        """The bound's offset in each queue. Raises `ValueError` for an unknown queue or offset."""
        for queue in bound.of_queues:
            if queue not in ends:
                raise ValueError(f"there is no queue {queue}; {_known(queue.topic, ends)}")
        if bound.time_ms is not None:
            return self._at_time(bound.time_ms, ends)
        return {queue: _offset(queue, bound.of_queues.get(queue, bound.offset), ends[queue]) for queue in ends}

    def _at_time(self, time_ms: int, ends: Mapping[MessageQueue, Ends]) -> dict[MessageQueue, int]:
        try:
            time = _EPOCH + timedelta(milliseconds=time_ms)
        except OverflowError:  # later than all messages
            return {queue: each.max_offset for queue, each in ends.items()}

        async def ask(session: Session) -> list[int]:
            return await asyncio.gather(*(calls.query_offset(session, queue, time) for queue in ends))

        found = zip(ends.items(), self._link().ask(ask), strict=True)
        return {queue: min(offset, each.max_offset) for (queue, each), offset in found}

    def _link(self) -> ServerLink:
        return link_to(self._options.server, self._options.group)

    # ---- Calls ----

    async def _list_topics(self, session: Session) -> list[str]:
        request, listed = admin_pb2.ListTopicsRequest(), list[admin_pb2.Topic]()
        try:
            while True:
                answer = await session.transport.unary(
                    lambda link: link.admin.ListTopics, request, session.config.request_timeout
                )
                check(answer.status)
                listed += answer.topics
                if not answer.HasField("next_after"):
                    break
                request.after.CopyFrom(answer.next_after)
        except (UnsupportedByServer, Forbidden, Unauthorized) as refusal:
            raise ValueError(
                f"option topicsPattern={self._options.pattern!r} needs the list of topics of a PopMQ server, which"
                f" refused it: {refusal}; give the topics with the option topic"
            ) from None
        namespace = session.config.namespace
        return [each.topic.name for each in listed if each.topic.resource_namespace == namespace]

    async def _ends_of(self, session: Session, topic: str) -> dict[MessageQueue, Ends]:
        try:
            if self._may_administrate:
                with contextlib.suppress(UnsupportedByServer, Forbidden, Unauthorized):
                    return await self._by_admin(session, topic)
                self._may_administrate = False
            return await self._by_queue(session, topic)
        except NotFound:
            if self._options.pattern is None:
                raise
            return {}

    async def _by_admin(self, session: Session, topic: str) -> dict[MessageQueue, Ends]:
        """In one call, for administrators."""
        request = admin_pb2.GetTopicRequest(topic=convert.resource(topic, session.config.namespace))
        answer = await session.transport.unary(
            lambda link: link.admin.GetTopic, request, session.config.request_timeout
        )
        check(answer.status)
        created_at_ms = answer.topic.created_at.ToMilliseconds() if answer.topic.HasField("created_at") else None
        return {
            MessageQueue(topic, each.id): Ends(each.min_offset, each.max_offset, created_at_ms)
            for each in answer.topic.queues
        }

    async def _by_queue(self, session: Session, topic: str) -> dict[MessageQueue, Ends]:
        """In two calls for each queue, for users who may read the topic."""
        await open_session(session)
        route = await query_route(session.config, session.transport, topic)
        queues = readable(topic, route)
        found = await asyncio.gather(*(self._both_ends(session, queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def _both_ends(self, session: Session, queue: MessageQueue) -> Ends:
        begin = await calls.query_offset(session, queue, QueueEnd.BEGINNING)
        return Ends(begin, await calls.query_offset(session, queue, QueueEnd.END))


def created(ends: Mapping[MessageQueue, Ends]) -> dict[str, int]:
    """When each topic was created, if the server has told."""
    return {queue.topic: each.created_at_ms for queue, each in ends.items() if each.created_at_ms is not None}


def _offset(queue: MessageQueue, wanted: int, ends: Ends) -> int:
    if wanted < 0:
        return ends.min_offset if wanted == EARLIEST else ends.max_offset
    if wanted > ends.max_offset:
        raise ValueError(f"offset {wanted} of queue {queue} is beyond its end; give at most {ends.max_offset}")
    return wanted


def _known(topic: str, ends: Mapping[MessageQueue, Ends]) -> str:
    numbers = [str(each.queue_id) for each in ends if each.topic == topic]
    topics = sorted({each.topic for each in ends})
    return f"topic {topic} has {', '.join(numbers)}" if numbers else f"the topics that are read are {', '.join(topics)}"
