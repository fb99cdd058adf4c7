"""A consumer that gives messages up, and the operator who sends them back."""

from __future__ import annotations

import random

from popserver.dead_letters.rules import LetterSelection, RedriveItem
from popserver.model.names import Resource
from popserver.model.states import RedriveState
from proof.history.events import Forward, Redrive
from proof.simulate.clients import TOPIC, Consumer, Diary
from tests.support.checker import Outcome

LETTERS_MAX = 16  # of one plan


class GivingUpConsumer(Consumer):
    """Now and then it says that a message shall be a dead letter."""

    async def act(self, chance: random.Random) -> None:
        if self._held and chance.random() < 0.3:
            await self._forward(self._take(chance))
        else:
            await super().act(chance)

    async def _forward(self, held: tuple[str, str]) -> None:
        diary, group = self._diary, self._group
        invoked, outcome = diary.now(), Outcome.UNKNOWN
        try:
            outcome, _ = await diary.outcome(
                diary.machine.broker.forward_to_dead_letter_queue(group, TOPIC, held[1], held[0])
            )
        finally:
            diary.history.add(Forward(outcome, invoked, diary.now(), group.name, *held))


class Redriver:
    """Sends dead letters of a group back; a call without an answer is repeated under the same plan."""

    def __init__(self, diary: Diary, group: str) -> None:
        self._diary = diary
        self._group = Resource("", group)
        self._plans = 0
        self._again: tuple[str, list[tuple[int, str]]] | None = None

    async def act(self, _chance: random.Random) -> None:
        diary, again = self._diary, self._again
        if again is None:
            redrives, of = diary.machine.broker.redrives(), LetterSelection(self._group)
            _, page = await diary.outcome(redrives.dead_letters(of, 0, LETTERS_MAX, bodies=False))
            if page is None or not page.letters:
                return
            self._plans += 1
            named = [(each.dead_letter_id, each.stored) for each in page.letters]
            letters = [
                (number, stored.dead_letter_of[1]) for number, stored in named if stored and stored.dead_letter_of
            ]
            again = self._again = (f"{self._group.name}-{self._plans}", letters)
        await self._send_back(*again)

    async def _send_back(self, plan_id: str, letters: list[tuple[int, str]]) -> None:
        diary, orders = self._diary, [RedriveItem(number) for number, _ in letters]
        invoked, outcome, sent = diary.now(), Outcome.UNKNOWN, set[int]()
        try:
            redrives = diary.machine.broker.redrives()
            outcome, answer = await diary.outcome(redrives.redrive(plan_id, self._group, orders, "", None, "operator"))
            sent = {each.dead_letter_id for each in answer or () if each.state == RedriveState.REDRIVEN}
        finally:
            ids = tuple(message_id for _, message_id in letters)
            sent_ids = tuple(message_id for number, message_id in letters if number in sent)
            diary.history.add(Redrive(outcome, invoked, diary.now(), self._group.name, plan_id, ids, sent_ids))
        if outcome is not Outcome.UNKNOWN:
            self._again = None
