"""Under load a server is added by one command, and the first one is taken away by another one: no call fails.

Official clients know the first server alone, or both; popclient knows both.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from popclient import ConsumeResult, MessageView, Producer, PushConsumer, SimpleConsumer
from popclient.admin import Admin
from tests.interop.official import OfficialPushConsumer, Start
from tests.interop.seen import until
from tests.interop.traffic import Traffic
from tests.support.final_state import looking, unfinished
from tests.support.server_process import POPMQ, ServerProcess, clean_environment, served

OPTIONS = ("--min-invisible", "1s", "--tls", "plaintext")
MORE = 50  # messages of each kind of client, at every step
OFFICIAL, OWN = ("flights", "ferries"), "orders"
PAUSE_S = 0.01  # between two sends: the machine has to be faster than the load
GOES_WITHIN_S = 150.0  # a handover is 40 s, and a poll of the handed over takes up to 20 s
INVISIBLE_S = 30


class OwnClients:
    """popclient: a producer, a simple consumer and a push consumer that work all the time."""

    def __init__(self, endpoints: str) -> None:
        self.failures: list[str] = []
        self.sent: set[str] = set()
        self.acked = Counter[str]()
        self.heard = Counter[str]()
        self._endpoints = endpoints
        self._sends, self._receives = threading.Event(), threading.Event()

    @property
    def passed(self) -> int:
        return len(self.sent.copy() & self.acked.copy().keys() & self.heard.copy().keys())

    def send_no_more(self) -> None:
        self._sends.set()

    def send(self) -> None:
        with Producer(self._endpoints) as producer:
            for number in itertools.count():
                if self._sends.wait(PAUSE_S):
                    return
                with self._noted("send"):
                    self.sent.add(producer.send(OWN, str(number)).message_id)

    def receive(self) -> None:
        with SimpleConsumer(self._endpoints, "billing", OWN) as consumer:
            while not self._receives.is_set():
                with self._noted("receive"):
                    for message in consumer.receive(await_duration=1.0, invisible_duration=INVISIBLE_S):
                        with self._noted("ack"):
                            consumer.ack(message)
                            self.acked[message.message_id] += 1

    @contextmanager
    def work(self) -> Iterator[OwnClients]:
        def listener(message: MessageView) -> ConsumeResult:
            self.heard[message.message_id] += 1
            return ConsumeResult.SUCCESS

        with ThreadPoolExecutor(2) as threads, PushConsumer(self._endpoints, "shipping", OWN, listener):
            work = [threads.submit(self.send), threads.submit(self.receive)]
            try:
                yield self
            finally:
                self._sends.set()
                self._receives.set()
                for each in work:
                    each.result()

    @contextmanager
    def _noted(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
            self.failures.append(f"{call}: {error!r}")


@pytest.mark.timeout(900)
async def test_no_call_fails(start_at: Start, postgres_url: str) -> None:
    async with served(postgres_url, *OPTIONS) as first, served(postgres_url, *OPTIONS) as reserved:
        await reserved.stop()  # its port is known to clients before it is there
        alone = start_at("python", first.endpoint)
        both = start_at("python", f"{first.endpoint};{reserved.endpoint}")
        traffic = [
            Traffic(program.producer(topic), program.simple("counters", topic, await_s=5), topic, INVISIBLE_S)
            for program, topic in zip((alone, both), OFFICIAL, strict=True)
        ]
        listeners = [program.push("watchers", topic) for program, topic in zip((alone, both), OFFICIAL, strict=True)]
        own = OwnClients(f"{first.endpoint};{reserved.endpoint}")
        loads: list[Traffic | OwnClients] = [*traffic, own]
        with traffic[0], traffic[1], own.work():
            await _more(loads)
            await reserved.start()
            # Official clients ask for routes every 30 s.
            await _eventually(lambda: _has_official_clients(reserved))
            await _more(loads)
            gone = await asyncio.create_subprocess_exec(
                *(POPMQ, "--endpoint", first.endpoint, "server", "drain", "--wait"), env=clean_environment()
            )
            await _more(loads)
            assert await asyncio.wait_for(gone.wait(), GOES_WITHIN_S) == 0
            assert await first.ended() == 0
            await _more(loads)
            for each in loads:
                each.send_no_more()
            await _eventually(lambda: all(each.sent <= each.acked for each in traffic))
            await _eventually(lambda: own.passed == len(own.sent))
            await _eventually(lambda: _unfinished(postgres_url) == 0)
            heard = [_heard(each) for each in listeners]
        assert [each.refused for each in traffic] == [[], []]
        assert own.failures == []
        assert [each.came_back for each in traffic] == [[], []]
        for each, counted in zip(traffic, heard, strict=True):
            assert each.sent <= counted.keys()
            assert {body: count for body, count in counted.items() if count > 1} == {}
        for counts in (own.acked, own.heard):
            assert counts.keys() == own.sent
            assert {message_id: count for message_id, count in counts.items() if count > 1} == {}


def _heard(listener: OfficialPushConsumer) -> Counter[str]:
    found = Counter[str]()
    while not listener.heard.empty():
        found[listener.heard.get().message_id] += 1
    return found


def _has_official_clients(server: ServerProcess) -> bool:
    with Admin(server.endpoint) as admin:
        return any(each.version.startswith("5.") for each in admin.list_clients())


def _unfinished(database_url: str) -> int:
    with looking(database_url) as conn:
        return sum(unfinished(conn, topic) for topic in (*OFFICIAL, OWN))


async def _more(loads: Sequence[Traffic | OwnClients]) -> None:
    """Wait until each has sent and consumed so many more messages."""
    wanted = [each.passed + MORE for each in loads]
    await _eventually(lambda: all(each.passed >= count for each, count in zip(loads, wanted, strict=True)))


async def _eventually(fact: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, fact)
