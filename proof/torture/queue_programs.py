"""Programs that read whole queues by popclient: one that pulls all of them, and members that share them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from popclient import (
    ClientConfig,
    ConsumeConcurrentlyStatus,
    MessageQueue,
    MessageView,
    PullConsumer,
    QueuePushConsumer,
)
from popclient._consume.context import CONSUME_START_TIME
from popclient._progress.remote import RemoteOffsetStore
from popclient._queue_push import core
from proof.torture.program_clients import TIMEOUT_S
from proof.torture.program_lines import Lines
from tests.support.workload import digest

POLL_S = 1
COMMIT_S = 0.3  # so that a kill comes between two commits, and some commits are there


class PullProgram:
    """It begins where the program before it has committed."""

    def __init__(self, endpoint: str, topic: str, group: str, lines: Lines, name: str) -> None:
        config = ClientConfig(endpoint, request_timeout=TIMEOUT_S)
        self._consumer = PullConsumer(config, group, consume_from="CONSUME_FROM_FIRST_OFFSET")
        self._queues = self._consumer.assign(topic)
        self._lines = lines
        self._chance = random.Random(name)

    def run(self) -> None:
        while True:
            say_progress(self._consumer, self._queues, self._lines)
            for _ in range(8):
                self._poll()
                if self._chance.random() < 0.5:
                    self._commit()

    def _poll(self) -> None:
        begins = {each.queue_id: self._consumer.position(each) for each in self._queues}

        def poll() -> dict[str, Any]:
            messages = self._consumer.poll(POLL_S)
            return {
                "pulls": [
                    {
                        "queue": each.queue_id,
                        "offset": begins[each.queue_id],
                        "next_offset": self._consumer.position(each),
                        "messages": places_of([got for got in messages if got.queue_id == each.queue_id]),
                    }
                    for each in self._queues
                ]
            }

        self._lines.call("Poll", poll)

    def _commit(self) -> None:
        for each in self._queues:
            offset = self._consumer.position(each)
            commit = partial(self._consumer.commit, {each: offset})
            self._lines.call("CommitOffset", commit, queue=each.queue_id, offset=offset)


class MemberProgram:
    """A member of the group: it says what its listener gets and which progress it commits, which nobody confirms."""

    def __init__(self, endpoint: str, topic: str, group: str, lines: Lines, name: str) -> None:
        self._lines = lines
        self._name = name
        config = ClientConfig(endpoint, request_timeout=TIMEOUT_S)
        with PullConsumer(config, group, consume_from="CONSUME_FROM_FIRST_OFFSET") as reader:
            say_progress(reader, reader.queues(topic), lines)
        say_commits(lines)
        self._consumer = QueuePushConsumer(
            config, group, topic, self._consume, consume_from="CONSUME_FROM_FIRST_OFFSET", persist_interval=COMMIT_S,
            consume_message_batch_max_size=8, consume_threads=4,
        )  # fmt: skip
        self._consumer.start()

    def run(self) -> None:
        threading.Event().wait()

    def _consume(self, messages: Sequence[MessageView], context: Any) -> ConsumeConcurrentlyStatus:
        queue = context.message_queue.queue_id
        number = self._lines.begin("Batch", queue=queue, client=self._name, messages=places_of(messages))
        time.sleep(0.01)
        self._lines.end(number)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


def say_progress(consumer: PullConsumer, queues: Collection[MessageQueue], lines: Lines) -> None:
    """Of the group, as the server tells it."""

    def committed(queue: MessageQueue) -> dict[str, int]:
        stored = consumer.committed(queue)
        return {"offset": -1 if stored is None else stored}

    for each in queues:
        lines.call("ReadOffset", partial(committed, each), queue=each.queue_id)


def say_commits(lines: Lines) -> None:
    """From now on a consumer of this process commits soon, and says what it may commit, by itself or with a pull. No
    setting names the first commit, which comes after 10 s, when the program is mostly dead."""
    vars(core)["PERSIST_FIRST"] = COMMIT_S
    update_offset = RemoteOffsetStore.update_offset

    def said(store: RemoteOffsetStore, queue: MessageQueue, offset: int, increase_only: bool) -> None:
        lines.unconfirmed("CommitOffset", queue=queue.queue_id, offset=offset)
        update_offset(store, queue, offset, increase_only)

    RemoteOffsetStore.update_offset = said  # type: ignore[method-assign, assignment]


def places_of(messages: Sequence[MessageView]) -> list[tuple[int, str, str]]:
    """Offset, message id and digest of each, without the property that a member adds."""
    places = []
    for each in messages:
        sent = {name: value for name, value in each.properties.items() if name != CONSUME_START_TIME}
        places.append((each.queue_offset, each.message_id, digest(each.body, sent)))
    return places
