"""Two servers on one Postgres, each with its statements between any of the other's, while clients subscribe and
unsubscribe: order within a lite topic is kept, nothing is lost."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from popserver.database.database import Database
from popserver.lite import subscriptions
from popserver.lite.subscriptions import SyncLite
from popserver.model.group import Group, LiteModel
from popserver.model.message import Delivery
from popserver.model.topic import MessageType, Topic
from popserver.receiving import receive
from popserver.receiving.batch import Received
from popserver.settling import ack
from tests.fifo.test_two_servers import Seen
from tests.support.emptied_database import emptied
from tests.support.lite_broker import lite_messages
from tests.support.open_store import MINUTE, OpenStore, a_receive, receipt_of

LITE_TOPICS = [f"t{number}" for number in range(10)]
ROUNDS = 30
PER_ROUND = 10
FRUITLESS_MAX = 60


class Server:
    """One server and its three clients."""

    def __init__(self, store: OpenStore, group: Group, topic: Topic, seen: Seen, seed: int) -> None:
        self._store, self._group, self._topic, self._seen = store, group, topic, seen
        self._chance = random.Random(seed)
        self._clients = [f"{seed}-{number}" for number in range(3)]
        self._held: list[list[Delivery]] = []

    def serve(self) -> None:
        for _ in range(ROUNDS):
            names = self._chance.choices(LITE_TOPICS, k=PER_ROUND)
            self._store.send(self._topic, [message for name in names for message in lite_messages(name)])
            self._subscribe(self._chance.choice(self._clients))
            self._receive()
            self._ack()
        self._take_the_rest()

    def _subscribe(self, client_id: str) -> None:
        some = self._chance.sample(LITE_TOPICS, 3)
        change: dict[str, Any] = {"add": some} if self._chance.random() < 0.7 else {"add": (), "remove": some}
        self._store.one(subscriptions.sync, SyncLite(self._group, self._topic, client_id, **change))

    def _take_the_rest(self) -> None:
        fruitless = 0
        while fruitless < FRUITLESS_MAX:
            if self._group.lite is LiteModel.SHARED or not fruitless % 10:
                every = SyncLite(self._group, self._topic, self._clients[0], add=LITE_TOPICS)
                self._store.one(subscriptions.sync, every)
            fruitless = 0 if self._receive() or self._held else fruitless + 1
            self._ack()

    def _receive(self) -> bool:
        overlaps = self._group.lite is LiteModel.SHARED
        requests = [
            a_receive(
                self._group,
                self._topic,
                self._chance.randint(1, 6),
                client_id=each,
                overlaps=overlaps,
                invisible_ms=MINUTE,
            )
            for each in self._clients
        ]
        answers = self._store.do(receive.receive, *requests)
        got = [each.deliveries for each in answers if isinstance(each, Received) and each.deliveries]
        for each in got:
            self._seen.got(each)
        self._held += got
        return bool(got)

    def _ack(self) -> None:
        self._chance.shuffle(self._held)
        half = len(self._held) // 2 + 1
        done, self._held = self._held[:half], self._held[half:]
        for each in done:
            self._seen.acking(each)
        requests = [ack.Ack(self._group, [receipt_of(one) for one in each]) for each in done]
        if requests:
            assert self._store.do(ack.ack, *requests) == [[None] * len(each) for each in done]


@pytest.mark.parametrize("model", [LiteModel.SHARED, LiteModel.EXCLUSIVE])
def test_a_lite_topic_is_in_one_hand_and_in_order(postgres_database: Database, model: LiteModel) -> None:
    with emptied(postgres_database) as store:
        topic = store.topic(queues=3, accepts=(MessageType.LITE,))
        group = store.group(meets=[topic], lite=model)
        seen, failed = Seen(), list[BaseException]()
        stores = [OpenStore(postgres_database) for _ in range(2)]

        def run(server: Server) -> None:
            try:
                server.serve()
            except BaseException as error:  # noqa: BLE001 - it fails the test, in its own thread
                failed.append(error)

        servers = [Server(each, group, topic, seen, seed) for seed, each in enumerate(stores)]
        threads = [threading.Thread(target=run, args=(each,)) for each in servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for each in stores:
            each.conn.close()
        assert failed == []
        assert seen.wrong == []
        assert sum(len(keys) for keys in seen.granted.values()) == 2 * ROUNDS * PER_ROUND
        assert store.rows("SELECT * FROM delivery") == store.rows("SELECT * FROM message_group_progress") == []
