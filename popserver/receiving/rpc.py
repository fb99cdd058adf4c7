"""The calls that receive messages: the checks of a request, the frames, and the end of holds if an answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from popproto.v1 import bulk_pb2, receiving_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.clients.clients import Clients
from popserver.engine.clock import Clock
from popserver.engine.undelivered import Undelivered
from popserver.model import handles
from popserver.model.errors import BadRequest, IllegalInvisibleTime
from popserver.model.message import BATCH_SIZE_MAX, ONE_FRAME_BATCH_SIZE_MAX, Delivery
from popserver.model.names import CONTROL
from popserver.model.retry import Holder
from popserver.pulling.parked import ParkedPulls
from popserver.receiving.flow import Polls
from popserver.settling.hold_release import HoldRelease
from popserver.settling.rpc import too_large
from popserver.transport import convert, status
from popserver.transport.call import Encodable, Write, encode
from popserver.transport.calls import AnyMethod, Caller, NotTaken, StreamMethod, poll_ms_of
from popserver.transport.limits import CallLimits

ATTEMPT_ID_LENGTH_MAX = 255


class HasAttemptId(Protocol):
    """A request that names a receive."""

    @property
    def attempt_id(self) -> str: ...


class ReceiveMethods:
    """ReceiveMessage, of simple and push consumers, and in one frame. A push consumer sets `auto_renew`."""

    def __init__(
        self,
        polls: Polls,
        hold_release: HoldRelease,
        clients: Clients,
        clock: Clock,
        undelivered: Undelivered,
        parked: ParkedPulls,
        limits: CallLimits,
        store_host: str,
    ) -> None:
        self._polls = polls
        self._hold_release = hold_release
        self._clients = clients
        self._clock = clock
        self._undelivered = undelivered
        self._parked = parked
        self._limits = limits
        self._store_host = store_host
        self._held_up = 0  # refused calls that wait for their answer
        self.methods: dict[str, AnyMethod] = {
            "ReceiveMessage": StreamMethod(
                self.receive_message,
                rights.consume_message_queue,
                refuse=self.refuse_to_receive,
                delay_refusal=self.delay_refusal,
            )
        }
        # On the wire a unary answer is a stream of one frame. As a stream, it has a time limit if its client does not
        # read.
        self.in_batches: dict[str, AnyMethod] = {
            "ReceiveBatch": StreamMethod(self.receive_batch, rights.consume_message_queue, encode=encode)
        }

    async def receive_message(self, request: wire.ReceiveMessageRequest, caller: Caller, write: Write) -> None:
        """Frames: status, messages, delivery timestamp (protocol 1.7). The request's queue id has no effect."""
        deliveries = await self._deliveries(request, caller, BATCH_SIZE_MAX, in_one_frame=False, waits=True)
        await self._write(deliveries, self._frames(deliveries, request), caller, write)

    async def receive_batch(self, request: wire.ReceiveMessageRequest, caller: Caller, write: Write) -> None:
        """The same in one frame, with up to 128 messages. A polling time of 0: do not wait (docs/design/0019)."""
        waits = not request.HasField("long_polling_timeout") or convert.duration_ms(request.long_polling_timeout) > 0
        deliveries = await self._deliveries(request, caller, ONE_FRAME_BATCH_SIZE_MAX, in_one_frame=True, waits=waits)
        await self._write(deliveries, self._one_frame(deliveries, request, caller), caller, write)

    async def delay_refusal(self, request: wire.ReceiveMessageRequest | BadRequest | None, caller: Caller) -> None:
        """Delay a refusal: the Go push client repeats a receive 20 ms after any refusal (protocol 1.7)."""
        # A call that was refused because of its headers has no request.
        pushes = request is None or (not isinstance(request, BadRequest) and request.auto_renew)
        if pushes and caller.header("x-mq-language") == "GO" and self._held_up < self._limits.held_up_max:
            self._held_up += 1
            try:
                await asyncio.sleep(self._limits.push_refusal_pause_ms / 1_000)
            finally:
                self._held_up -= 1

    def refuse_to_receive(self, refused: pb.Status) -> list[wire.ReceiveMessageResponse]:
        return [wire.ReceiveMessageResponse(status=refused), convert.delivered_at(self._clock.now_ms())]

    async def _deliveries(
        self, request: wire.ReceiveMessageRequest, caller: Caller, size_max: int, *, in_one_frame: bool, waits: bool
    ) -> list[Delivery]:
        """The messages that are granted to the caller; none if its client has left meanwhile."""
        if request.batch_size <= 0:
            raise BadRequest(f"the batch size is {request.batch_size}; ask for 1 to {size_max} messages")
        pushes = request.auto_renew
        wanted = convert.filter_of(request.filter_expression)
        invisible_ms = 0 if pushes else invisible_ms_of(request, self._limits)
        attempt_id, poll_ms = None, 0
        if request.attempt_id:
            attempt_id = handles.attempt_of_client(caller.client_id, attempt_id_of(request))
        if waits:
            poll_ms = poll_ms_of(request, caller, self._limits, self._polls.open + self._parked.count)
        clients = self._clients
        client = clients.call_opened(caller.client_id)
        if pushes:
            clients.pushes(caller.client_id)
        try:
            deliveries = await self._polls.receive(
                caller.resource(request.group),
                caller.resource(request.message_queue.topic),
                wanted=wanted,
                batch_size=min(request.batch_size, size_max),
                invisible_ms=invisible_ms,
                holder=Holder.PUSH if pushes else Holder.SIMPLE,
                client_id=caller.client_id,
                poll_until_ms=self._clock.deadline_ms(poll_ms),
                attempt_id=attempt_id,
                # A push client without ordered consumption would process several messages of a message group at once.
                heads_only=pushes and not client.works_in_order,
                in_one_frame=in_one_frame,
                kind=client.kind,
            )
            caller.carries(self._undelivered, _body_bytes(deliveries))
            if caller.user:
                await self._check_again(deliveries, request, caller)
        finally:
            clients.call_closed(client)
        if pushes and client.has_left:
            # The client left before this grant, so no other code ends these holds.
            self._hold_release.cancel_delivery(deliveries)
            return []
        return deliveries

    async def _check_again(
        self, deliveries: list[Delivery], request: wire.ReceiveMessageRequest, caller: Caller
    ) -> None:
        """Check the rights again after the wait. If the caller has lost them, the messages become READY again.

        So they do if a message of the batch comes from a topic that the caller may not read.
        """
        keys = [each.stored.message_key for each in deliveries]
        try:
            caller.require(rights.consume_message_queue(request, caller))
            await caller.check_origins(request.message_queue.topic.name, keys)
        except BaseException:
            self._hold_release.cancel_delivery(deliveries)
            raise

    def _frames(self, deliveries: list[Delivery], request: wire.ReceiveMessageRequest) -> Iterator[Encodable]:
        """Made one by one, as they are written."""
        common = self._common_fields(request)
        yield wire.ReceiveMessageResponse(status=status.OK if deliveries else _NOTHING)
        for delivery in deliveries:
            frame = wire.ReceiveMessageResponse()
            convert.fill_delivered(frame.message, delivery, common)
            yield frame
        yield convert.delivered_at(self._clock.now_ms())

    def _one_frame(
        self, deliveries: list[Delivery], request: wire.ReceiveMessageRequest, caller: Caller
    ) -> Iterator[Encodable]:
        """The frame. When it is encoded, it empties the list of deliveries, so that only one copy is in memory."""
        common = self._common_fields(request, pb.CRC32)

        def encode() -> bytes:
            answer = receiving_pb2.ReceiveBatchResponse(status=status.OK if deliveries else _NOTHING)
            for delivery in deliveries:
                convert.fill_delivered(answer.messages.add(), delivery, common)
            encoded: bytes = answer.SerializeToString()
            # The bodies are counted already; the other fields can be several times as large.
            caller.carries(self._undelivered, len(encoded) - _body_bytes(deliveries))
            deliveries.clear()
            return encoded

        yield _OneFrame(encode)

    def _common_fields(
        self, request: wire.ReceiveMessageRequest, digest: pb.DigestType.ValueType = pb.MD5
    ) -> pb.Message:
        # Push consumers get no invisible duration.
        invisible_ms = None if request.auto_renew else convert.duration_ms(request.invisible_duration)
        return convert.common_fields(request.message_queue.topic, self._store_host, invisible_ms, digest=digest)

    async def _write(
        self, deliveries: list[Delivery], frames: Iterable[Encodable], caller: Caller, write: Write
    ) -> None:
        handles = [each.receipt_handle for each in deliveries]  # a frame may empty the list of deliveries
        try:
            async with asyncio.timeout(self._limits.answer_ms / 1_000):
                for frame in frames:
                    await write(frame)
        except TimeoutError:
            self._hold_release.abandon_holds(handles)
            raise NotTaken from None
        except BaseException:
            # The holds of all messages: clients process a batch only after they have read all of it.
            self._hold_release.abandon_holds(handles)
            raise
        if handles:
            # A short answer counts as written before it is sent.
            caller.call.on_end(lambda: self._call_ended(caller, handles))

    def _call_ended(self, caller: Caller, handles: list[str]) -> None:
        if caller.call.is_cancelled:
            self._hold_release.abandon_holds(handles)


class _OneFrame:
    """A frame that is made when it is sent."""

    def __init__(self, encode: Callable[[], bytes]) -> None:
        self._encode = encode

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self._encode()


def _body_bytes(deliveries: Iterable[Delivery]) -> int:
    return sum(len(each.stored.message.body) for each in deliveries)


def invisible_ms_of(request: wire.ReceiveMessageRequest | bulk_pb2.ReceiveBulkRequest, limits: CallLimits) -> int:
    """The invisible duration of a receive in ms. Raises `IllegalInvisibleTime` if it is too short or too long."""
    invisible_ms = convert.duration_ms(request.invisible_duration)
    if invisible_ms < limits.invisible_ms_min:
        less = f"{max(invisible_ms, 1)}ms"
        raise IllegalInvisibleTime(
            f"the invisibleTime is too small: {invisible_ms} ms, at least {limits.invisible_ms_min} ms are allowed; to"
            f" allow less, start the server with: popmq serve --min-invisible {less}, or"
            f" embedded(min_invisible='{less}')"
        )
    if invisible_ms > limits.invisible_ms_max:
        raise too_large(invisible_ms, limits)
    return invisible_ms


def attempt_id_of(request: HasAttemptId) -> str | None:
    """The receive's attempt id; None if it is blank (protocol 5.3). Raises `BadRequest` for an illegal one."""
    attempt_id = request.attempt_id.strip()
    if len(attempt_id) > ATTEMPT_ID_LENGTH_MAX:
        raise BadRequest(
            f"attempt id '{attempt_id[:32]}…' has {len(attempt_id)} characters; at most {ATTEMPT_ID_LENGTH_MAX} are"
            " allowed"
        )
    if CONTROL.search(attempt_id):
        raise BadRequest(f"attempt id {attempt_id[:32]!r} contains a control character; leave it out")
    return attempt_id or None


_NOTHING = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no message within the polling time; ask again")
