"""Attempts against a model of them: whatever is asked in whatever order, no message is lost, or in two hands."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from popserver.bulk import attempts
from popserver.bulk.attempts import Attempt, AttemptAck, Renew
from popserver.model.message import id_from_bytes
from popserver.model.states import State
from popserver.model.topic import MessageType
from tests.support.builders import in_order
from tests.support.open_store import SECOND, OpenStore, a_receive

HOLD_MS = 30 * SECOND
NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 4), st.sampled_from([None, "g", "h"])),
        st.tuples(st.just("receive"), NAMES, st.integers(1, 6)),
        st.tuples(st.just("renew"), NAMES, st.sampled_from([10 * SECOND, HOLD_MS])),
        st.tuples(st.just("ack"), NAMES),
        st.tuples(st.just("wait"), st.sampled_from([5 * SECOND, 20 * SECOND, HOLD_MS])),
    ),
    min_size=4,
    max_size=24,
)
_numbers = itertools.count()


class Model:
    """What each attempt holds, by key, and until when."""

    def __init__(self, store: OpenStore) -> None:
        number = next(_numbers)
        self.store = store
        self.topic = store.topic(f"t{number}", accepts=(MessageType.NORMAL, MessageType.FIFO))
        self.group = store.group(f"g{number}", meets=[self.topic])
        self.held: dict[str, tuple[list[int], int]] = {}
        self.acked: set[int] = set()

    def send(self, count: int, message_group: str | None) -> None:
        batch: Any = in_order(message_group, count, self.topic.name) if message_group else count
        self.store.send(self.topic, batch)

    def receive(self, name: str, count: int) -> None:
        before = self._held(name)
        request = a_receive(self.group, self.topic, count, attempt_id=name, invisible_ms=HOLD_MS)
        answer = self.store.one(attempts.receive, attempts.ReceiveAttempt(request))
        keys = [each.message_key for each in answer.held]
        assert keys == sorted(keys)
        if before:
            assert keys == before, "a repetition gets what it held"
            return
        assert answer.is_final or not keys
        assert len(keys) <= count
        in_other_hands = {key for other in self.held if other != name for key in self._held(other)}
        assert not in_other_hands & set(keys), "in two hands"
        assert not self.acked & set(keys), "done is done"
        self.held[name] = keys, self.store.now_ms + HOLD_MS

    def renew(self, name: str, invisible_ms: int) -> None:
        keys = self._held(name)
        assert self.store.one(attempts.renew, Renew(self._attempt(name), invisible_ms)) == len(keys)
        self.held[name] = keys, self.store.now_ms + invisible_ms

    def ack(self, name: str) -> None:
        keys = self._held(name)
        assert self.store.one(attempts.ack, attempts.AckAttempt(self._attempt(name))) == AttemptAck(
            len(keys), is_all=True
        )
        self.held[name] = [], 0
        # Behind one that ran out an ack is provisional: those are done when that one is.
        states = self._states()
        self.acked |= {key for key in keys if states[key] is State.COMMIT}

    def wait(self, by_ms: int) -> None:
        self.store.end_due(after_ms=by_ms)

    def check(self) -> None:
        for name in self.held:
            found = attempts.held_by(self.store.conn, self._attempt(name), self.store.now_ms)
            assert [each.message_key for each in found] == self._held(name)
        states = self._states()
        inflight = {key for key, state in states.items() if state is State.INFLIGHT}
        assert inflight == {key for name in self.held for key in self._held(name)}
        assert all(states[key] is State.COMMIT for key in self.acked)

    def _held(self, name: str) -> list[int]:
        keys, until_ms = self.held.get(name, ([], 0))
        return keys if until_ms > self.store.now_ms else []

    def _attempt(self, name: str) -> Attempt:
        return Attempt(self.group, self.topic, name)

    def _states(self) -> dict[int, State]:
        by_id = self.store.states(self.group)
        query = "SELECT message_key, message_id FROM message WHERE topic_id = :id"
        rows = self.store.rows(query, id=self.topic.topic_id)
        return {row.message_key: by_id[id_from_bytes(bytes(row.message_id))] for row in rows}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_no_message_is_lost_or_in_two_hands(store: OpenStore, steps: list[tuple[Any, ...]]) -> None:
    model = Model(store)
    for verb, *arguments in steps:
        getattr(model, verb)(*arguments)
        model.check()
    # Whatever happened: everything comes, and once only.
    for number in range(100):
        model.wait(HOLD_MS)
        model.receive(f"end-{number}", 1_000)
        if not model.held[f"end-{number}"][0]:
            break
        model.ack(f"end-{number}")
    assert set(model._states().values()) <= {State.COMMIT}
