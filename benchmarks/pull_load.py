"""Load by plain gRPC calls that name an offset: pulls, seeks by time, first receives of new groups.

The load counts the messages of a pull and does not decode them, because that is not the server's cost.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import grpc

from benchmarks.groups import BATCH_SIZE
from benchmarks.meter import Meter
from benchmarks.raw_load import HEADERS, SERVICE, Wire
from popproto.v1 import legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire

COMMIT_EVERY_S = 5.0  # as members do
_MESSAGE_FRAME = b"\x12"  # how a frame begins that holds a message, field 2


class Stretch(NamedTuple):
    """What a queue stores: offsets from `begin` up to, not including, `end`, stored between these times."""

    queue_id: int
    begin: int
    end: int
    oldest_ms: int
    newest_ms: int


class PullWire(Wire):
    """A connection with calls for pulls and offsets."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._pull: Any = self.channel.unary_stream(
            SERVICE + "PullMessage", request_serializer=wire.PullMessageRequest.SerializeToString
        )
        self._pull_batch = self.channel.unary_unary(
            "/popmq.v1.Legacy/PullBatch",
            request_serializer=legacy_pb2.PullBatchRequest.SerializeToString,
            response_deserializer=legacy_pb2.PullBatchResponse.FromString,
        )
        self._query_offset = self.channel.unary_unary(
            SERVICE + "QueryOffset",
            request_serializer=wire.QueryOffsetRequest.SerializeToString,
            response_deserializer=wire.QueryOffsetResponse.FromString,
        )
        self._query_route = self.channel.unary_unary(
            SERVICE + "QueryRoute",
            request_serializer=wire.QueryRouteRequest.SerializeToString,
            response_deserializer=wire.QueryRouteResponse.FromString,
        )
        self._commit_offsets = self.channel.unary_unary(
            "/popmq.v1.Legacy/CommitOffsets",
            request_serializer=legacy_pb2.CommitOffsetsRequest.SerializeToString,
            response_deserializer=legacy_pb2.CommitOffsetsResponse.FromString,
        )

    async def pull(
        self, group: str, topic: str, queue_id: int, offset: int, batch_size: int = BATCH_SIZE
    ) -> tuple[list[bytes], int]:
        """Pull without waiting: the frames of the messages, and the next offset."""
        request = wire.PullMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id),
            offset=offset,
            batch_size=batch_size,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        call = self._pull(request, metadata=HEADERS, timeout=30)
        frames: list[bytes] = []
        others = wire.PullMessageResponse()
        while (frame := await call.read()) is not grpc.aio.EOF:
            if frame.startswith(_MESSAGE_FRAME):
                frames.append(frame)
                continue
            others.ParseFromString(frame)
            if others.HasField("status") and others.status.code != pb.OK:
                raise RuntimeError(f"a pull at {offset} of queue {queue_id} failed: {others.status}")
        return frames, others.next_offset

    async def pull_batch(self, group: str, topic: str, queue_id: int, offset: int) -> tuple[Sequence[pb.Message], int]:
        """The same in one frame."""
        request = legacy_pb2.PullBatchRequest(
            group=pb.Resource(name=group),
            queue=legacy_pb2.QueueName(topic=pb.Resource(name=topic), queue_id=queue_id),
            offset=offset,
            batch_size=BATCH_SIZE,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        answer = await self._pull_batch(request, metadata=HEADERS, timeout=30)
        _check(answer.status, f"a pull at {offset} of queue {queue_id}")
        return answer.messages, answer.next_offset

    async def query_offset(
        self, topic: str, queue_id: int, policy: pb.QueryOffsetPolicy.ValueType, at_ms: int | None = None
    ) -> int:
        """`at_ms`: for TIMESTAMP, epoch milliseconds."""
        queue = pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id)
        request = wire.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        if at_ms is not None:
            request.timestamp.FromMilliseconds(at_ms)
        answer = await self._query_offset(request, metadata=HEADERS, timeout=30)
        _check(answer.status, "a query of an offset")
        return int(answer.offset)

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queue = legacy_pb2.QueueName(topic=pb.Resource(name=topic), queue_id=queue_id)
        request = legacy_pb2.CommitOffsetsRequest(
            group=pb.Resource(name=group), offsets=[legacy_pb2.QueueOffset(queue=queue, offset=offset)]
        )
        answer = await self._commit_offsets(request, metadata=HEADERS, timeout=30)
        _check(answer.status, "a commit")

    async def stretches(self, group: str, topic: str) -> list[Stretch]:
        """The stored ranges of all queues of the topic that are not empty."""
        request = wire.QueryRouteRequest(topic=pb.Resource(name=topic))
        route = await self._query_route(request, metadata=HEADERS, timeout=30)
        _check(route.status, "a route")
        found = [await self._stretch(group, topic, queue.id) for queue in route.message_queues]
        return [each for each in found if each.begin < each.end]

    async def _stretch(self, group: str, topic: str, queue_id: int) -> Stretch:
        begin = await self.query_offset(topic, queue_id, pb.BEGINNING)
        end = await self.query_offset(topic, queue_id, pb.END)
        if begin == end:
            return Stretch(queue_id, begin, end, 0, 0)
        times = [await self._stored_at_ms(group, topic, queue_id, offset) for offset in (begin, end - 1)]
        return Stretch(queue_id, begin, end, *times)

    async def _stored_at_ms(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        (frame,), _ = await self.pull(group, topic, queue_id, offset, batch_size=1)
        stored = wire.PullMessageResponse.FromString(frame).message
        return stored.system_properties.store_timestamp.ToMilliseconds()


class PullLoad:
    """Its verbs are the loads `pull.…`."""

    def __init__(self, endpoint: str, server_pid: int) -> None:
        self._wire = PullWire(endpoint)
        self._server_pid = server_pid

    async def walk(
        self, topic: str, group: str, in_one_piece: bool, callers: int, warm_up: float, seconds: float
    ) -> dict[str, Any]:
        """Closed loop: each caller has a queue, pulls 32 from it, continues at the next offset, and commits regularly.

        As many callers as there are queues are members of one group; further callers are in further groups. At the end
        of its queue a caller begins again as a member of another group.
        """
        meter, stretches = Meter(), await self._wire.stretches(group, topic)
        pull = self._wire.pull_batch if in_one_piece else self._wire.pull
        loop_begun = time.perf_counter()

        async def caller(number: int) -> None:
            own = stretches[number % len(stretches)]
            names = (f"{group}-{number // len(stretches)}-{turn}" for turn in itertools.count())
            name, offset = next(names), own.begin
            # Spread over the period, as for real members; a single caller's commit is in the measured time.
            commit_at = loop_begun + warm_up + COMMIT_EVERY_S * number / callers
            while meter.running:
                if time.perf_counter() >= commit_at:
                    await self._wire.commit(name, topic, own.queue_id, offset)
                    commit_at += COMMIT_EVERY_S
                begun = time.perf_counter()
                found, offset = await pull(name, topic, own.queue_id, offset)
                meter.done(len(found), begun)
                if offset >= own.end:
                    name, offset = next(names), own.begin

        workers = [caller(number) for number in range(callers)]
        return await meter.measure(workers, warm_up=warm_up, seconds=seconds, server_pid=self._server_pid)

    async def at_random(self, topic: str, group: str, warm_up: float, seconds: float) -> dict[str, Any]:
        """One caller pulls 32 from random offsets; a call counts as one."""
        stretches = await self._wire.stretches(group, topic)

        async def once() -> None:
            own = random.choice(stretches)
            offset = random.randint(own.begin, own.end - BATCH_SIZE)
            frames, _ = await self._wire.pull(group, topic, own.queue_id, offset)
            if len(frames) != BATCH_SIZE:
                raise RuntimeError(f"a pull at {offset} of {own} found {len(frames)} messages, not {BATCH_SIZE}")

        return await self._again_and_again(once, warm_up, seconds)

    async def seek(self, topic: str, group: str, warm_up: float, seconds: float) -> dict[str, Any]:
        """One caller queries the offsets of random times between the oldest and the newest message."""
        stretches = await self._wire.stretches(group, topic)

        async def once() -> None:
            own = random.choice(stretches)
            at_ms = random.randint(own.oldest_ms, own.newest_ms)
            offset = await self._wire.query_offset(topic, own.queue_id, pb.TIMESTAMP, at_ms)
            if not own.begin <= offset < own.end:
                raise RuntimeError(f"{at_ms} ms is at offset {offset} of {own}")

        return await self._again_and_again(once, warm_up, seconds)

    async def first_receive(self, topic: str, group: str, warm_up: float, seconds: float) -> dict[str, Any]:
        """One caller receives 32, each time with a new group."""
        names = (f"{group}-{number}" for number in itertools.count())

        async def once() -> None:
            received = await self._wire.receive(next(names), topic)
            if len(received) != BATCH_SIZE:
                raise RuntimeError(f"a first receive found {len(received)} messages, not {BATCH_SIZE}")

        return await self._again_and_again(once, warm_up, seconds)

    async def close(self) -> None:
        await self._wire.channel.close()

    async def _again_and_again(
        self, once: Callable[[], Awaitable[None]], warm_up: float, seconds: float
    ) -> dict[str, Any]:
        meter = Meter()

        async def caller() -> None:
            while meter.running:
                begun = time.perf_counter()
                await once()
                meter.done(1, begun)

        return await meter.measure([caller()], warm_up=warm_up, seconds=seconds, server_pid=self._server_pid)


def _check(status: pb.Status, what: str) -> None:
    if status.code != pb.OK:
        raise RuntimeError(f"{what} failed: {status}")
