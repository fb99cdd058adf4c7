"""Offsets: where queues begin and end, and the progress of groups that own whole queues."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from popserver.catalog import lookup
from popserver.catalog.flow import Catalog
from popserver.catalog.queue_offsets import Ends
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.messages import seek
from popserver.model.errors import PopError, TopicRecreated
from popserver.model.group import Group
from popserver.model.names import Resource, check_group
from popserver.model.topic import MessageQueue, QueueName, Topic, queue_numbered
from popserver.pulling import commit as pulling_commit
from popserver.pulling import read
from popserver.pulling.rules import NO_PROGRESS, Committed, QueueOffset, QueueProgress, check_generation

KEPT_MAX = 100_000


class NamedOffset(NamedTuple):
    """A commit as it came from the client; `resets` is None for a client that does not know resets."""

    queue: QueueName
    offset: int
    resets: int | None = None


class Offsets:
    """The progress of groups. A commit is durable when the call returns."""

    def __init__(self, reader: Reader, writer: Writer, catalog: Catalog) -> None:
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._rode_along: dict[tuple[int, int], tuple[int, int | None]] = {}

    async def commit(
        self, group_name: Resource, requests: Sequence[NamedOffset], *, begins: bool = False
    ) -> list[Committed]:
        """Let the group's progress grow. Each offset has its own outcome: a refusal does not affect the others.
        With `begins`, existing progress stays.

        The first accepted offset sets the group's mode. Raises `ConsumerGroupNotFound`, and `BadRequest` for a group
        that consumes message by message, unless none of the queues exists.
        """
        check_group(group_name)
        named = [await self._queue_or_refusal(each.queue) for each in requests]
        good = [
            QueueOffset(*found, request.offset, request.resets)
            for found, request in zip(named, requests, strict=True)
            if not isinstance(found, PopError)
        ]
        outcomes = iter(await self._commit(await self._catalog.group(group_name), good, begins=begins) if good else ())
        return [_refused(each) if isinstance(each, PopError) else next(outcomes) for each in named]

    async def commit_with_pull(self, group: Group, request: QueueOffset) -> None:
        """Commit the offset that a pull carries. A refusal or failure does not affect the pull; the next pull repeats
        the commit. An offset that was committed before costs nothing."""
        key, offset = (group.group_id, request.queue.queue_id), (request.offset, request.resets)
        if self._rode_along.get(key) == offset:
            return
        with suppress(PopError):
            (done,) = await self._commit(group, [request])
            if done.refusal is not None:
                return
            if len(self._rode_along) >= KEPT_MAX:
                self._rode_along.clear()
            self._rode_along[key] = offset

    async def fetch(self, group_name: Resource, queues: Sequence[QueueName]) -> list[QueueProgress]:
        """The group's progress in each queue. Raises a `PopError` for the first queue that does not exist."""
        found = [await self._queue(each) for each in queues]
        group = await self._catalog.group(group_name)
        stored = await self._reader.look_up(
            lambda conn: pulling_commit.fetch(conn, group, [queue for _, queue in found])
        )
        return [each._replace(generation=topic.generation) for each, (topic, _) in zip(stored, found, strict=True)]

    async def ends(self, name: QueueName) -> Ends:
        """Where the queue begins and ends."""
        topic, queue = await self._queue(name)
        return await self._reader.look_up(lambda conn: read.ends_of(conn, topic, queue))

    async def at(self, name: QueueName, at_ms: int) -> int:
        """The offset of the first message stored at or after that time (epoch ms); the queue's end if there is none."""
        topic, queue = await self._queue(name)
        return await self._reader.read(lambda conn: seek.offset_at(conn, topic, queue, at_ms))

    async def _commit(self, group: Group, requests: Sequence[QueueOffset], *, begins: bool = False) -> list[Committed]:
        done = await self._writer.submit(pulling_commit.Commit(group, requests, begins))
        self._catalog.has_been_used(group)
        return [
            each._replace(stored=each.stored._replace(generation=request.topic.generation))
            for each, request in zip(done, requests, strict=True)
        ]

    async def _queue(self, name: QueueName) -> tuple[Topic, MessageQueue]:
        """The queue, without creating its topic. Raises `TopicNotFound`, `TopicRecreated` or `BadRequest`."""
        topic = await self._catalog.known_topic(name.topic, name.generation)
        if topic is None:
            raise lookup.topic_not_found(name.topic)
        check_generation(topic, name.generation)
        return topic, queue_numbered(topic, name.number)

    async def _queue_or_refusal(self, name: QueueName) -> tuple[Topic, MessageQueue] | PopError:
        try:
            return await self._queue(name)
        except PopError as refusal:
            return refusal


def _refused(refusal: PopError) -> Committed:
    generation = refusal.generation if isinstance(refusal, TopicRecreated) else 0
    return Committed(refusal, NO_PROGRESS._replace(generation=generation))
