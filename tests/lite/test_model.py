"""Receives from lite topics against a simple model: each in order, to its subscriber, and none lost.

Several clients receive in one transaction, as the writer lets them. The steps are random, and the same for a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from popserver.lite import subscriptions
from popserver.model.group import LiteModel
from popserver.model.message import Delivery
from popserver.model.states import State
from popserver.model.topic import MessageType
from popserver.receiving.batch import Received
from popserver.receiving.receive import receive
from tests.support.lite_broker import lite_messages
from tests.support.open_store import SECOND, OpenStore, a_receive, receipt_of

LITE_TOPICS = "abcdefgh"
CLIENTS = ("one", "two", "three")
STEPS = 60
HOLD_MS = 30 * SECOND
LOOKS_MAX = 500


class Run:
    """What the clients have done, and what the store must have done for that."""

    def __init__(self, store: OpenStore, seed: int, model: LiteModel) -> None:
        self.random = random.Random(seed)
        self.store = store
        self.topic = store.topic(accepts=(MessageType.LITE,), queues=2)
        self.group = store.group(lite=model, meets=[self.topic], max_attempts=1_000)
        self.is_chosen = model is not LiteModel.WILDCARD
        self.waiting: dict[str, list[str]] = {each: [] for each in LITE_TOPICS}  # ids, in order, until they are acked
        self.held: list[tuple[str, Delivery]] = []  # by client
        self.subscribed: dict[str, set[str]] = {each: set() for each in CLIENTS}

    def send(self) -> None:
        names = self.random.choices(LITE_TOPICS, k=self.random.choice([1, 2, 12]))
        batch = [message for each in names for message in lite_messages(each)]
        self.store.send(self.topic, batch)
        for each in batch:
            assert each.message_group is not None
            self.waiting[each.message_group].append(each.message_id)

    def subscribe(self) -> None:
        if not self.is_chosen:
            return
        client_id = self.random.choice(CLIENTS)
        names = set(self.random.sample(LITE_TOPICS, k=self.random.randint(0, 5)))
        self.store.one(
            subscriptions.sync, subscriptions.SyncLite(self.group, self.topic, client_id, names, is_complete=True)
        )
        self.subscribed[client_id] = names

    def receive(self, clients: Sequence[str] = ()) -> bool:
        """Several clients in one transaction. Returns whether they got messages, or may get some if they ask again."""
        clients = clients or self.random.choices(CLIENTS, k=self.random.randint(1, 3))
        asked = [
            a_receive(
                self.group,
                self.topic,
                self.random.choice([1, 2, 5, 32]),
                client_id=each,
                invisible_ms=HOLD_MS,
                rotation=self.random.randrange(4),
                heads_only=self.random.random() < 0.3,
                overlaps=self.is_chosen,
            )
            for each in clients
        ]
        locked = {_lite_topic(each) for _, each in self.held}
        is_more = False
        for request, received in zip(asked, self.store.do(receive, *asked), strict=True):
            assert isinstance(received, Received)
            assert len(received.deliveries) <= request.batch_size
            for each in received.deliveries:
                assert _lite_topic(each) not in locked, "a message before it is held"
                assert not self.is_chosen or _lite_topic(each) in self.subscribed[request.client_id]
            self.held += ((request.client_id, each) for each in received.deliveries)
            is_more = is_more or bool(received.deliveries) or received.more
            names = [_lite_topic(each) for each in received.deliveries]
            if request.heads_only:
                assert len(set(names)) == len(names)
            for name in set(names):
                ids = [_id(each) for each in received.deliveries if _lite_topic(each) == name]
                assert ids == self.waiting[name][: len(ids)], "the first ones, in order"
        names = [_lite_topic(each) for _, each in self.held]
        for name in set(names):
            holders = {client_id for client_id, each in self.held if _lite_topic(each) == name}
            assert len(holders) == 1, "two clients have messages of one lite topic"
        return is_more

    def ack(self, share: float = 0.7) -> None:
        """Each client acks some of what it holds. An ack after an un-acked message is provisional."""
        self.random.shuffle(self.held)
        count = round(share * len(self.held))
        acked, self.held = self.held[:count], self.held[count:]
        # Only whole runs, which makes the model simple: the rest of a run is given back.
        names = {_lite_topic(each) for _, each in acked}
        rest = [each for each in self.held if _lite_topic(each[1]) in names]
        self.held = [each for each in self.held if _lite_topic(each[1]) not in names]
        acked += rest
        if acked:
            assert set(self.store.ack(self.group, *(each for _, each in acked))) == {None}
        for _, each in acked:
            self.waiting[_lite_topic(each)].remove(_id(each))

    def give_back(self) -> None:
        """One lite topic's messages are given back unused."""
        if self.held:
            name = _lite_topic(self.random.choice(self.held)[1])
            for _, each in [held for held in self.held if _lite_topic(held[1]) == name]:
                self.store.change(self.group, each, 0, give_back=True)
            self.held = [each for each in self.held if _lite_topic(each[1]) != name]

    def wait(self) -> None:
        """All holds end."""
        self.store.end_due(after_ms=HOLD_MS + 10 * SECOND)
        self.store.end_due(after_ms=10 * SECOND)
        self.held = []

    def drain(self) -> None:
        """Everything is consumed: nothing is lost, and nothing stays locked."""
        self.wait()
        if self.is_chosen:
            request = subscriptions.SyncLite(self.group, self.topic, "one", set(LITE_TOPICS), is_complete=True)
            self.store.one(subscriptions.sync, request)
            self.subscribed["one"] = set(LITE_TOPICS)
        looks = 0
        while self.receive(["one", "one"]):
            self.ack(1.0)
            looks += 1
            assert looks < LOOKS_MAX, "the store says that there is more, and there is not"
        assert not any(self.waiting.values()), self.waiting
        assert set(self.store.states(self.group).values()) <= {State.COMMIT}
        assert self.store.rows("SELECT * FROM message_group_progress") == []

    def agree(self) -> None:
        """What the store shows is what the model says."""
        shown = self.store.states(self.group)
        left = {message_id for name in self.waiting for message_id in self.waiting[name]}
        held = {_id(each) for _, each in self.held}
        assert {each for each, state in shown.items() if state is not State.COMMIT} == left
        assert {each for each, state in shown.items() if state is State.INFLIGHT} == held
        lag = self.store.lag(self.group)
        assert (lag.ready, lag.inflight) == (len(left - held), len(held))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("model", [LiteModel.SHARED, LiteModel.WILDCARD])
def test_the_store_agrees_with_the_model(store: OpenStore, seed: int, model: LiteModel) -> None:
    run = Run(store, seed, model)
    run.subscribe()
    acts: list[Callable[[], object]] = [
        run.send,
        run.send,
        run.subscribe,
        run.receive,
        run.receive,
        run.receive,
        run.ack,
        run.give_back,
        run.wait,
    ]
    for _ in range(STEPS):
        run.random.choices(acts, weights=[6, 6, 2, 6, 6, 6, 9, 1, 1])[0]()
        run.agree()
    run.drain()
    receipts = {receipt_of(each) for _, each in run.held}
    assert receipts == set()


def _lite_topic(held: Delivery) -> str:
    assert held.stored.message.message_group is not None
    return held.stored.message.message_group


def _id(held: Delivery) -> str:
    return held.stored.message.message_id
