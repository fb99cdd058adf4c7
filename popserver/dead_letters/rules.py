"""Dead letters that go back: which, under what name, and what is different in them.

A redriven message begins anew: its attempts from 1, and it waits for nobody of its message group. A plan is the record
of what was sent back; each dead letter goes back at most once.
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

ITEMS_MAX = 1_000  # of one request
PLAN_ID_LENGTH_MAX = 64
REASON_LENGTH_MAX = 1_024

_PLAN_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{PLAN_ID_LENGTH_MAX}}}")


class Repair(NamedTuple):
    """What is different in a repaired message; None leaves a value as it was. An empty `tag` is none."""

    body: bytes | None = None
    tag: str | None = None
    keys: tuple[str, ...] | None = None
    properties: Mapping[str, str] | None = None


class RedriveItem(NamedTuple):
    """One dead letter to be sent back."""

    dead_letter_id: int
    reason: str = ""
    repair: Repair | None = None

    @property
    def change(self) -> Change:
        return Change.NONE if self.repair is None else Change.REPAIR


class LetterSelection(NamedTuple):
    """Which dead letters are meant, by names; what is None or empty does not narrow."""

    group: Resource
    topic: Resource | None = None
    dead_from_ms: int | None = None
    dead_until_ms: int | None = None
    where: str = ""
    ids: tuple[int, ...] = ()
    redriven_too: bool = False


class Selection(NamedTuple):
    """Which dead letters of a group; what is None or empty does not narrow.

    `dead_from_ms` is included, `dead_until_ms` is not. `where` is a SQL filter on the message's properties, and on
    TAGS, REASON, ATTEMPT, TOPIC, MESSAGE_ID and MESSAGE_GROUP.
    """

    topic_id: int | None = None
    dead_from_ms: int | None = None
    dead_until_ms: int | None = None
    where: str = ""
    ids: tuple[int, ...] = ()
    redriven_too: bool = False


def check_plan_id(plan_id: str) -> None:
    """1 to 64 characters out of A-Z a-z 0-9 _ . : -, so that it is one word in a log, a URL and a shell."""
    if not _PLAN_ID.fullmatch(plan_id):
        raise BadRequest(
            f"plan id {plan_id[:64]!r} is not one of 1 to {PLAN_ID_LENGTH_MAX} characters out of A-Z a-z 0-9 _ . : -"
        )


def check_reason(reason: str) -> None:
    """At most 1,024 characters, none of them a control character."""
    if len(reason) > REASON_LENGTH_MAX:
        raise BadRequest(f"the reason has {len(reason)} characters, at most {REASON_LENGTH_MAX} are allowed")
    if CONTROL.search(reason):
        raise BadRequest(f"the reason {reason[:64]!r} holds a control character")


def check_repair(dead_letter_id: int, repair: Repair) -> None:
    """Raise unless a message may be like that: the limits of a message that is sent (`model.message.check`)."""
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
    """The properties of a message that was made of a dead letter: which one, and by which plan."""
    return {**properties, REDRIVE_OF: parent_id, REDRIVE_PLAN: plan_id}


def message_id_of(plan_id: str, dead_letter_id: int, planned_at_ms: int) -> str:
    """The id of the message that a plan makes of a dead letter in its target topic.

    It follows from the two alone, and begins with the time of the plan, so that ids grow as their index wants it.
    """
    named = hashlib.blake2b(f"{plan_id}\x00{dead_letter_id}".encode(), digest_size=10).hexdigest()
    return f"01{planned_at_ms & 0xFFFF_FFFF_FFFF:012x}{named}".upper()
