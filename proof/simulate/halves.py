"""A simulated producer of half messages."""

from __future__ import annotations

import random

from popserver.model.errors import Internal
from popserver.model.message import Message, SendResult
from popserver.model.topic import MessageType
from popserver.producing.rules import Resolution
from proof.history.events import EndTransaction, HalfSend
from proof.simulate.clients import TOPIC, Diary
from tests.support.checker import Outcome
from tests.support.workload import digest


class HalfProducer:
    """Sends half messages, and commits, rolls back or forgets each; an unknown end is asked for again."""

    def __init__(self, diary: Diary, number: int) -> None:
        self._diary = diary
        self._number = number
        self._count = 0
        self._open: list[tuple[str, str, bool]] = []  # message id, transaction id, whether it is to be committed

    async def act(self, chance: random.Random) -> None:
        if self._open and chance.random() < 0.6:
            await self._end(*self._open.pop(chance.randrange(len(self._open))))
        else:
            await self._send(commits=chance.random() < 0.75, is_forgotten=chance.random() < 0.1)

    async def _send(self, *, commits: bool, is_forgotten: bool) -> None:
        self._count += 1
        message_id = f"h{self._number}-{self._count}"
        body = b"body " + message_id.encode()
        message = Message(TOPIC, message_id, body, message_type=MessageType.TRANSACTION)
        diary, transaction_id = self._diary, ""
        invoked, outcome = diary.now(), Outcome.UNKNOWN
        try:
            outcome, answer = await diary.outcome(diary.machine.broker.send([message], f"p{self._number}"))
            if answer is not None and isinstance(answer[0], SendResult):
                transaction_id = answer[0].transaction_id
            elif answer is not None:
                outcome = Outcome.UNKNOWN if isinstance(answer[0], Internal) else Outcome.REFUSED
        finally:
            diary.history.add(HalfSend(outcome, invoked, diary.now(), message_id, digest(body, {}), transaction_id))
        if transaction_id and not is_forgotten:
            self._open.append((message_id, transaction_id, commits))

    async def _end(self, message_id: str, transaction_id: str, commits: bool) -> None:
        diary = self._diary
        invoked, outcome = diary.now(), Outcome.UNKNOWN
        resolution = Resolution.COMMIT if commits else Resolution.ROLLBACK
        try:
            outcome, _ = await diary.outcome(
                diary.machine.broker.producing.transactions.end(TOPIC, message_id, transaction_id, resolution)
            )
        finally:
            diary.history.add(EndTransaction(outcome, invoked, diary.now(), message_id, commits))
            if outcome is Outcome.UNKNOWN:
                self._open.append((message_id, transaction_id, commits))
