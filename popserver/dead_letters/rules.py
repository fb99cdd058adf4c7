"""Redrives: the selection of dead letters, the ids of plans, and repairs.

A redriven message starts anew: its attempts start at 1, and it does not wait for its message group. A plan redrives
each dead letter at most once, and records it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from popserver.model.errors import BadRequest, PopError
from popserver.model.message import REDRIVE_OF, REDRIVE_PLAN, Message, check
from popserver.model.names import CONTROL, Resource
from popserver.model.states import Change

ITEMS_MAX = 1_000  # in one request
PLAN_ID_LENGTH_MAX = 64
REASON_LENGTH_MAX = 1_024

_PLAN_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{PLAN_ID_LENGTH_MAX}}}")


class Repair(NamedTuple):
    """Changes of a repaired message; None keeps a value. An empty `tag` removes the tag."""

    body: bytes | None = None
    tag: str | None = None
    keys: tuple[str, ...] | None = None
    properties: Mapping[str, str] | None = None


class RedriveItem(NamedTuple):
    """One dead letter to redrive."""

    dead_letter_id: int
    reason: str = ""
    repair: Repair | None = None

    @property
    def change(self) -> Change:
        return Change.NONE if self.repair is None else Change.REPAIR


class Selection(NamedTuple):
    """A selection of a group's dead letters; None and empty values do not narrow it.

    `dead_from_ms` is inclusive, `dead_until_ms` exclusive. `where` is a SQL filter on the message's properties, and on
    TAGS, REASON, ATTEMPT, TOPIC, MESSAGE_ID and MESSAGE_GROUP.
    """

    topic_id: int | None = None
    dead_from_ms: int | None = None
    dead_until_ms: int | None = None
    where: str = ""
    ids: tuple[int, ...] = ()
    redriven_too: bool = False


class LetterSelection(NamedTuple):
    """A selection of a group's dead letters, in one topic or (None) in all; `only` has no topic id."""

    group: Resource
    topic: Resource | None = None
    only: Selection = Selection()


def check_plan_id(plan_id: str) -> None:
    """Raise unless the id has 1 to 64 of the characters A-Z a-z 0-9 _ . : - (one word in a log, a URL and a shell)."""
    if not _PLAN_ID.fullmatch(plan_id):
        raise BadRequest(
            f"plan id {plan_id[:64]!r} is not one of 1 to {PLAN_ID_LENGTH_MAX} characters out of A-Z a-z 0-9 _ . : -"
        )


def check_reason(reason: str) -> None:
    """Raise unless the reason has at most 1,024 characters and no control character."""
    if len(reason) > REASON_LENGTH_MAX:
        raise BadRequest(f"the reason has {len(reason)} characters, at most {REASON_LENGTH_MAX} are allowed")
    if CONTROL.search(reason):
        raise BadRequest(f"the reason {reason[:64]!r} contains a control character; leave it out")


def check_repair(dead_letter_id: int, repair: Repair) -> None:
    """Raise if the repaired message breaks a limit of messages (`model.message.check`)."""
    sent = Message(
        Resource("", "repaired"),
        str(dead_letter_id),
        b"-" if repair.body is None else repair.body,
        repair.tag or None,
        repair.keys or (),
        repair.properties or {},
    )
    try:
        check(sent)
    except PopError as refusal:
        raise type(refusal)(f"the repair of dead letter {dead_letter_id}: {refusal.sentence}") from None


def with_marks(properties: Mapping[str, str], plan_id: str, parent_id: str) -> dict[str, str]:
    """The properties of a message made from a dead letter, with its parent's id and the plan's id added."""
    return {**properties, REDRIVE_OF: parent_id, REDRIVE_PLAN: plan_id}


def message_id_of(plan_id: str, dead_letter_id: int, planned_at_ms: int) -> str:
    """The id of the message that a plan makes from a dead letter in its target topic.

    It depends only on the plan and the dead letter. It begins with the plan's time, so that new ids come last in the
    index.
    """
    named = hashlib.blake2b(f"{plan_id}\x00{dead_letter_id}".encode(), digest_size=10).hexdigest()
    return f"01{planned_at_ms & 0xFFFF_FFFF_FFFF:012x}{named}".upper()
