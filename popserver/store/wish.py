"""What receives ask for, and what is found for them."""

from __future__ import annotations

from typing import NamedTuple

from popserver.domain.filtering import Filter
from popserver.domain.group import Group
from popserver.domain.topic import Topic
from popserver.store.message_groups import Member
from popserver.store.message_look import MessageRow


class Wish(NamedTuple):
    """What receives that want the same ask for together; `rotation` says at which queue to start.

    `keeps_order` is false in a dead-letter topic, whose messages are taken one by one whatever group they were in.
    Without `bodies` the rows that are found have empty ones.
    """

    group: Group
    topic: Topic
    wanted: Filter
    room: int
    rotation: int
    keeps_order: bool
    bodies: bool = True

    @property
    def names(self) -> dict[str, int]:
        return {"group_id": self.group.group_id, "topic_id": self.topic.topic_id}


class Found(NamedTuple):
    """A message that may be granted; `attempt` will be its delivery attempt."""

    row: MessageRow
    attempt: int
    member: Member | None = None  # the message group that is locked by the grant
    has_delivery: bool = False  # it was granted before
