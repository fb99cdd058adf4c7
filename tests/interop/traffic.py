"""Official clients that send and receive while their server goes away and comes back."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.interop.official import OfficialProducer, OfficialSimpleConsumer, Refused

TRY_AGAIN_S = 0.05  # a client whose server is away


class Traffic:
    """A producer and a consumer that never stop trying, and what they were told."""

    def __init__(
        self, producer: OfficialProducer, consumer: OfficialSimpleConsumer, topic: str = "flights", invisible_s: int = 3
    ) -> None:
        """invisible_s: long enough for a batch of acks; short enough to come again soon if an ack was lost."""
        self._topic = topic
        self._invisible_s = invisible_s
        self._producer = producer
        self._consumer = consumer
        self._threads = ThreadPoolExecutor(2)
        self._sending = threading.Event()
        self._receiving = threading.Event()
        self.sent: set[str] = set()
        self.acked: set[str] = set()
        self.in_doubt: set[str] = set()  # the ack's answer was lost: it may have taken effect
        self.came_back: list[str] = []
        self.refused: list[str] = []

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
        send_until_sent(self._producer, "the end of the last poll", self._topic)
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
                self.sent.add(self._producer.send(self._topic, str(number)).message_id)
            except Refused as refusal:
                self.refused.append(f"send: {refusal}")
                threading.Event().wait(TRY_AGAIN_S)

    def _receive(self) -> None:
        while self._receiving.is_set():
            try:
                received = self._consumer.receive(16, self._invisible_s)
            except Refused as refusal:
                self.refused.append(f"receive: {refusal}")
                threading.Event().wait(TRY_AGAIN_S)
                continue
            self.came_back += [message.message_id for message in received if message.message_id in self.acked]
            for message in received:
                try:
                    self._consumer.ack(message)
                except Refused as refusal:
                    self.refused.append(f"ack: {refusal}")
                    self.in_doubt.add(message.message_id)
                else:
                    self.acked.add(message.message_id)


def send_until_sent(producer: OfficialProducer, body: str, topic: str = "flights") -> None:
    while True:
        try:
            producer.send(topic, body)
        except Refused:
            threading.Event().wait(TRY_AGAIN_S)
        else:
            return
