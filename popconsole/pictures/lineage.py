"""What became of a message that died: the original, its dead letter, the plan that sent it back, and the outcome."""

from __future__ import annotations

from typing import Final, NamedTuple

from popclient.admin import DeadLetter, Redrive
from popconsole import words

BOX: Final = 210.0
GAP: Final = 36.0


class Box(NamedTuple):
    """One step: what it is, two lines about it, the colour of its edge, and the page that it leads to, as a path."""

    title: str
    line: str
    more: str
    colour: str
    x: float
    link: tuple[str, ...]


def lineage_of(letter: DeadLetter, redrive: Redrive | None) -> list[Box]:
    """The steps so far, from left to right."""
    steps: list[tuple[str, str, str, str, tuple[str, ...]]] = [
        (
            "message",
            words.short(letter.origin_message_id),
            letter.topic,
            "ready",
            ("messages", letter.origin_message_id),
        ),
        (
            f"dead letter {letter.id}",
            f"attempt {letter.delivery_attempt} of {letter.group}",
            letter.reason,
            "dlq",
            ("dead-letters", letter.group, str(letter.id)),
        ),
    ]
    if redrive is None and letter.redrive_state == "RESET":
        steps.append(("reset", "its group was reset", "", "waiting", ("groups", letter.group)))
    if redrive is not None:
        what = "repaired" if redrive.change == "REPAIR" else "unchanged"
        where = f"to {redrive.target}" if redrive.target else "to its group"
        link = "redrives", redrive.plan_id
        steps.append((f"redrive, {redrive.state.lower()}", f"{what}, {where}", redrive.reason, "waiting", link))
        if redrive.outcome:
            shown = words.state(redrive.outcome)
            back = redrive.redriven_message_id or redrive.message_id
            steps.append((f"{shown.shape} {redrive.outcome}", words.short(back), "", shown.colour, ("messages", back)))
        elif redrive.note:
            steps.append(("skipped", redrive.note, "", "unknown", link))
    return [
        Box(title, line, more, colour, index * (BOX + GAP), link)
        for index, (title, line, more, colour, link) in enumerate(steps)
    ]
