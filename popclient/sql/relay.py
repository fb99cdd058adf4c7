"""Shared by the relays of an outbox table: messages that may be sent together, and failures."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, Select, func, not_, select

from popclient.errors import (
    BadRequest,
    ClientClosed,
    PayloadTooLarge,
    PopError,
    PropertiesTooLarge,
    RefusedByProxy,
    Unauthorized,
    Unreachable,
)
from popclient.message import Message
from popclient.sql.tables import outbox

# One step is one request to the broker, which stores all messages of a message group or none.
STEP_ROWS: Final = 128
STEP_BYTES: Final = 4 * 1024 * 1024
TOPIC_PAUSE: Final = 5.0  # seconds until a topic is tried again for which the broker takes no messages
PAUSE_MAX: Final = 5.0  # seconds between two tries to reach the broker or the database

# The message's own fault: trying again does not help.
OF_THE_MESSAGE: Final = (BadRequest, PayloadTooLarge, PropertiesTooLarge)
# There is no broker, or no producer that it takes messages of.
OF_ALL: Final = (Unreachable, ClientClosed, Unauthorized, RefusedByProxy)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger("popclient.relay")


class Step(NamedTuple):
    """The result of one step: how many messages the broker has stored and refused, and how many wait for later."""

    moved: int
    refused: int
    left: int


class PausedTopics:
    """Topics for which the broker takes no messages now."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # topic → when to try it again
        self._logged: dict[str, str] = {}  # topic → why it waits, as the log says

    def next_rows(self) -> Select[int, int]:
        """Number and length of the next messages of the other topics."""
        now = time.monotonic()
        self._until = {topic: until for topic, until in self._until.items() if until > now}
        return _NARROW.where(not_(outbox.c.topic.in_(list(self._until)))) if self._until else _NARROW

    def note(self, topic: str, outcome: object) -> None:
        """The outcome of a message of the topic."""
        if not isinstance(outcome, PopError):
            self._logged.pop(topic, None)
        elif not isinstance(outcome, (*OF_THE_MESSAGE, *OF_ALL)):
            if self._logged.get(topic) != str(outcome):
                log.warning("the messages of topic %s wait: %s", topic, outcome)
            self._logged[topic] = str(outcome)
            self._until[topic] = time.monotonic() + TOPIC_PAUSE


def require_fit(engine: object, producer: object, *, is_async: bool) -> None:
    """Raises TypeError unless they are an engine and a producer, both of asyncio or neither."""
    for name, given, mark, does in (
        ("engine", engine, "sync_engine", "connect"),
        ("producer", producer, "__aenter__", "send_many"),
    ):
        if not hasattr(given, does):  # a URL has a password: it is not shown
            raise TypeError(f"{name} is of type {type(given).__name__}; a Relay takes an engine and a producer")
        if hasattr(given, mark) != is_async:
            relation, wanted = ("no", "takes one") if is_async else ("an", "takes it")
            raise TypeError(f"{name} {given!r} is {relation} asyncio {name}; popclient.aio.Relay {wanted}")


def and_refused(count: int) -> str:
    """The end of a sentence about an outbox: how many of its messages are refused, and how to see why."""
    return f", {count} are refused: {_WHY}" if count else ""


_WHY: Final = "SELECT outbox_id, refusal FROM popmq_outbox WHERE refusal IS NOT NULL"


def waves(rows: Sequence[Row[Any]], *, in_runs: bool) -> list[list[Row[Any]]]:
    """What may be sent together. A broker without batches could store the second message of a group without the first;
    for it each wave has one message of each group."""
    if in_runs:
        return [list(rows)] if rows else []
    found: list[list[Row[Any]]] = []
    depth: dict[tuple[str, str], int] = {}
    for row in rows:
        group = group_of(row)
        at = depth.get(group, 0) if row.message_group else 0
        depth[group] = at + 1
        if at == len(found):
            found.append([])
        found[at].append(row)
    return found


def group_of(row: Row[Any]) -> tuple[str, str]:
    return row.topic, row.message_group or ""


def message_of(row: Row[Any]) -> Message | PopError:
    """The message of a row. Others may write to the table too: for a row that is no message, the refusal."""
    due = row.deliver_at_ms
    try:
        return Message(
            row.topic,
            row.body,
            tag=row.tag,
            keys=_texts(json.loads(row.keys or "[]"), list),
            properties=_texts(json.loads(row.properties or "{}"), dict),
            message_group=row.message_group,
            delivery_timestamp=None if due is None else _EPOCH + timedelta(milliseconds=due),
            priority=row.priority,
            trace_context=row.trace_context,
            message_id=row.message_id,
        )
    except (TypeError, ValueError, OverflowError) as error:
        return BadRequest(f"the row cannot be read: {error}")


def _texts(read: Any, kind: type) -> Any:
    """Parsed JSON, if it is of that kind and holds only texts."""
    each_of = read.values() if isinstance(read, dict) else read
    if not isinstance(read, kind) or not all(isinstance(each, str) for each in each_of):
        raise TypeError(f"{str(read)[:64]!r} is no JSON {'object' if kind is dict else 'array'} of texts")
    return read


WAITING = outbox.c.refusal.is_(None)
REFUSED = outbox.c.refusal.is_not(None)
_NARROW = (
    select(outbox.c.outbox_id, func.length(outbox.c.body)).where(WAITING).order_by(outbox.c.outbox_id).limit(STEP_ROWS)
)
FULL = select(outbox).order_by(outbox.c.outbox_id)
