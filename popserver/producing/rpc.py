"""The calls of producers: send (each message has its own outcome), end a transaction, recall a delayed message."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
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
from popserver.producing.sent import sent_message
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method
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
        self.methods: dict[str, AnyMethod] = {
            "SendMessage": Method(self.send_message, rights.send, bytes_max=limits.request_bytes_max),
            "EndTransaction": Method(self.end_transaction, rights.publish),
            "RecallMessage": Method(self.recall_message, rights.publish),
        }

    async def send_message(self, request: wire.SendMessageRequest, caller: Caller) -> wire.SendMessageResponse:
        """One entry per message, in order; a message that breaks a rule fails alone (protocol 1.5)."""
        sent = request.messages
        if not sent:
            raise MessageCorrupted("the request holds no message; send at least one")
        if len(sent) > self._limits.messages_max:
            raise BadRequest(
                f"the request holds {len(sent)} messages, at most {self._limits.messages_max} are allowed; split it"
            )
        topic = caller.resource(sent[0].topic)
        read = self._read(sent, topic)
        good = [each for each in read if isinstance(each, Message)]
        stored: Iterator[Outcome] = iter(())
        if good:
            try:
                stored = iter(await self._sending.send(good, caller.client_id))
            except PopError as refusal:
                stored = itertools.repeat(refusal)
        outcomes = [next(stored) if isinstance(each, Message) else each for each in read]
        return _answer(sent, topic, outcomes)

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

    def _read(self, sent: Sequence[pb.Message], topic: Resource) -> list[Message | PopError]:
        """Each message, or why it is refused. Raises `MessageCorrupted` for messages of several topics."""
        name, namespace = sent[0].topic.name, sent[0].topic.resource_namespace
        now_ms, calendar_ms, _ = self._clock.times()
        read: list[Message | PopError] = []
        for each in sent:
            # Compares field by field: this is several times faster than comparing whole messages.
            named = each.topic
            if named.name != name or named.resource_namespace != namespace:
                raise MessageCorrupted(
                    f"the request's messages are of the topics '{name}' and '{named.name}'; send one request per topic"
                )
            try:
                read.append(sent_message(each, topic, now_ms, calendar_ms))
            except PopError as refusal:
                read.append(refusal)
        return read


def _answer(sent: Sequence[pb.Message], topic: Resource, outcomes: Sequence[Outcome]) -> wire.SendMessageResponse:
    answer, refused = wire.SendMessageResponse(), False
    new_entry = answer.entries.add  # entries are filled in place, because one that is made alone is copied
    for each, outcome in zip(sent, outcomes, strict=True):
        entry = new_entry()
        if isinstance(outcome, PopError):
            refused = True
            entry.status.CopyFrom(status.of(outcome))
            entry.message_id = each.system_properties.message_id
            continue
        entry.CopyFrom(_STORED)
        # For a repeated idempotency key this is the id of the first message.
        entry.message_id = outcome.message_id
        entry.offset = outcome.offset
        if outcome.queue_number is not None:
            entry.queue_id = outcome.queue_number
        if outcome.transaction_id:
            entry.transaction_id = outcome.transaction_id
        if outcome.deliver_at_ms is not None:
            entry.recall_handle = recall_handle(topic, outcome.message_id, outcome.deliver_at_ms)
            convert.set_ms(entry.delivery_timestamp, outcome.deliver_at_ms)
    answer.status.CopyFrom(status.combined([entry.status for entry in answer.entries]) if refused else status.OK)
    return answer


_STORED = wire.SendResultEntry(status=status.OK)  # copied whole: that costs half of filling in its status
_RESOLUTIONS = {0: None, pb.COMMIT: Resolution.COMMIT, pb.ROLLBACK: Resolution.ROLLBACK}


def recall_handle(topic: Resource, message_id: str, deliver_at_ms: int) -> str:
    """The handle by which the delayed message can be taken back."""
    return handles.encode_recall(RecallHandle(topic.name, BROKER_NAME, deliver_at_ms, message_id))


def resolution(number: int) -> Resolution | None:
    """The decision of a producer; None for "not decided yet". Raises `BadRequest` for an unknown number."""
    if number not in _RESOLUTIONS:
        raise BadRequest(f"transaction resolution {number} is not known; use COMMIT (1) or ROLLBACK (2)")
    return _RESOLUTIONS[number]
