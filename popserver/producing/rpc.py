"""The calls of producers: send (each message has its own outcome), end a transaction, recall a delayed message."""

from __future__ import annotations

from collections.abc import Sequence

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.engine.clock import Clock
from popserver.model import handles
from popserver.model.errors import BadRequest, MessageCorrupted, PopError
from popserver.model.handles import RecallHandle
from popserver.model.message import Message, SendResult
from popserver.model.names import Resource
from popserver.producing.checks import Transactions
from popserver.producing.rules import Resolution
from popserver.producing.scheduled import Pending
from popserver.producing.send import Sending
from popserver.transport import convert, status
from popserver.transport.calls import Caller
from popserver.transport.convert import BROKER_NAME
from popserver.transport.limits import CallLimits

Outcome = SendResult | PopError


class ProducerMethods:
    """The calls of producers."""

    def __init__(
        self, sending: Sending, transactions: Transactions, pending: Pending, clock: Clock, limits: CallLimits
    ) -> None:
        self._sending = sending
        self._transactions = transactions
        self._pending = pending
        self._clock = clock
        self._limits = limits
        self.bytes_max = limits.request_bytes_max

    async def send_message(self, request: wire.SendMessageRequest, caller: Caller) -> wire.SendMessageResponse:
        """One entry per message, in order; a message that breaks a rule fails alone (protocol 1.5)."""
        sent = request.messages
        self._check(sent)
        read = self._read(sent, caller)
        good = [each for each in read if isinstance(each, Message)]
        stored = iter(await self._store(good, caller.client_id))
        outcomes = [next(stored) if isinstance(each, Message) else each for each in read]
        return _answer(sent, caller.resource(sent[0].topic), outcomes)

    async def end_transaction(self, request: wire.EndTransactionRequest, caller: Caller) -> wire.EndTransactionResponse:
        """Idempotent, the first decision counts; an unspecified resolution decides nothing (protocol 1.11)."""
        await self._transactions.end(
            caller.resource(request.topic),
            request.message_id,
            request.transaction_id,
            resolution(request.resolution),
        )
        return wire.EndTransactionResponse(status=status.OK)

    async def recall_message(self, request: wire.RecallMessageRequest, caller: Caller) -> wire.RecallMessageResponse:
        """Take a delayed message back before it is due (protocol 8.2)."""
        topic = caller.resource(request.topic)
        message_id = await self._pending.recall(topic, request.recall_handle)
        return wire.RecallMessageResponse(status=status.OK, message_id=message_id)

    def _check(self, sent: Sequence[pb.Message]) -> None:
        if not sent:
            raise MessageCorrupted("the request holds no message; send at least one")
        if len(sent) > self._limits.messages_max:
            raise BadRequest(
                f"the request holds {len(sent)} messages, at most {self._limits.messages_max} are allowed; split it"
            )
        name, namespace = sent[0].topic.name, sent[0].topic.resource_namespace
        for each in sent:
            # Compares field by field: this is several times faster than comparing whole messages.
            topic = each.topic
            if topic.name != name or topic.resource_namespace != namespace:
                raise MessageCorrupted(
                    f"the request's messages are of the topics '{name}' and '{topic.name}'; send one request per topic"
                )

    def _read(self, sent: Sequence[pb.Message], caller: Caller) -> list[Message | PopError]:
        topic = caller.resource(sent[0].topic)
        now_ms = self._clock.now_ms()
        read: list[Message | PopError] = []
        for each in sent:
            try:
                read.append(convert.message(each, topic, now_ms))
            except PopError as refusal:
                read.append(refusal)
        return read

    async def _store(self, batch: list[Message], client_id: str) -> Sequence[Outcome]:
        if not batch:
            return ()
        try:
            return await self._sending.send(batch, client_id)
        except PopError as refusal:
            return [refusal] * len(batch)


def _answer(sent: Sequence[pb.Message], topic: Resource, outcomes: Sequence[Outcome]) -> wire.SendMessageResponse:
    entries, statuses = [], []
    for each, outcome in zip(sent, outcomes, strict=True):
        message_id = each.system_properties.message_id
        if isinstance(outcome, PopError):
            statuses.append(status.of(outcome))
            entries.append(wire.SendResultEntry(status=statuses[-1], message_id=message_id))
        else:
            statuses.append(status.OK)
            # For a repeated idempotency key this is the id of the first message.
            message_id = outcome.message_id
            entry = wire.SendResultEntry(status=status.OK, message_id=message_id, offset=outcome.offset)
            if outcome.transaction_id:
                entry.transaction_id = outcome.transaction_id
            if outcome.deliver_at_ms is not None:
                entry.recall_handle = recall_handle(topic, message_id, outcome.deliver_at_ms)
            entries.append(entry)
    return wire.SendMessageResponse(status=status.over_all(statuses), entries=entries)


_RESOLUTIONS = {0: None, pb.COMMIT: Resolution.COMMIT, pb.ROLLBACK: Resolution.ROLLBACK}


def recall_handle(topic: Resource, message_id: str, deliver_at_ms: int) -> str:
    """The handle by which the delayed message can be taken back."""
    return handles.encode_recall(RecallHandle(topic.name, BROKER_NAME, deliver_at_ms, message_id))


def resolution(number: int) -> Resolution | None:
    """What a producer decided; None for "not decided yet". Raises `BadRequest` for an unknown number."""
    if number not in _RESOLUTIONS:
        raise BadRequest(f"transaction resolution {number} is not known; use COMMIT (1) or ROLLBACK (2)")
    return _RESOLUTIONS[number]
