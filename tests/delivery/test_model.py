"""The store against a model of it: whatever happens in whatever order, the two agree (invariants I3–I5, I7–I9, I13)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from popserver.model.errors import InvalidReceiptHandle
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import message_key
from tests.support.open_store import HOUR, SECOND, open_store, receipt_of
from tests.support.store_model import ModelDelivery, ModelGroup

INTERVAL_MS = 10 * SECOND
MAX_ATTEMPTS = 3
GROUPS = st.sampled_from([0, 1])
CLIENTS = st.sampled_from(["a", "b"])
DURATIONS_MS = st.sampled_from([0, SECOND // 2, 10 * SECOND, 30 * SECOND])


class StoreAgainstModel(RuleBasedStateMachine):
    """Two groups on one topic of two queues."""

    receipts = Bundle("receipts")

    def __init__(self) -> None:
        super().__init__()
        self._opening = open_store("sqlite://")
        self.store = self._opening.__enter__()
        self.topic = self.store.topic(queues=2)
        self.groups = [
            self.store.group(name, meets=[self.topic], max_attempts=MAX_ATTEMPTS, intervals_ms=[INTERVAL_MS])
            for name in ("one", "other")
        ]
        self.models = [ModelGroup(MAX_ATTEMPTS, INTERVAL_MS) for _ in self.groups]

    def teardown(self) -> None:
        self._opening.__exit__(None, None, None)

    @rule(count=st.integers(1, 4), queue=st.sampled_from([0, 1]))
    def send(self, count: int, queue: int) -> None:
        for sent in self.store.send(self.topic, count, queue=queue):
            for model in self.models:
                assert sent.queue_number is not None
                key = message_key(self.topic.queues[sent.queue_number].queue_id, sent.offset)
                model.deliveries[key] = ModelDelivery()

    @rule(
        target=receipts,
        number=GROUPS,
        batch_size=st.integers(1, 5),
        push=st.booleans(),
        client_id=CLIENTS,
        rotation=st.integers(0, 3),
    )
    def receive(self, number: int, batch_size: int, push: bool, client_id: str, rotation: int) -> object:
        model, holder = self.models[number], Holder.PUSH if push else Holder.SIMPLE
        granted = self.store.receive(
            self.groups[number],
            self.topic,
            batch_size,
            holder=holder,
            client_id=client_id,
            rotation=rotation,
            invisible_ms=HOUR if push else 30 * SECOND,
        )
        assert len(granted) == min(batch_size, model.counts()[State.READY])
        receipts = [receipt_of(each) for each in granted]
        for each, receipt in zip(granted, receipts, strict=True):
            assert model.granted(receipt.message_key, receipt, holder, client_id).attempt == each.attempt
        return multiple(*receipts)

    @rule(receipt=receipts)
    def ack(self, receipt: Receipt) -> None:
        number = self._number(receipt)
        (outcome,) = self.store.ack(self.groups[number], receipt)
        assert self.models[number].ack(receipt, self.store.now_ms) is (outcome is None)

    @rule(receipt=receipts)
    def forward(self, receipt: Receipt) -> None:
        number = self._number(receipt)
        outcome = self.store.forward(self.groups[number], receipt)
        assert self.models[number].forward(receipt, self.store.now_ms) is (outcome is None)

    @rule(target=receipts, receipt=receipts, duration_ms=DURATIONS_MS, give_back=st.booleans())
    def change(self, receipt: Receipt, duration_ms: int, give_back: bool) -> object:
        number = self._number(receipt)
        give_back = give_back and duration_ms == 0
        model = self.models[number]
        ok = model.change(receipt, duration_ms, self.store.now_ms, give_back=give_back)
        try:
            new = self.store.change(self.groups[number], receipt, duration_ms, give_back=give_back)
        except InvalidReceiptHandle:
            assert not ok
            return multiple()
        assert ok
        model.changed(receipt, duration_ms, new, self.store.now_ms)
        return new

    @rule(client_id=CLIENTS)
    def orphan(self, client_id: str) -> None:
        self.store.orphan_client(client_id)
        for model in self.models:
            model.orphan(client_id, self.store.now_ms)

    @rule(client_id=CLIENTS)
    def adopt(self, client_id: str) -> None:
        until_ms = self.store.now_ms + HOUR
        self.store.adopt(client_id, until_ms)
        for model in self.models:
            model.adopt(client_id, until_ms, self.store.now_ms)

    @rule(by_ms=st.sampled_from([1, SECOND - 1, SECOND, 10 * SECOND, 30 * SECOND, HOUR]))
    def let_time_pass(self, by_ms: int) -> None:
        """Nobody looks yet: what has ended is nobody's, and not anybody else's either."""
        self.store.now_ms += by_ms

    @rule()
    def end_due(self) -> None:
        self.store.end_due()
        for model in self.models:
            model.end_due(self.store.now_ms)

    @invariant()
    def they_agree(self) -> None:
        for group, model in zip(self.groups, self.models, strict=True):
            rows = self.store.rows(
                "SELECT message_key, state, attempt FROM message_state"
                " WHERE consumer_group = :name AND topic = 'orders'",
                name=group.name.name,
            )
            assert {row.message_key: row.state for row in rows} == {
                key: each.state for key, each in model.deliveries.items()
            }
            for row in rows:
                assert row.attempt in (None, model.deliveries[row.message_key].attempt)
            counts = model.counts()
            if rows:
                lag = self.store.lag(group)
                assert (lag.ready, lag.inflight, lag.waiting_retry, lag.dead_letters) == (
                    counts[State.READY],
                    counts[State.INFLIGHT],
                    counts[State.WAITING_RETRY],
                    counts[State.DLQ],
                )

    def _number(self, receipt: Receipt) -> int:
        return [group.group_id for group in self.groups].index(receipt.group_id)


@pytest.mark.row("L1")
class TestStoreAgainstModel(StoreAgainstModel.TestCase):  # type: ignore[valid-type]
    settings = settings(
        max_examples=60,
        stateful_step_count=30,
        suppress_health_check=[HealthCheck.too_slow],
    )
