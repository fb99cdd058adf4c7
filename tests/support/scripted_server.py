"""A small server that does what it is told: for what a real one will not do on demand.

It keeps messages in memory, one list per topic, and answers like PopMQ unless a test replaces an answer. Every request
is recorded, with its metadata.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import grpc

from popproto.v1 import receiving_pb2, receiving_pb2_grpc
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from popproto.v2 import service_pb2_grpc

OK = pb.Status(code=pb.OK, message="OK")


def status(code: int, message: str = "") -> pb.Status:
    known = cast("pb.Code.ValueType", code)
    return pb.Status(code=known, message=message or pb.Code.Name(known))


class StreamEnd(NamedTuple):
    """Ends a Telemetry stream with a gRPC status; an answer like any other."""

    code: grpc.StatusCode
    details: str


class ScriptedServer(service_pb2_grpc.MessagingServiceServicer):
    """Answers like a server; `answers["SendMessage"] = f(request)` replaces an answer, `gates` hold one back."""

    def __init__(
        self, capabilities: str = "admin,batch", *, fifo: bool = False, retry_intervals: Sequence[float] = (10,)
    ) -> None:
        self.capabilities = capabilities
        self.fifo = fifo
        self.retry_intervals = retry_intervals
        self.port = 0
        self.calls: list[tuple[str, Any]] = []
        self.metadata: dict[str, dict[str, str]] = {}
        self.stored: defaultdict[str, list[pb.Message]] = defaultdict(list)
        self.taken: defaultdict[str, int] = defaultdict(int)
        self.held: dict[str, pb.Message] = {}
        self.given_back: list[pb.Message] = []
        self.withheld: list[pb.Message] = []  # failed, or behind one that has
        self.attempts: defaultdict[str, int] = defaultdict(lambda: 1)
        self.answered: dict[str, list[pb.Message]] = {}  # by attempt id
        self.settings: list[pb.Settings] = []
        self.streams: set[asyncio.Queue[rpc.TelemetryCommand | StreamEnd | None]] = set()
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.arrived: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.rung = asyncio.Event()
        self._handles = itertools.count(1)
        self._server: grpc.aio.Server | None = None

    # ---- Life ----

    async def start(self, port: int = 0) -> Self:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
        service_pb2_grpc.add_MessagingServiceServicer_to_server(self, self._server)
        if "receive-batch" in self.capabilities:
            receiving_pb2_grpc.add_ReceivingServicer_to_server(cast("Any", self), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        assert self.port
        await self._server.start()
        return self

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(None)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def endpoints(self) -> str:
        return f"127.0.0.1:{self.port}"

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.calls if name == method]

    def drop_streams(self) -> None:
        for queue in list(self.streams):
            queue.put_nowait(None)

    def say(self, command: rpc.TelemetryCommand | StreamEnd) -> None:
        for queue in list(self.streams):
            queue.put_nowait(command)

    # ---- RPCs ----

    async def _answer(self, method: str, request: Any, context: Any, default: Callable[[], Any] | None = None) -> Any:
        self.calls.append((method, request))
        self.metadata[method] = dict(context.invocation_metadata())
        self.arrived[method].set()
        if (gate := self.gates.get(method)) is not None:
            await gate.wait()
        if (scripted := self.answers.get(method)) is not None:
            answer = scripted(request)
            if isinstance(answer, Awaitable):
                answer = await answer
            if isinstance(answer, grpc.StatusCode):
                await context.abort(answer, "scripted")
            if answer is not None:
                return answer
        return None if default is None else default()

    async def QueryRoute(self, request: rpc.QueryRouteRequest, context: Any) -> rpc.QueryRouteResponse:  # noqa: N802
        return await self._answer(
            "QueryRoute",
            request,
            context,
            lambda: rpc.QueryRouteResponse(
                status=OK,
                message_queues=[
                    pb.MessageQueue(
                        topic=request.topic,
                        id=queue,
                        permission=pb.READ_WRITE,
                        broker=pb.Broker(name="broker", id=0, endpoints=request.endpoints),
                        accept_message_types=[pb.NORMAL],
                    )
                    for queue in range(4)
                ],
            ),
        )

    async def Heartbeat(self, request: rpc.HeartbeatRequest, context: Any) -> rpc.HeartbeatResponse:  # noqa: N802
        return await self._answer("Heartbeat", request, context, lambda: rpc.HeartbeatResponse(status=OK))

    async def Telemetry(self, requests: Any, context: Any) -> AsyncIterator[rpc.TelemetryCommand]:  # noqa: N802
        self.metadata["Telemetry"] = dict(context.invocation_metadata())
        queue: asyncio.Queue[rpc.TelemetryCommand | StreamEnd | None] = asyncio.Queue()
        self.streams.add(queue)
        reader = asyncio.create_task(self._read(requests, queue))
        try:
            while (command := await queue.get()) is not None:
                if isinstance(command, StreamEnd):
                    await context.abort(*command)
                yield command
        finally:
            reader.cancel()
            self.streams.discard(queue)

    async def _read(self, requests: Any, queue: asyncio.Queue[rpc.TelemetryCommand | StreamEnd | None]) -> None:
        async for command in requests:
            self.calls.append(("Telemetry", command))
            if command.HasField("settings"):
                self.settings.append(command.settings)
                reply = rpc.TelemetryCommand(status=OK, settings=command.settings)
                if self.capabilities:
                    reply.settings.client_properties["popmq.capabilities"] = self.capabilities
                self._tell_policy(reply.settings)
                scripted = self.answers.get("Telemetry")
                answer = reply if scripted is None else scripted(reply)
                if answer is not None:
                    queue.put_nowait(answer)
        queue.put_nowait(None)

    def _tell_policy(self, settings: pb.Settings) -> None:
        backoff = settings.backoff_policy
        backoff.max_attempts = 3
        if settings.client_type == pb.PUSH_CONSUMER:
            settings.subscription.fifo = self.fifo
            settings.subscription.receive_batch_size = 32
            settings.subscription.long_polling_timeout.FromSeconds(20)
            for seconds in self.retry_intervals:
                backoff.customized_backoff.next.add().FromMilliseconds(int(seconds * 1000))
        else:
            backoff.exponential_backoff.initial.FromMilliseconds(1)
            backoff.exponential_backoff.max.FromMilliseconds(4)
            backoff.exponential_backoff.multiplier = 2

    async def QueryAssignment(  # noqa: N802
        self, request: rpc.QueryAssignmentRequest, context: Any
    ) -> rpc.QueryAssignmentResponse:
        queue = pb.MessageQueue(
            topic=request.topic, id=-1, broker=pb.Broker(name="broker", endpoints=request.endpoints)
        )
        return await self._answer(
            "QueryAssignment",
            request,
            context,
            lambda: rpc.QueryAssignmentResponse(status=OK, assignments=[pb.Assignment(message_queue=queue)]),
        )

    async def SendMessage(self, request: rpc.SendMessageRequest, context: Any) -> rpc.SendMessageResponse:  # noqa: N802
        return await self._answer("SendMessage", request, context, lambda: self.store(request))

    def store(self, request: rpc.SendMessageRequest) -> rpc.SendMessageResponse:
        answer = rpc.SendMessageResponse(status=OK)
        for message in request.messages:
            log = self.stored[message.topic.name]
            answer.entries.add(status=OK, message_id=message.system_properties.message_id, offset=len(log))
            log.append(message)
        self.rung.set()
        return answer

    async def ReceiveMessage(  # noqa: N802
        self, request: rpc.ReceiveMessageRequest, context: Any
    ) -> AsyncIterator[rpc.ReceiveMessageResponse]:
        scripted = await self._answer("ReceiveMessage", request, context)
        if scripted is not None:
            for frame in scripted:
                if isinstance(frame, grpc.StatusCode):
                    await context.abort(frame, "scripted")
                elif isinstance(frame, Awaitable):
                    await frame
                else:
                    yield frame
            return
        messages = await self._granted(request)
        yield rpc.ReceiveMessageResponse(status=OK if messages else status(pb.MESSAGE_NOT_FOUND))
        for message in messages:
            yield rpc.ReceiveMessageResponse(message=message)
        final = rpc.ReceiveMessageResponse()
        final.delivery_timestamp.GetCurrentTime()
        yield final

    async def ReceiveBatch(self, request: rpc.ReceiveMessageRequest, context: Any) -> Any:  # noqa: N802
        scripted = await self._answer("ReceiveBatch", request, context)
        if scripted is not None:
            return scripted
        messages = await self._granted(request)
        return receiving_pb2.ReceiveBatchResponse(
            status=OK if messages else status(pb.MESSAGE_NOT_FOUND), messages=messages
        )

    async def _granted(self, request: rpc.ReceiveMessageRequest) -> list[pb.Message]:
        """What the receive gets, within its polling time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.long_polling_timeout.ToTimedelta().total_seconds()
        while not (messages := self._replay(request) or self._take(request)) and loop.time() < deadline:
            self.rung.clear()
            try:
                await asyncio.wait_for(self.rung.wait(), deadline - loop.time())
            except TimeoutError:
                break
        self.answered[request.attempt_id] = messages
        return messages

    def grant_without_answer(self) -> None:
        """The next receive is granted messages, and its answer never gets there."""
        granted: list[pb.Message] = []

        def answer(request: rpc.ReceiveMessageRequest) -> Any:
            if granted:
                return None
            granted.extend(self._take(request))
            self.answered[request.attempt_id] = granted
            return [asyncio.Event().wait()]

        self.answers["ReceiveMessage"] = answer

    def _replay(self, request: rpc.ReceiveMessageRequest) -> list[pb.Message]:
        """What this attempt was answered before, as far as it is held."""
        before = self.answered.get(request.attempt_id, ())
        return [message for message in before if message.system_properties.receipt_handle in self.held]

    def _take(self, request: rpc.ReceiveMessageRequest) -> list[pb.Message]:
        topic = request.message_queue.topic.name
        again, self.given_back = self.given_back[: request.batch_size], self.given_back[request.batch_size :]
        start = self.taken[topic]
        fresh = self.stored[topic][start : start + request.batch_size - len(again)]
        self.taken[topic] += len(fresh)
        return [self._hold(message) for message in [*again, *fresh]]

    def _hold(self, message: pb.Message) -> pb.Message:
        out = pb.Message()
        out.CopyFrom(message)
        system = out.system_properties
        system.receipt_handle = f"handle-{next(self._handles)}"
        system.delivery_attempt = self.attempts[system.message_id]
        system.body_encoding = system.body_encoding or pb.IDENTITY
        system.body_digest.type = pb.MD5
        system.body_digest.checksum = hashlib.md5(message.body).hexdigest().upper()
        self.held[system.receipt_handle] = message
        return out

    async def AckMessage(self, request: rpc.AckMessageRequest, context: Any) -> rpc.AckMessageResponse:  # noqa: N802
        return await self._answer("AckMessage", request, context, lambda: self.ack(request))

    def ack(self, request: rpc.AckMessageRequest) -> rpc.AckMessageResponse:
        answer = rpc.AckMessageResponse()
        for entry in request.entries:
            known = self.held.pop(entry.receipt_handle, None) is not None
            answer.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=OK if known else status(pb.INVALID_RECEIPT_HANDLE),
            )
        codes = {entry.status.code for entry in answer.entries}
        answer.status.CopyFrom(status(codes.pop() if len(codes) == 1 else pb.MULTIPLE_RESULTS))
        return answer

    async def ChangeInvisibleDuration(  # noqa: N802
        self, request: rpc.ChangeInvisibleDurationRequest, context: Any
    ) -> rpc.ChangeInvisibleDurationResponse:
        return await self._answer("ChangeInvisibleDuration", request, context, lambda: self.change(request))

    def change(self, request: rpc.ChangeInvisibleDurationRequest) -> rpc.ChangeInvisibleDurationResponse:
        message = self.held.pop(request.receipt_handle, None)
        if message is None:
            return rpc.ChangeInvisibleDurationResponse(
                status=status(pb.INVALID_RECEIPT_HANDLE), receipt_handle=request.receipt_handle
            )
        if request.invisible_duration.ToTimedelta() and request.group.name.startswith("push"):
            self.attempts[message.system_properties.message_id] += 1
            self.withheld.append(message)
        elif not request.invisible_duration.ToTimedelta():
            (self.withheld if self.fifo else self.given_back).append(message)
        handle = f"handle-{next(self._handles)}"
        self.held[handle] = message
        return rpc.ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)

    def bring_back(self) -> None:
        """What was withheld may come again, in the order in which it was sent."""
        of_topic = {
            message.system_properties.message_id: at for log in self.stored.values() for at, message in enumerate(log)
        }
        self.given_back += sorted(self.withheld, key=lambda message: of_topic[message.system_properties.message_id])
        self.withheld = []
        self.rung.set()

    async def SyncLiteSubscription(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(
            "SyncLiteSubscription", request, context, lambda: rpc.SyncLiteSubscriptionResponse(status=OK)
        )

    async def ForwardMessageToDeadLetterQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(
            "ForwardMessageToDeadLetterQueue",
            request,
            context,
            lambda: rpc.ForwardMessageToDeadLetterQueueResponse(status=OK),
        )

    async def EndTransaction(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer("EndTransaction", request, context, lambda: rpc.EndTransactionResponse(status=OK))

    async def RecallMessage(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer("RecallMessage", request, context, lambda: rpc.RecallMessageResponse(status=OK))

    async def NotifyClientTermination(self, request: Any, context: Any) -> Any:  # noqa: N802
        return await self._answer(
            "NotifyClientTermination", request, context, lambda: rpc.NotifyClientTerminationResponse(status=OK)
        )


class ServerThread:
    """A scripted server in a thread of its own, for synchronous tests."""

    def __init__(self, **given: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.server = ScriptedServer(**given)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.server.start())
        return self

    @property
    def endpoints(self) -> str:
        return self.server.endpoints

    def drop_streams(self) -> None:
        self._loop.call_soon_threadsafe(self.server.drop_streams)

    def say(self, command: rpc.TelemetryCommand | StreamEnd) -> None:
        self._loop.call_soon_threadsafe(self.server.say, command)

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


async def until(fact: Callable[[], Any], timeout: float = 60) -> Any:
    """Waits until the fact holds."""
    async with asyncio.timeout(timeout):
        while not (found := fact()):  # noqa: ASYNC110  the fact may be anything
            await asyncio.sleep(0.005)
    return found


def until_in_thread(fact: Callable[[], Any], timeout: float = 60) -> Any:
    """The same for synchronous tests."""
    deadline = time.monotonic() + timeout
    while not (found := fact()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)
    return found


def put(server: ScriptedServer, count: int, topic: str = "t", size: int = 0, first: int = 0) -> None:
    """Stores messages with bodies 0, 1, 2 … , padded with blanks to `size`."""
    request = rpc.SendMessageRequest()
    for number in range(first, first + count):
        message = request.messages.add(topic=pb.Resource(name=topic), body=str(number).ljust(size).encode())
        message.system_properties.message_id = f"{topic}-{number}"
    server.store(request)
