"""Official clients while the server is killed under them and comes back on the same port and database."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.conftest import Start
from tests.interop.official import OfficialProducer, OfficialSimpleConsumer, Program, Refused
from tests.interop.seen import Lag, lag_in, until
from tests.support.server_process import ServerProcess, served

pytestmark = pytest.mark.row("O8")

BEFORE_AND_AFTER = 30
TRY_AGAIN_S = 0.05  # a client whose server is away


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "served.db"


@pytest.fixture
async def server(database: Path) -> AsyncIterator[ServerProcess]:
    async with served(f"sqlite:///{database}", "--min-invisible", "1s") as server:
        yield server


@pytest.fixture
def program(start_at: Start, language: str, server: ServerProcess) -> Program:
    """A program of official clients of the served broker."""
    return start_at(language, server.endpoint)


async def test_producers_and_simple_consumers_go_on(program: Program, server: ServerProcess, database: Path) -> None:
    traffic = Traffic(program.producer("flights"), program.simple("counters", "flights", await_s=5))
    with traffic:
        await _eventually(lambda: traffic.passed > BEFORE_AND_AFTER)
        await server.kill()
        before = traffic.passed
        await server.start()
        await _eventually(lambda: traffic.passed > before + BEFORE_AND_AFTER)
        traffic.send_no_more()
        await _eventually(lambda: traffic.sent <= traffic.acked | traffic.in_doubt)
        await _eventually(lambda: lag_in(database, "counters", "flights").is_done)
    assert traffic.came_back == []
    # What a lost answer left in doubt may be stored on top, never less than what was confirmed.
    assert lag_in(database, "counters", "flights").stored >= len(traffic.sent)


async def test_a_push_consumer_goes_on(program: Program, server: ServerProcess, database: Path) -> None:
    producer, consumer = program.producer("flights"), program.push("counters", "flights")
    producer.send("flights", "before")
    assert (await asyncio.to_thread(consumer.hear))[0].body == "before"
    await server.kill()
    await server.start()
    await asyncio.to_thread(_send_until_sent, producer, "after")
    assert (await asyncio.to_thread(consumer.hear))[0].body == "after"
    await _eventually(lambda: lag_in(database, "counters", "flights") == Lag(stored=2))
    assert consumer.heard.empty()


@pytest.mark.row("L15")
async def test_what_a_push_consumer_holds_stays_its_own(
    program: Program, server: ServerProcess, database: Path
) -> None:
    consumer = program.push("counters", "flights", waits=True)
    program.producer("flights").send("flights", "UA1545")
    await asyncio.to_thread(consumer.hear)
    await server.kill()
    await server.start()
    await asyncio.to_thread(consumer.release)
    await _eventually(lambda: lag_in(database, "counters", "flights") == Lag(stored=1))
    assert consumer.heard.empty()


class Traffic:
    """A producer and a consumer that never stop trying, and what they were told."""

    def __init__(self, producer: OfficialProducer, consumer: OfficialSimpleConsumer) -> None:
        self._producer = producer
        self._consumer = consumer
        self._threads = ThreadPoolExecutor(2)
        self._sending = threading.Event()
        self._receiving = threading.Event()
        self.sent: set[str] = set()
        self.acked: set[str] = set()
        self.in_doubt: set[str] = set()  # the ack's answer was lost: it may have taken effect
        self.came_back: list[str] = []

    @property
    def passed(self) -> int:
        """Messages both confirmed to the producer and acked."""
        return len(self.sent.copy() & self.acked.copy())

    def __enter__(self) -> Traffic:
        self._sending.set()
        self._receiving.set()
        self._work = [self._threads.submit(self._send), self._threads.submit(self._receive)]
        return self

    def __exit__(self, *_: object) -> None:
        self._sending.clear()
        self._receiving.clear()
        _send_until_sent(self._producer, "the end of the last poll")
        for work in self._work:
            work.result()
        self._threads.shutdown()

    def send_no_more(self) -> None:
        self._sending.clear()

    def _send(self) -> None:
        for number in itertools.count():
            if not self._sending.is_set():
                return
            try:
                self.sent.add(self._producer.send("flights", str(number)).message_id)
            except Refused:
                threading.Event().wait(TRY_AGAIN_S)

    def _receive(self) -> None:
        while self._receiving.is_set():
            try:
                # Long enough for a batch of acks; short enough to come again soon if an ack was lost.
                received = self._consumer.receive(16, invisible_s=3)
            except Refused:
                threading.Event().wait(TRY_AGAIN_S)
                continue
            self.came_back += [message.message_id for message in received if message.message_id in self.acked]
            for message in received:
                try:
                    self._consumer.ack(message)
                except Refused:
                    self.in_doubt.add(message.message_id)
                else:
                    self.acked.add(message.message_id)


def _send_until_sent(producer: OfficialProducer, body: str) -> None:
    while True:
        try:
            producer.send("flights", body)
        except Refused:
            threading.Event().wait(TRY_AGAIN_S)
        else:
            return


async def _eventually(fact: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, fact)
