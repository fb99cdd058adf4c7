"""The law of a move: nothing is lost, message groups keep their order over both sides, and doubles are counted."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.support.checker import Violation


class Sent(NamedTuple):
    """A message that a side has confirmed. `number`: its place among those of its message group, or of its producer;
    `tries`: how often it was sent, so it may be stored so often."""

    topic: str
    message_group: str | None
    number: int
    body: str
    side: str
    tries: int


class Consumed(NamedTuple):
    """A delivery, in the order of the clock of the process that receives."""

    group: str
    topic: str
    message_group: str | None
    body: str
    side: str
    attempt: int


class Verdict(NamedTuple):
    """`doubles`: deliveries of messages that a group had got before, by where: both sides, or one side again."""

    violations: list[Violation]
    doubles: Counter[str]


def judge(
    sent: Sequence[Sent], consumed: Sequence[Consumed], groups: dict[str, list[str]], lax: str | None = None
) -> Verdict:
    """`groups`: of each topic. `lax`: a side whose own order is not judged, only the order between the sides.

    RocketMQ is such a side while brokers are killed, because it sends a message group to another broker then.
    """
    violations = [*_lost(sent, consumed, groups), *_out_of_order(sent, consumed, lax)]
    return Verdict(violations, _doubles(consumed))


def _lost(sent: Iterable[Sent], consumed: Iterable[Consumed], groups: dict[str, list[str]]) -> Iterator[Violation]:
    got = {(each.group, each.topic, each.body) for each in consumed}
    for each in sent:
        for group in groups[each.topic]:
            if (group, each.topic, each.body) not in got:
                yield Violation("I1", f"{each.body} of {each.topic}, confirmed by {each.side}, did not reach {group}")


def _out_of_order(sent: Iterable[Sent], consumed: Iterable[Consumed], lax: str | None) -> Iterator[Violation]:
    """A message of a message group is delivered first only after all that were sent before it."""
    numbers = {(each.topic, each.body): each.number for each in sent}
    latest: defaultdict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)  # by side
    seen: set[tuple[str, str, str]] = set()
    for each in consumed:
        number = numbers.get((each.topic, each.body))
        if each.message_group is None or number is None or (each.group, each.topic, each.body) in seen:
            continue
        seen.add((each.group, each.topic, each.body))
        of_sides = latest[each.group, each.topic, each.message_group]
        for side, before in of_sides.items():
            if number < before and not side == each.side == lax:
                yield Violation("I3", f"{each.group} got {each.body} at {each.side} after number {before} at {side}")
        of_sides[each.side] = max(of_sides.get(each.side, -1), number)


def _doubles(consumed: Iterable[Consumed]) -> Counter[str]:
    doubles: Counter[str] = Counter()
    first: dict[tuple[str, str, str], str] = {}
    for each in consumed:
        key = each.group, each.topic, each.body
        if key in first:
            doubles["at both sides" if first[key] != each.side else f"again at the {each.side} side"] += 1
        first.setdefault(key, each.side)
    return doubles
