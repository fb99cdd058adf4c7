"""Random lives with resets and skips between them: what is stored stays sound, and says what the operator asked for."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from popserver.model.errors import PopError
from popserver.model.group import Group
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import Topic
from popserver.settling import ack as settling_ack
from popserver.settling import change
from popserver.settling.ack import Ack
from tests.support.builders import in_order, messages_of
from tests.support.open_store import SECOND, OpenStore, receipt_of
from tests.support.progress import ORDERED, reset, skip, states_by_offset

STEPS = 60
MESSAGES = 30


class Life:
    """One group in one queue, and what somebody does with it."""

    def __init__(self, store: OpenStore, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.topic: Topic = store.topic(f"t{seed}", accepts=ORDERED)
        self.group: Group = store.group(f"g{seed}", meets=[self.topic], max_attempts=3, intervals_ms=[SECOND])
        for _ in range(MESSAGES):
            name = self.random.choice([None, "a", "b", "c"])
            batch = in_order(name, 1, self.topic.name) if name else messages_of(1, self.topic.name)
            store.send(self.topic, batch)
        self.held: list[Delivery] = []

    @property
    def states(self) -> str:
        return states_by_offset(self.store, self.group, self.topic)

    def step(self) -> None:
        self.random.choice(
            [self.receive, self.receive, self.ack, self.fail, self.die, self.wait, self.reset, self.skip]
        )()
        self.store.check()

    def receive(self) -> None:
        holder = self.random.choice([Holder.PUSH, Holder.SIMPLE])
        size = self.random.randint(1, 6)
        self.held += self.store.receive(self.group, self.topic, size, holder=holder, invisible_ms=5 * SECOND)

    def ack(self) -> None:
        some = self.random.sample(self.held, min(3, len(self.held)))
        self.store.do(settling_ack.ack, Ack(self.group, [receipt_of(each) for each in some]))

    def fail(self) -> None:
        if self.held:
            self._try(change.ChangeInvisible(self.group, receipt_of(self.random.choice(self.held)), 2 * SECOND))

    def die(self) -> None:
        if self.held:
            self.store.forward(self.group, self.random.choice(self.held))

    def wait(self) -> None:
        self.store.end_due(after_ms=self.random.choice([SECOND, 6 * SECOND]))

    def reset(self) -> None:
        """Everything from there on is READY, before it nothing is; whatever was held is not any more."""
        before, to = self.states, self.random.randint(0, MESSAGES)
        reset(self.store, self.group, self.topic, to)
        dead = "".join("D" if each == "D" else "C" for each in before[:to])
        assert self.states == dead + "R" * (MESSAGES - to)
        digest = self.store.digest()
        for each in self.held:
            refusal = self._try(change.ChangeInvisible(self.group, receipt_of(each), SECOND))
            assert isinstance(refusal, PopError), "no handle from before holds anything"
        assert self.store.digest() == digest
        self.held.clear()

    def skip(self) -> None:
        before, offset = self.states, self.random.randrange(MESSAGES)
        done = skip(self.store, self.group, self.topic, offset).is_done
        assert not done or before[offset] in "RW"
        assert before[offset] != "W" or done
        after = self.states
        assert after[offset] == ("C" if done else before[offset])
        changed = [at for at in range(MESSAGES) if before[at] != after[at] and at != offset]
        # Behind it in its message group what was acked provisionally has ended with it.
        assert all((before[at], after[at]) == ("R", "C") for at in changed)
        assert done or not changed

    def _try(self, request: change.ChangeInvisible) -> object:
        return self.store.do(change.change_invisible, request)[0]

    def finish(self) -> None:
        """Everything that is left comes, each message group in its order."""
        self.store.end_due(after_ms=60 * SECOND)
        seen: dict[str, list[int]] = defaultdict(list)
        for _ in range(4 * MESSAGES):
            for each in self.store.receive(self.group, self.topic):
                seen[each.stored.message.message_group or ""].append(each.stored.offset)
                self.store.ack(self.group, each)
        assert set(self.states) <= {State.COMMIT[0], State.DLQ[0]}
        for name, offsets in seen.items():
            assert name == "" or offsets == sorted(offsets)


@pytest.mark.row("H13")
@pytest.mark.parametrize("seed", range(8))
def test_random_lives(store: OpenStore, seed: int) -> None:
    life = Life(store, seed)
    for _ in range(STEPS):
        life.step()
    life.finish()
