"""Where a scenario plays: the servers, a topic and a group of its own, and programs of one client."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from popclient import ClientConfig, SimpleConsumer
from tests.interop.official import (
    NoSuchCall,
    OfficialLitePushConsumer,
    OfficialLiteSimpleConsumer,
    OfficialProducer,
    OfficialPushConsumer,
    OfficialSimpleConsumer,
    Program,
    Received,
    Start,
)
from tests.interop.seen import until

# A proxy of RocketMQ holds a poll for at least this long.
AWAIT_S = 5
SIGNED = ("alice", "correct-horse")
SPARE_HOLD_S = 10  # what a hold is longer than the shortest one, where it must not end
DOCTORS = "doctors"  # a group that reads dead letters


class Needs(NamedTuple):
    """What servers have to be able to do. signs: they want signatures; has_tls: they speak TLS alone."""

    signs: bool = False
    has_lite: bool = False
    has_tls: bool = False


class Servers(ABC):
    """Servers of one kind that run, with what the scenarios need: all topics and groups have to be asked for."""

    name: str
    count = 1
    endpoint: str  # of the one server that official clients are told of
    endpoints: str  # of all of them
    certificate: Path  # of the CA that a client has to trust
    shortest_hold_s: int
    lite_quota: int  # lite topics of one client
    has_account = True  # do they say which messages a group has consumed?

    @abstractmethod
    def prepare(self, topic: str, group: str, scene: Scene) -> None:
        """Make the topic and the group, whose retries come after a second."""

    @abstractmethod
    def is_done(self, topic: str, group: str) -> bool:
        """Has the group consumed all messages of the topic, by the servers' own account?"""

    @abstractmethod
    def stop(self) -> None:
        """End the server that clients were told of, as an operator ends it."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9."""

    @abstractmethod
    def start(self) -> None:
        """Bring it back at its address."""


class Scene(NamedTuple):
    """What a scenario needs. lite: SHARED or EXCLUSIVE; `has_to_sign`, `has_tls`: at servers that want that."""

    accepts: str = "NORMAL"
    lite: str = ""
    max_attempts: int = 16
    has_to_sign: bool = False
    has_tls: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(self.has_to_sign, bool(self.lite), self.has_tls)


class Stage:
    """One client's turn in one scenario."""

    def __init__(self, servers: Servers, scenario: str, language: str, scene: Scene, start_at: Start) -> None:
        self.servers = servers
        self.language = language
        self.topic, self.group = names_of(scenario, language)
        self._start_at = start_at
        self._program: Program | None = None
        servers.prepare(self.topic, self.group, scene)

    @property
    def program(self) -> Program:
        """A program whose clients speak plaintext and do not sign."""
        if self._program is None:
            self._program = self.another_program()
        return self._program

    def another_program(self, *, trusting: Path | None = None, signing: tuple[str, str] | None = None) -> Program:
        # popclient uses the servers that it is told of; official clients find the others in routes.
        where = self.servers.endpoints if self.language == "popclient" else self.servers.endpoint
        return self._start_at(self.language, where, trusting=trusting, signing=signing)

    def producer(self, *, decides: str | None = None) -> OfficialProducer:
        return self.program.producer(self.topic, decides=decides)

    def simple(self, expression: str = "*", *, sql: bool = False) -> OfficialSimpleConsumer:
        return self.program.simple(self.group, self.topic, expression, sql=sql, await_s=AWAIT_S)

    def push(self, expression: str = "*", *, sql: bool = False, fail: int = 0) -> OfficialPushConsumer:
        return self.program.push(self.group, self.topic, expression, sql=sql, fail=fail)

    def lite(self, *, fail: int = 0, poison: str = "", suspend_s: int = 0) -> OfficialLitePushConsumer:
        return self.program.lite(self.group, self.topic, fail=fail, poison=poison, suspend_s=suspend_s)

    def lite_simple(self) -> OfficialLiteSimpleConsumer:
        return self.program.lite_simple(self.group, self.topic, await_s=AWAIT_S)

    @staticmethod
    def first(consumer: OfficialSimpleConsumer, invisible_s: int) -> Received:
        """The next message, held."""
        found: list[Received] = []
        until(lambda: bool(found) or bool(found.extend(consumer.receive(1, invisible_s)) or found))
        return found[0]

    def collect(self, consumer: OfficialSimpleConsumer, count: int, *, at_once: int = 16) -> list[Received]:
        """The next `count` messages, each acked as soon as it was received."""
        found: list[Received] = []

        def more() -> bool:
            found.extend(self.take(consumer, at_once=at_once))
            return len(found) >= count

        until(more)
        return found

    def take(self, consumer: OfficialSimpleConsumer, *, at_once: int = 16) -> list[Received]:
        """The messages of one poll, acked."""
        messages = consumer.receive(at_once, self.servers.shortest_hold_s + SPARE_HOLD_S)
        for message in messages:
            consumer.ack(message)
        return messages

    def consume(self, count: int, expression: str = "*", *, sql: bool = False) -> list[Received]:
        """The next `count` messages, by a push consumer if the client has one, else by a simple one."""
        try:
            return self.push(expression, sql=sql).hear(count)
        except NoSuchCall:
            return self.collect(self.simple(expression, sql=sql), count)

    def settles(self) -> None:
        """Every message is consumed in the end, if the servers give an account of that."""
        if self.servers.has_account:
            until(lambda: self.servers.is_done(self.topic, self.group))

    def stays_away(self, consumer: OfficialSimpleConsumer) -> None:
        """What was acked does not come again when its hold would have ended."""
        if self.servers.has_account:
            self.settles()
        else:
            until(partial(_is_past, time.monotonic() + self.servers.shortest_hold_s + SPARE_HOLD_S))
            assert consumer.receive(invisible_s=10) == []

    def left(self) -> set[str]:
        """The ids of the messages that the group can still receive, by popclient, acked."""
        found: set[str] = set()
        config = ClientConfig(self.servers.endpoints, request_timeout=30)
        hold_s = self.servers.shortest_hold_s + SPARE_HOLD_S
        with SimpleConsumer(config, self.group, self.topic, await_duration=AWAIT_S) as consumer:
            ends = time.monotonic() + hold_s  # by then the holds of others have ended
            while (received := consumer.receive(32, hold_s)) or not _is_past(ends):
                if received:
                    consumer.ack(received)
                    found |= {each.message_id for each in received}
        return found


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


def names_of(scenario: str, language: str) -> tuple[str, str]:
    """Topic and group of a client's turn."""
    return f"{scenario}-{language}", f"{scenario}-{language}-readers"


Act = Callable[[Stage], None]


class Scenarios(dict[str, tuple[Act, Scene]]):
    """By their names."""

    def scenario(self, scene: Scene = Scene()) -> Callable[[Act], Act]:  # noqa: B008 - a value, not a place
        def add(act: Act) -> Act:
            self[act.__name__.removesuffix("_").replace("_", "-")] = (act, scene)
            return act

        return add
