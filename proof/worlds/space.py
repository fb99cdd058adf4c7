"""The space of a law: all worlds that its events lead to, the shortest way first."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

from proof.worlds.law import Answer, Happening, Law, World


class Step(NamedTuple):
    """One transition."""

    what: Happening
    after: World
    answer: Answer


class Space(NamedTuple):
    """All worlds up to a depth, each with its transitions. `tree`: the transitions that first led to a world."""

    start: World
    steps: dict[World, list[Step]]
    tree: dict[World, list[Step]]
    is_closed: bool

    @property
    def transitions(self) -> int:
        return sum(len(each) for each in self.steps.values())


def explore(law: Law, depth: int | None = None) -> Space:
    """Breadth first, to that depth, or (None) until nothing new is found."""
    start = law.start()
    depths = {start: 0}
    steps: dict[World, list[Step]] = {}
    tree: dict[World, list[Step]] = defaultdict(list)
    waiting = deque([start])
    is_closed = True
    while waiting:
        world = waiting.popleft()
        if depth is not None and depths[world] >= depth:
            is_closed = False
            continue
        steps[world] = [Step(what, *law.after(world, what)) for what in law.happenings(world)]
        for step in steps[world]:
            if step.after not in depths:
                depths[step.after] = depths[world] + 1
                tree[world].append(step)
                waiting.append(step.after)
    return Space(start, steps, tree, is_closed)
