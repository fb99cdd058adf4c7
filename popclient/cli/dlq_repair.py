"""`popmq dlq redrive --repair`: a user's function says of each dead letter what is different when it goes back."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from popclient.admin import Admin, DeadLetter, RedriveOrder, Repair
from popclient.admin.pace import Pace
from popclient.cli.output import say, table
from popclient.cli.selection import GONE, selection_of
from popclient.cli.telling import Telling
from popclient.cli.user_function import UserFunction

# Bodies of one request; the server takes four times as much, whatever one more repair adds.
BATCH_BYTES: Final = 8 * 1024 * 1024
LEFT: Final = "LEFT"


class Repaired(NamedTuple):
    """A dead letter, and what the function said of it; None: it stays where it is."""

    letter: DeadLetter
    repair: Repair | None

    @property
    def change(self) -> str:
        if self.repair is None:
            return LEFT
        return f"REPAIR {','.join(self.repair.changed)}" if self.repair.changed else "NONE"

    @property
    def order(self) -> RedriveOrder:
        return RedriveOrder(self.letter.id, self.repair if self.repair and self.repair.changed else None)

    @property
    def size(self) -> int:
        """The bytes of its new body, of at most four each where it is text."""
        body = self.repair.body if self.repair else None
        return len(body) * (4 if isinstance(body, str) else 1) if body else 0


class Tally:
    """How many went back, were no dead letters any more, and were left."""

    def __init__(self) -> None:
        self.redriven = 0
        self.skipped = 0
        self.left = 0

    def __str__(self) -> str:
        return f"{self.redriven} sent back, {self.skipped} skipped, {self.left} left where they are"


def redrive_repaired(arguments: Namespace, admin: Admin, plan_id: str, telling: Telling) -> int:
    repair = UserFunction(arguments.repair, Repair)
    letters = admin.dead_letters(selection_of(arguments))
    judged = (Repaired(letter, repair(letter)) for letter in letters)
    if arguments.dry_run:
        return _show(arguments, judged)
    telling.say(f"plan {plan_id}: dead letters of {arguments.group} are repaired and sent back")
    tally = _send(arguments, admin, plan_id, judged, telling)
    document = {
        "plan_id": plan_id,
        "group": arguments.group,
        "redriven": tally.redriven,
        "skipped": tally.skipped,
        "left": tally.left,
    }
    line = f"plan {plan_id}: {tally}"
    if tally.skipped:
        line += f"; why: popmq dlq plan {plan_id}"
    return say(arguments, document, [line])


def batches(judged: Iterable[Repaired], count: int, size: int = BATCH_BYTES) -> Iterator[list[Repaired]]:
    """In order, at most `count` that go back in each, and about `size` bytes of new bodies."""
    batch: list[Repaired] = []
    orders, bytes_held = 0, 0
    for each in judged:
        batch.append(each)
        orders += each.repair is not None
        bytes_held += each.size
        if orders == count or bytes_held >= size:
            yield batch
            batch, orders, bytes_held = [], 0, 0
    if batch:
        yield batch


def _send(arguments: Namespace, admin: Admin, plan_id: str, judged: Iterable[Repaired], telling: Telling) -> Tally:
    pace, tally = Pace(arguments.rate), Tally()
    for batch in batches(judged, pace.step):
        orders = [each.order for each in batch if each.repair is not None]
        tally.left += len(batch) - len(orders)
        if orders:
            pace.await_turn()
            redrives = admin.redrive_dead_letters(
                plan_id, arguments.group, orders, target=arguments.to, reason=arguments.reason
            )
            redriven = sum(1 for each in redrives if each.state == "REDRIVEN")
            pace.spent(redriven)
            tally.redriven += redriven
            tally.skipped += len(orders) - redriven
        telling.progress(str(tally))
    return tally


def _show(arguments: Namespace, judged: Iterable[Repaired]) -> int:
    """Everything is judged, some of it shown."""
    shown: list[Repaired] = []
    counts = {"NONE": 0, "REPAIR": 0, LEFT: 0}
    for each in judged:
        counts[each.change.partition(" ")[0]] += 1
        if len(shown) < arguments.max:
            shown.append(each)
    target = arguments.to or f"group {arguments.group}"
    rows = [
        (
            each.letter.id,
            each.letter.origin_message_id,
            each.letter.topic or GONE,
            "" if each.repair is None else target,
            each.change,
            each.letter.reason,
        )
        for each in shown
    ]
    lines = table(["id", "message id", "from", "target", "change", "dead because"], rows, "nothing to send back")
    if (more := sum(counts.values()) - len(shown)) > 0:
        lines.append(f"… and {more} more; --max shows them")
    ends = f"{counts['REPAIR']} repaired, {counts['NONE']} as they are, {counts[LEFT]} left; nothing has moved"
    document = {
        "dry_run": True,
        "group": arguments.group,
        "target": arguments.to,
        "repaired": counts["REPAIR"],
        "unchanged": counts["NONE"],
        "left": counts[LEFT],
        "redrives": [_document(each, arguments.to) for each in shown],
    }
    return say(arguments, document, [*lines, "", ends])


def _document(each: Repaired, target: str | None) -> dict[str, Any]:
    return {
        "dead_letter_id": each.letter.id,
        "message_id": each.letter.origin_message_id,
        "topic": each.letter.topic,
        "target": None if each.repair is None else target,
        "change": each.change,
        "reason": each.letter.reason,
    }
