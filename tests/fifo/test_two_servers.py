"""Two servers on one Postgres, each with its statements between any of the other's: order is kept, nothing is lost."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence

import pytest

from popserver.database.database import Database
from popserver.model.group import Group
from popserver.model.message import Delivery
from popserver.model.topic import MessageType, Topic
from popserver.receiving import receive
from popserver.receiving.batch import Received
from popserver.settling import ack
from tests.support.builders import in_order
from tests.support.emptied_database import emptied
from tests.support.open_store import MINUTE, OpenStore, a_receive, receipt_of

MESSAGE_GROUPS = 12
ROUNDS = 40
PER_ROUND = 12
# So many looks of a server in a row that find nothing, and it is done.
FRUITLESS_MAX = 200


class Seen:
    """Who got what, and who acked it, in the order of it all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acked: set[int] = set()
        self.granted: dict[str, list[int]] = defaultdict(list)
        self.wrong: list[str] = []

    def got(self, deliveries: Sequence[Delivery]) -> None:
        """Whatever went before in their groups was acked, or came in the same batch."""
        with self._lock:
            for each in deliveries:
                name, key = each.stored.message.message_group or "", each.stored.message_key
                earlier = set(self.granted[name]) - self._acked - {other.stored.message_key for other in deliveries}
                if earlier:
                    self.wrong.append(f"{key} of group {name} while {sorted(earlier)} were held")
                if self.granted[name] and key <= self.granted[name][-1]:
                    self.wrong.append(f"{key} of group {name} after {self.granted[name][-1]}")
                self.granted[name].append(key)

    def acking(self, deliveries: Sequence[Delivery]) -> None:
        with self._lock:
            self._acked |= {each.stored.message_key for each in deliveries}


def serve(store: OpenStore, group: Group, topic: Topic, seen: Seen, seed: int) -> None:
    """One server: sends, receives for several consumers at once, acks what they had, whole or in two parts."""
    chance, fruitless, held = random.Random(seed), 0, list[list[Delivery]]()
    for number in range(100_000):
        if number < ROUNDS:
            names = [f"g{chance.randrange(MESSAGE_GROUPS)}" for _ in range(PER_ROUND)]
            store.send(topic, [message for name in names for message in in_order(name)])
        sizes = [chance.randint(1, 6) for _ in range(3)]
        answers = store.do(
            receive.receive, *(a_receive(group, topic, size, rotation=number, invisible_ms=MINUTE) for size in sizes)
        )
        got = [each.deliveries for each in answers if isinstance(each, Received) and each.deliveries]
        for each in got:
            seen.got(each)
        held += got
        chance.shuffle(held)
        fruitless = 0 if got or held else fruitless + 1
        if fruitless == FRUITLESS_MAX:
            return
        done, held = held[: len(held) // 2 + 1], held[len(held) // 2 + 1 :]
        for each in done:
            seen.acking(each)
        requests = [ack.Ack(group, [receipt_of(one) for one in each]) for each in done]
        if requests:
            assert store.do(ack.ack, *requests) == [[None] * len(each) for each in done]


@pytest.mark.row("K5")
@pytest.mark.row("K6")
def test_messages_of_a_group_are_never_in_two_servers_hands(postgres_database: Database) -> None:
    with emptied(postgres_database) as store:
        topic = store.topic(queues=3, accepts=(MessageType.FIFO,))
        group = store.group(meets=[topic])
        seen = Seen()
        servers = [OpenStore(postgres_database) for _ in range(2)]
        failed: list[BaseException] = []

        def run(server: OpenStore, seed: int) -> None:
            try:
                serve(server, group, topic, seen, seed)
            except BaseException as error:  # noqa: BLE001 - it fails the test, in its own thread
                failed.append(error)

        threads = [threading.Thread(target=run, args=(each, seed)) for seed, each in enumerate(servers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server in servers:
            server.conn.close()
        assert failed == []
        assert seen.wrong == []
        assert sum(len(keys) for keys in seen.granted.values()) == 2 * ROUNDS * PER_ROUND
        assert store.rows("SELECT * FROM delivery") == store.rows("SELECT * FROM message_group_progress") == []
