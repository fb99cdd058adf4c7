"""Two PopMQ servers in this process, and a mirror from the first to the second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import popserver
from popclient import ClientConfig, Message, Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.aio.admin.admin import Admin as AioAdmin
from popclient.mirror.counts import State
from popclient.mirror.mirror import Mirror
from popclient.mirror.plans import Task, look, make
from popclient.mirror.popmq import PopMQSide
from popclient.mirror.records import FileRecord, record_name
from popserver import EmbeddedBroker


class Pair(NamedTuple):
    """The servers by what they are for the mirror; a folder for its state."""

    old: EmbeddedBroker
    new: EmbeddedBroker
    folder: Path

    @property
    def reversed(self) -> Pair:
        return self._replace(old=self.new, new=self.old)

    def admin(self, of: EmbeddedBroker) -> Admin:
        return Admin(of.endpoint)

    def make_groups(self, *names: str) -> None:
        with self.admin(self.old) as admin:
            for name in names:
                admin.create_group(name)

    def send(self, topic: str, *bodies: str, **more: Any) -> list[str]:
        with Producer(self.old.endpoint) as producer:
            receipts = [producer.send(Message(topic, body, **more)) for body in bodies]
        return [each.message_id for each in receipts]

    def send_many(self, topic: str, count: int) -> list[str]:
        with Producer(self.old.endpoint) as producer:
            outcome = producer.send_many([Message(topic, str(number)) for number in range(count)])
        outcome.raise_for_failures()
        return [each.message_id for each in outcome.receipts]

    def stored(self, of: EmbeddedBroker, topic: str) -> int:
        with self.admin(of) as admin:
            return sum(each.message_count for each in admin.list_topics() if each.name == topic)

    def received_ids(self, of: EmbeddedBroker, group: str, topic: str, count: int) -> list[str]:
        """The ids of all messages that come, which are acked."""
        found: list[str] = []
        with SimpleConsumer(of.endpoint, group, topic, max_messages=128, await_duration=2) as consumer:
            while views := consumer.receive():
                found += [view.message_id for view in views]
                consumer.ack(views)
        return found

    def received(self, of: EmbeddedBroker, group: str, topic: str, count: int) -> list[str]:
        """The bodies of messages, which are acked."""
        found: list[str] = []
        with SimpleConsumer(of.endpoint, group, topic, await_duration=1) as consumer:
            while len(found) < count and (views := consumer.receive()):
                found += [view.text for view in views]
                consumer.ack(views)
        return found

    def run(self, topics: Sequence[str], groups: Sequence[str] = ()) -> list[Mirror]:
        """Mirrors until nothing is left."""
        return asyncio.run(self._run(topics, groups))

    async def _run(self, topics: Sequence[str], groups: Sequence[str]) -> list[Mirror]:
        source, target = side(self.old.endpoint), side(self.new.endpoint)
        try:
            plan = await look(source, target, topics, groups, "reader")
            plan.check()
            await make(plan, source, target)
            mirrors = [Mirror(task, source, target, FileRecord(self._file(task))) for task in plan.tasks]
            await asyncio.gather(*(each.run(asyncio.Event(), until_empty=True) for each in mirrors))
        finally:
            await source.close()
            await target.close()
        return mirrors

    def _file(self, task: Task) -> Path:
        name = record_name(self.old.endpoint, self.new.endpoint, task.handover.topic, task.handover.group)
        return self.folder / f"{name}.json"


def side(endpoints: str) -> PopMQSide:
    config = ClientConfig(endpoints)
    return PopMQSide(config, AioAdmin(config))


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    with popserver.embedded(manual_clock=True) as old, popserver.embedded() as new:
        yield Pair(old, new, folder)


__all__ = ["Pair", "State", "pair", "side"]
