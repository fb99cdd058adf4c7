"""Consumers of the scenes: some give messages up, some read whole queues; and who sends dead letters back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from popclient import PopError
from popclient.admin import RedriveOrder
from popclient.aio import Admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.transport.convert import set_ms
from proof.history.events import CommitOffset, Forward, Pull, Pulled, ReadOffset, Redrive
from tests.support.checker import Outcome
from tests.support.workload import CALL_TIMEOUT_S, Consumer, Load, asked, digest_of, named, now_ms, outcome_of

REDRIVE_MAX = 50
BETWEEN_REDRIVES_S = 0.15
POLL_MS = 300


class GivingUpConsumer(Consumer):
    """Now and then it says that a message shall be a dead letter."""

    def _choose(self) -> Callable[[Any, str, str], Any]:
        return self._forward if self._chance.random() < 0.4 else super()._choose()

    async def _forward(self, stub: Any, message_id: str, handle: str) -> None:
        request = wire.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=self.group),
            topic=pb.Resource(name=self._load.topic),
            receipt_handle=handle,
            message_id=message_id,
        )
        invoked_ms = now_ms()
        outcome, _ = await asked(stub.ForwardMessageToDeadLetterQueue, request, self._name)
        self._load.history.add(Forward(outcome, invoked_ms, now_ms(), self.group, message_id, handle))
        await self._pause_after(outcome)


class Redriver:
    """Sends dead letters of a group back; a call without an answer is repeated under the same plan."""

    def __init__(self, load: Load, group: str) -> None:
        self._load = load
        self.group = group
        self._plans = 0

    async def run(self, endpoint: str) -> None:
        async with Admin(endpoint) as admin:
            while not self._load.stopping:
                try:
                    page = await admin.list_dead_letters(self.group, max_messages=REDRIVE_MAX, without_bodies=True)
                    if page.dead_letters:
                        await self._send_back(admin, [(each.id, each.origin_message_id) for each in page.dead_letters])
                except PopError:
                    pass
                await asyncio.sleep(BETWEEN_REDRIVES_S)

    async def _send_back(self, admin: Admin, letters: list[tuple[int, str]]) -> None:
        self._plans += 1
        plan_id = f"{self.group}-{self._plans}"
        orders = [RedriveOrder(letter_id) for letter_id, _ in letters]
        for _ in range(3):
            invoked_ms, outcome, sent = now_ms(), Outcome.OK, set[int]()
            try:
                answer = await admin.redrive_dead_letters(plan_id, self.group, orders)
                sent = {each.dead_letter_id for each in answer if each.state == "REDRIVEN"}
            except PopError:
                outcome = Outcome.UNKNOWN
            ids = tuple(message_id for _, message_id in letters)
            sent_ids = tuple(message_id for letter_id, message_id in letters if letter_id in sent)
            self._load.history.add(Redrive(outcome, invoked_ms, now_ms(), self.group, plan_id, ids, sent_ids))
            if outcome is Outcome.OK or self._load.stopping:
                return


class QueueReader(Consumer):
    """Reads one whole queue, the one of its number. Now and then it forgets its place, as after a restart."""

    _offset: int | None = None

    async def run(self, endpoint: str) -> None:
        self._queue = int(self._name.rpartition("-")[2])
        await super().run(endpoint)

    async def _receive(self, stub: Any) -> None:
        if self._offset is None or self._chance.random() < 0.05:
            await self._look(stub)
        if self._offset is not None:
            await self._pull(stub, self._offset)

    async def _work(self, stub: Any) -> None:
        if self._offset is not None and (self.careful or self._chance.random() < 0.5):
            await self._commit(stub, self._offset)

    async def _look(self, stub: Any) -> None:
        request = wire.GetOffsetRequest(group=pb.Resource(name=self.group), message_queue=self._message_queue())
        invoked_ms, offset = now_ms(), -1
        outcome, answer = await asked(stub.GetOffset, request, self._name)
        if outcome is Outcome.OK:
            offset = answer.offset if answer.status.code == pb.OK else -1
        elif answer is not None and answer.status.code in {pb.OFFSET_NOT_FOUND, pb.NOT_FOUND}:
            outcome = Outcome.OK
        self._load.history.add(ReadOffset(outcome, invoked_ms, now_ms(), self.group, self._queue, offset))
        self._offset = max(offset, 0) if outcome is Outcome.OK else self._offset
        await self._pause_after(outcome)

    async def _pull(self, stub: Any, offset: int) -> None:
        request = wire.PullMessageRequest(
            group=pb.Resource(name=self.group),
            message_queue=self._message_queue(),
            offset=offset,
            batch_size=self._chance.choice((1, 8, 32)),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        set_ms(request.long_polling_timeout, POLL_MS)
        invoked_ms, outcome, next_offset = now_ms(), Outcome.OK, -1
        messages = []
        try:
            async for frame in stub.PullMessage(request, metadata=named(self._name), timeout=CALL_TIMEOUT_S):
                match frame.WhichOneof("content"):
                    case "message":
                        system = frame.message.system_properties
                        messages.append(Pulled(system.queue_offset, system.message_id, digest_of(frame.message)))
                    case "next_offset":
                        next_offset = frame.next_offset
                    case "status":
                        outcome = outcome_of(frame.status)
        except grpc.aio.AioRpcError:
            outcome = Outcome.UNKNOWN
        if outcome is Outcome.OK and next_offset < 0:  # nothing came while it waited
            next_offset = offset
        self._load.history.add(
            Pull(outcome, invoked_ms, now_ms(), self.group, self._queue, offset, next_offset, tuple(messages))
        )
        if outcome is Outcome.OK:
            self._offset = next_offset
        await self._pause_after(outcome)

    async def _commit(self, stub: Any, offset: int) -> None:
        request = wire.UpdateOffsetRequest(
            group=pb.Resource(name=self.group), message_queue=self._message_queue(), offset=offset
        )
        invoked_ms = now_ms()
        outcome, _ = await asked(stub.UpdateOffset, request, self._name)
        self._load.history.add(CommitOffset(outcome, invoked_ms, now_ms(), self.group, self._queue, offset))
        await self._pause_after(outcome)

    def _message_queue(self) -> pb.MessageQueue:
        return pb.MessageQueue(topic=pb.Resource(name=self._load.topic), id=self._queue)
