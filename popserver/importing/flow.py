"""Imports of one group's messages: checks them, and gives what is good to the writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from popserver.catalog.flow import Catalog
from popserver.delivery.dead_letter_topic import ImportedLetter
from popserver.delivery.retry_topic import unmarked
from popserver.engine.clock import Clock
from popserver.engine.transaction import Request
from popserver.engine.writer import Writer
from popserver.importing.imports import Import, ImportDead, Imported
from popserver.model.errors import BadRequest, MessagePropertyConflictWithType, PopError
from popserver.model.group import Group, Mode
from popserver.model.message import Message, check
from popserver.model.names import Resource
from popserver.model.topic import MessageType, Topic

MESSAGES_MAX = 1_000  # in one request, which is one step of a transaction
REASON_LENGTH_MAX = 1_024
NO_REASON = "it was a dead letter at another broker"

log = structlog.get_logger("popserver.importing")


class Death(NamedTuple):
    """Why and when a message became a dead letter; an empty reason or time 0: unknown."""

    reason: str
    dead_at_ms: int


class Given(NamedTuple):
    """One message of a request. `attempts`: how often the group received it; `death` None: it is not dead."""

    message: Message
    attempts: int
    death: Death | None


class Importing:
    """Takes messages that another broker holds for one group. Each message has its own outcome."""

    def __init__(self, writer: Writer, catalog: Catalog, clock: Clock) -> None:
        self._writer = writer
        self._catalog = catalog
        self._clock = clock

    async def run(
        self, group_name: Resource, topic_name: Resource, given: Sequence[Given | PopError]
    ) -> list[bool | PopError]:
        """Store the messages for the group alone; each outcome: whether it is stored already, or why it is refused.

        Raises `ConsumerGroupNotFound`, `TopicNotFound`, `BadRequest`, and `TooManyRequests`, and stores nothing then.
        """
        if not 1 <= len(given) <= MESSAGES_MAX:
            raise BadRequest(f"one request imports 1 to {MESSAGES_MAX} messages, not {len(given)}; use several")
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        seen: set[str] = set()
        outcomes: dict[int, bool | PopError] = {}
        alive: dict[int, Imported] = {}
        dead: dict[int, ImportedLetter] = {}
        for index, each in enumerate(given):
            try:
                if isinstance(each, PopError):
                    raise each
                message = _checked(each, seen)
                if each.death is None:
                    alive[index] = Imported(message, _failures(each, group))
                else:
                    dead[index] = self._letter(each, message, topic)
            except PopError as refusal:
                outcomes[index] = refusal
        if (alive or dead) and group.mode is not Mode.PULL:
            # As by a first receive: from now on the topic is in the group's lag, and its messages are for the group.
            await self._catalog.subscription(group_name, topic_name)
        outcomes |= await self._stored(alive, Import(group, topic, [*alive.values()]))
        outcomes |= await self._stored(dead, ImportDead(group, topic, [*dead.values()]))
        log.info("messages imported", group=str(group.name), topic=str(topic.name), count=len(alive), dead=len(dead))
        return [outcomes[index] for index in range(len(given))]

    def _letter(self, given: Given, message: Message, topic: Topic) -> ImportedLetter:
        assert given.death is not None, "the caller has looked"
        reason, dead_at_ms = given.death
        if len(reason) > REASON_LENGTH_MAX:
            raise BadRequest(
                f"the reason of dead letter {message.message_id} has {len(reason)} characters, at most"
                f" {REASON_LENGTH_MAX} are allowed"
            )
        now_ms = self._clock.now_ms()
        at_ms = min(dead_at_ms, now_ms) if dead_at_ms > 0 else now_ms
        return ImportedLetter(message, topic.topic_id, max(1, given.attempts), reason or NO_REASON, at_ms)

    async def _stored(
        self, named: Mapping[int, Imported | ImportedLetter], request: Request[list[bool]]
    ) -> dict[int, bool]:
        if not named:
            return {}
        size = sum(len(each.message.body) for each in named.values())
        return dict(zip(named, await self._writer.submit_again(request, size=size), strict=True))


def _checked(given: Given, seen: set[str]) -> Message:
    """The message as this server stores it for a group: without the marks of another server's retry topic."""
    message = given.message
    if given.attempts < 0:
        raise BadRequest(f"message {message.message_id} has {given.attempts} attempts; give 0 or more")
    if message.message_id in seen:
        raise BadRequest(f"message {message.message_id} is in the request twice; name each once")
    if message.message_type is MessageType.LITE:
        raise MessagePropertyConflictWithType(
            f"message {message.message_id} is of lite topic '{message.message_group}'; send it to its topic instead"
        )
    if message.message_group is not None and given.death is None:
        raise MessagePropertyConflictWithType(
            f"message {message.message_id} is of message group '{message.message_group}', whose order only its topic"
            " keeps; send it to the topic instead"
        )
    message = message._replace(properties=unmarked(message.properties), deliver_at_ms=None, priority=None)
    if message.message_type is not MessageType.FIFO:
        message = message._replace(message_type=MessageType.NORMAL)
    check(message)
    seen.add(message.message_id)
    return message


def _failures(given: Given, group: Group) -> int:
    """How often it failed, but so that the group has one attempt at least."""
    return min(max(0, given.attempts - 1), group.retry.max_attempts - 1)
