"""Deaths, plans, repairs, purges and resets by chance: each dead letter goes back at most once, and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from popserver.dead_letters import plan_requests, plans
from popserver.dead_letters import purge as dead_letters_purge
from popserver.dead_letters.rules import RedriveItem, Repair
from popserver.model.errors import PopError
from popserver.model.message import Delivery
from popserver.model.states import State
from popserver.progress.rules import Edge
from tests.support.open_store import SECOND, OpenStore
from tests.support.progress import reset
from tests.support.redrive import a_plan, letter_ids, letters, write_plan

TURNS = 120
SEEDS = 3


class Lives:
    """One group, one topic, and what was seen of each message."""

    def __init__(self, store: OpenStore, chance: random.Random) -> None:
        self.store = store
        self.chance = chance
        self.topic = store.topic(queues=2)
        self.group = store.group(meets=[self.topic], max_attempts=2)
        self.held: list[Delivery] = []
        self.sent: set[str] = set()
        self.acked: set[str] = set()
        self.purged: set[str] = set()
        self.plans = 0

    def turn(self) -> None:
        deeds = [self.send, *[self.receive] * 3, *[self.ack] * 2, *[self.give_up] * 4, self.let_time_pass]
        deeds += [*[self.plan] * 2, *[self.run] * 3, *[self.order] * 3, self.purge, self.reset]
        self.chance.choice(deeds)()

    def send(self) -> None:
        self.sent |= {each.message_id for each in self.store.send(self.topic, self.chance.randrange(1, 4))}

    def receive(self) -> None:
        self.held += self.store.receive(self.group, self.topic, self.chance.randrange(1, 5), invisible_ms=5 * SECOND)

    def ack(self) -> None:
        for each in self.some():
            if self.store.ack(self.group, each) == [None]:
                self.acked.add(each.stored.message.message_id)

    def give_up(self) -> None:
        for each in self.some():
            self.store.forward(self.group, each)

    def let_time_pass(self) -> None:
        self.store.end_due(after_ms=6 * SECOND)

    def plan(self) -> None:
        self.plans += 1
        write_plan(self.store, self.group, f"p{self.plans}")

    def run(self) -> None:
        if self.plans:
            plan_id = f"p{self.chance.randrange(self.plans) + 1}"
            self.store.do(plans.run_plan, plan_requests.RunPlan(plan_id, self.chance.randrange(1, 4)))

    def order(self) -> None:
        known = letter_ids(self.store, self.group)
        some = self.chance.sample(known, min(len(known), 3))
        repairs = (None, Repair(b"mended"))
        orders = [RedriveItem(each, "", self.chance.choice(repairs)) for each in some]
        if orders:
            name = f"o{self.chance.randrange(5)}"
            (done,) = self.store.do(plans.redrive_now, plan_requests.RedriveNow(a_plan(self.group, name), orders))
            assert not isinstance(done, PopError)

    def purge(self) -> None:
        known = {row.id: bytes(row.message_id) for row in letters(self.store, self.group)}
        some = [each for each in known if self.chance.random() < 0.2]
        self.store.one(dead_letters_purge.purge_letters, dead_letters_purge.PurgeLetters(self.group, some))
        left = set(letter_ids(self.store, self.group))
        self.purged |= {known[each].hex().upper() for each in known.keys() - left}

    def reset(self) -> None:
        if self.chance.random() < 0.2:
            reset(self.store, self.group, self.topic, Edge.BEGINNING)

    def some(self) -> list[Delivery]:
        some = self.held[: self.chance.randrange(1, 4)]
        self.held = self.held[len(some) :]
        return some

    def check(self) -> None:
        self.store.check()
        assert not self.store.rows("SELECT 1 FROM redrive WHERE state = 'REDRIVEN' AND redriven_key IS NULL")
        places = self.store.rows("""
            SELECT m.message_id FROM delivery d JOIN message m ON m.message_key = d.message_key
            UNION ALL
            SELECT m.message_id FROM dead_letter l JOIN message m ON m.message_key = l.copy_key
            WHERE l.redrive_state IS NULL""")
        counts = Counter(bytes(row.message_id) for row in places)
        assert all(count == 1 for count in counts.values()), "held, waiting or dead, but in one place"

    def finish(self) -> None:
        """Everything that can be received is acked; what is left is dead, and nothing else is."""
        self.let_time_pass()
        self.held = []
        while found := self.store.receive(self.group, self.topic, 32):
            assert self.store.ack(self.group, *found) == [None] * len(found)
            self.acked |= {each.stored.message.message_id for each in found}
        states = self.store.states(self.group)
        dead = {name for name, state in states.items() if state is State.DLQ}
        assert set(states.values()) <= {State.COMMIT, State.DLQ}
        assert self.sent <= self.acked | dead | self.purged


@pytest.mark.row("L12")
@pytest.mark.parametrize("number", range(SEEDS))
def test_each_goes_back_once_and_nothing_is_lost(store: OpenStore, number: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    lives = Lives(store, random.Random(seed))
    try:
        for _ in range(TURNS):
            lives.turn()
            lives.check()
        lives.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
