"""Producers of the scenes: message groups, delayed messages, half messages. Raw stubs, nothing retried unseen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.transport.convert import set_ms
from proof.history.events import DelayedSend, EndTransaction, HalfSend, OrderedSend
from tests.support.checker import Outcome, Send
from tests.support.workload import (
    PAUSE_AFTER_FAILURE_S,
    Producer,
    asked,
    digest_of,
    now_ms,
    outcome_of,
)

MESSAGE_GROUPS = 6  # of each producer
DELAY_MS = (-50, 1_500)


class OrderedProducer(Producer):
    """Each message group has one producer, which waits for each answer."""

    def _message(self) -> pb.Message:
        message = super()._message()
        system = message.system_properties
        system.message_type = pb.FIFO
        system.message_group = f"{self._name}-group-{self._chance.randrange(MESSAGE_GROUPS)}"
        return message

    def _event(self, message: pb.Message, outcome: Outcome, invoked_ms: float) -> Send:
        plain = super()._event(message, outcome, invoked_ms)
        return OrderedSend(
            plain.outcome,
            plain.invoked_ms,
            plain.completed_ms,
            plain.message_id,
            plain.digest,
            message.system_properties.message_group,
        )


class DelayingProducer(Producer):
    def _message(self) -> pb.Message:
        message = super()._message()
        system = message.system_properties
        system.message_type = pb.DELAY
        set_ms(system.delivery_timestamp, round(time.time() * 1_000) + self._chance.randint(*DELAY_MS))
        return message

    def _event(self, message: pb.Message, outcome: Outcome, invoked_ms: float) -> Send:
        plain = super()._event(message, outcome, invoked_ms)
        due_ms = message.system_properties.delivery_timestamp.ToMilliseconds() - time.time() * 1_000 + now_ms()
        return DelayedSend(
            plain.outcome, plain.invoked_ms, plain.completed_ms, plain.message_id, plain.digest, due_ms
        )  # fmt: skip


class HalfProducer(Producer):
    """Sends half messages, and commits, rolls back or forgets each; an unknown answer is sometimes asked for again."""

    async def _send(self, stub: Any, batch: list[pb.Message]) -> None:
        invoked_ms = now_ms()
        request = wire.SendMessageRequest(messages=batch)
        _, answer = await asked(stub.SendMessage, request, self._name)
        entries: Iterable[wire.SendResultEntry | None] = [None] * len(batch) if answer is None else answer.entries
        open_halves = []
        for each, entry in zip(batch, entries, strict=True):
            outcome = Outcome.UNKNOWN if entry is None else outcome_of(entry.status)
            message_id = each.system_properties.message_id
            transaction_id = entry.transaction_id if entry is not None else ""
            self._load.history.add(
                HalfSend(outcome, invoked_ms, now_ms(), message_id, digest_of(each), transaction_id)
            )  # fmt: skip
            if transaction_id:
                open_halves.append((message_id, transaction_id))
        if not open_halves:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        await asyncio.gather(*(self._decide(stub, *each) for each in open_halves))

    async def _decide(self, stub: Any, message_id: str, transaction_id: str) -> None:
        resolution = self._chance.choice((pb.COMMIT, pb.COMMIT, pb.COMMIT, pb.ROLLBACK, None))
        if resolution is None:
            return
        outcome = await self._end(stub, message_id, transaction_id, resolution)
        if outcome is Outcome.UNKNOWN and self._chance.random() < 0.7:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            await self._end(stub, message_id, transaction_id, resolution)

    async def _end(self, stub: Any, message_id: str, transaction_id: str, resolution: Any) -> Outcome:
        request = wire.EndTransactionRequest(
            topic=pb.Resource(name=self._load.topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=resolution,
        )
        invoked_ms = now_ms()
        outcome, _ = await asked(stub.EndTransaction, request, self._name)
        commits = resolution == pb.COMMIT
        self._load.history.add(EndTransaction(outcome, invoked_ms, now_ms(), message_id, commits))
        return outcome

    def _message(self) -> pb.Message:
        message = super()._message()
        message.system_properties.message_type = pb.TRANSACTION
        return message
