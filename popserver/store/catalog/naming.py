"""A topic or a group by its name: how a statement finds it, and what is said where it is not."""

from __future__ import annotations

from typing import Any

from popserver.domain.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from popserver.domain.group import Mode
from popserver.domain.names import Resource


def is_named(table: Any, name: Resource) -> tuple[Any, ...]:
    """The conditions under which a row of the table is the topic or group of that name."""
    return table.c.namespace == name.namespace, table.c.name == name.name, table.c.deleted_at_ms.is_(None)


def topic_not_found(name: Resource) -> TopicNotFound:
    return TopicNotFound(f"topic '{name}' does not exist; create it with: popmq topic create {_as_typed(name)}")


def group_not_found(name: Resource) -> ConsumerGroupNotFound:
    return ConsumerGroupNotFound(
        f"consumer group '{name}' does not exist; create it with: popmq group create {_as_typed(name)}"
    )


def of_another_mode(name: Resource, mode: Mode) -> BadRequest:
    return BadRequest(f"consumer group '{name}' consumes in mode {mode}, fixed at its first use; use another group")


def _as_typed(name: Resource) -> str:
    return f"{name.name} --namespace {name.namespace}" if name.namespace else name.name
