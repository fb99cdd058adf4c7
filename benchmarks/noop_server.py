"""The no-op server: the upper bound that shows the cost of storage.

It is `popmq serve` with another writer, which answers at once instead of passing requests to a thread and a database.
All other parts are the product's own code.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

from benchmarks import noop_pulls
from popserver.broker import engine
from popserver.database.database import Database
from popserver.engine import transaction
from popserver.engine.clock import Clock
from popserver.engine.meters import Meters
from popserver.engine.transaction import Transaction
from popserver.engine.wakeups import Effects
from popserver.messages.stored import Append
from popserver.model import handles
from popserver.model.errors import PopError
from popserver.model.handles import Receipt
from popserver.model.message import ONE_FRAME_BATCH_SIZE_MAX, Delivery, Message, SendResult, StoredMessage
from popserver.model.topic import message_key
from popserver.pulling import commit, read
from popserver.receiving.batch import Receive, Received
from popserver.settling import ack

# Topics whose names begin like this have a special behaviour.
EMPTY_TOPIC = "bench-empty"  # never has a message, so polls wait
ECHO_TOPIC = "bench-echo"  # delivers each sent message once
HOLD_MS = 3_600_000


class InstantWriter:
    """Replaces `popserver.engine.writer.Writer`.

    Append, receive, ack and commits of offsets get canned results, as looks of pulls do (`noop_pulls`); what happens
    once, such as creating a topic, is done on a database in memory.
    """

    waiting = 0

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *_others: Any,
    ) -> None:
        self._database = database
        self._clock = clock
        self.effects = Effects()
        self.meters = Meters()
        self.batch_began_s: float | None = None  # no batch ever runs
        self.waiting = 0
        self.announcement: Any = None
        self._conn = database.connect_writer()
        self._offset = 0
        self._canned: dict[tuple[int, int], list[Delivery]] = {}
        self._sent: defaultdict[int, list[Message]] = defaultdict(list)
        self._instant: dict[Any, Callable[[Any], Any]] = {
            Append: self._append,
            Receive: self._receive,
            ack.Ack: self._ack,
            ack.PlainAck: self._ack,
            commit.Commit: noop_pulls.commit,
            transaction.Read: self._read,
        }

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def submit(self, request: Any, **_sizes: int) -> asyncio.Future[Any]:
        answer = self._loop.create_future()
        instant = self._instant.get(type(request))
        result = instant(request) if instant is not None else self._execute(request)
        if isinstance(result, PopError):
            answer.set_exception(result)
        else:
            answer.set_result(result)
        return answer

    async def idle(self) -> None:
        return

    async def close(self) -> None:
        return

    def _append(self, wish: Append) -> list[SendResult]:
        if wish.topic.name.name.startswith(ECHO_TOPIC):
            self._sent[wish.topic.topic_id] += wish.messages
            self._loop.call_soon(self.effects.ready, {wish.topic.topic_id: None})
        first, number = self._offset, wish.topic.queues[0].number
        self._offset += len(wish.messages)
        return [SendResult(each.message_id, number, offset) for offset, each in enumerate(wish.messages, start=first)]

    def _receive(self, wish: Receive) -> Received:
        name = wish.topic.name.name
        if name.startswith(EMPTY_TOPIC):
            return Received([], more=False)
        if name.startswith(ECHO_TOPIC):
            sent = self._sent[wish.topic.topic_id]
            taken, self._sent[wish.topic.topic_id] = sent[: wish.batch_size], sent[wish.batch_size :]
            return Received(self._deliveries(wish, taken), more=bool(self._sent[wish.topic.topic_id]))
        key = (wish.group.group_id, wish.topic.topic_id)
        canned = self._canned.get(key)
        if canned is None:
            made = [_message(wish, index) for index in range(ONE_FRAME_BATCH_SIZE_MAX)]
            canned = self._canned[key] = self._deliveries(wish, made)
        return Received(canned[: wish.batch_size], more=True)

    def _ack(self, wish: ack.Ack) -> list[None]:
        return [None] * len(wish.receipts)

    def _read(self, request: transaction.Read[Any]) -> Any:
        # There is no other writer, so it needs no transaction.
        try:
            return request.query(self._conn)
        except PopError as refusal:
            return refusal

    def _deliveries(self, wish: Receive, made: list[Message]) -> list[Delivery]:
        now_ms, queue = self._clock.now_ms(), wish.topic.queues[0]
        until_ms = now_ms + HOLD_MS
        deliveries = []
        for offset, each in enumerate(made):
            key = message_key(queue.queue_id, offset)
            stored = StoredMessage(each, key, queue.number, offset, now_ms)
            handle = handles.encode_receipt(Receipt(wish.group.group_id, key, 1 << 62, until_ms))
            deliveries.append(Delivery(stored, handle, 1, until_ms))
        return deliveries

    def _execute(self, request: Any) -> Any:
        self._database.begin(self._conn)
        (result,) = request.operation(Transaction.at(self._conn, self._clock.now_ms()), [request])
        self._conn.exec_driver_sql("COMMIT")
        return result


def _message(wish: Receive, index: int) -> Message:
    message_id = f"01{index:032X}"
    return Message(wish.topic.name, message_id, bytes(1_024), tag="bench", keys=("key",), born_host="bench")


def main(arguments: list[str]) -> int:
    """`popmq serve` without a database; it has the same options."""
    from benchmarks.serve import serve

    no_reads = mock.patch.multiple(read, read_queues=noop_pulls.read_queues, ends_of=noop_pulls.ends_of)
    with mock.patch.object(engine, "Writer", InstantWriter), no_reads:
        return serve([*arguments, "--database-url", "sqlite://"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
