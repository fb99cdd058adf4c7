"""The consumers of each group and their subscriptions (requirement G5).

If consumers of one group have different subscriptions, one may get or skip messages meant for another. The server
refuses nothing, but logs a warning once for each change, and `popmq group show` shows it while it lasts. This covers
the clients that are connected to this server.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import structlog

from popserver.filters.subscription import ClientKind, DeclaredSubscription, Role, difference
from popserver.model.names import Resource

log = structlog.get_logger("popserver.consumers")


class Consumers:
    """The roles of connected clients, grouped by subscription: finding a difference does not scan all clients."""

    def __init__(self) -> None:
        self._roles: dict[str, Role] = {}
        self._groups: dict[Resource, dict[DeclaredSubscription, dict[str, ClientKind]]] = {}

    def took(self, client_id: str, role: Role) -> None:
        """The client takes a role, or names its role again."""
        if self._roles.get(client_id) == role:
            return
        self.left(client_id)
        self._roles[client_id] = role
        alike = self._groups.setdefault(role.group, {})
        alike.setdefault(role.declared, {})[client_id] = role.kind
        for other, clients in self._sharing(role.group):
            if other != role.declared and role.shares:
                self._warn(client_id, role, next(iter(clients)), other)
                return

    def left(self, client_id: str) -> None:
        """The client disconnected, or has another role now."""
        role = self._roles.pop(client_id, None)
        if role is None:
            return
        alike = self._groups[role.group]
        del alike[role.declared][client_id]
        if not alike[role.declared]:
            del alike[role.declared]
        if not alike:
            del self._groups[role.group]

    def of(self, group: Resource) -> dict[str, Role]:
        """The consumers of a group by client id; those with the same subscription are next to each other."""
        alike = self._groups.get(group, {})
        return {client_id: self._roles[client_id] for clients in alike.values() for client_id in clients}

    def is_alike(self, group: Resource) -> bool:
        """Whether all consumers of a group that share messages have the same subscription."""
        return len(list(islice(self._sharing(group), 2))) < 2

    def disagreement(self, group: Resource) -> str:
        """The first difference between subscriptions in a group, in a sentence; empty if all are the same."""
        alike = list(islice(self._sharing(group), 2))
        if len(alike) < 2:
            return ""
        (one, clients), (other, other_clients) = alike
        filters, other_filters = _difference(one, other)
        return (
            f"consumers of group '{group}' have different subscriptions, so each gets or skips messages of the others:"
            f" {next(iter(clients))} has {filters}, {next(iter(other_clients))} has {other_filters};"
            " give all of them the same subscription and model, or give each its own group"
        )

    def disagreements(self, limit: int) -> list[str]:
        """The same for the first `limit` groups with a difference."""
        sentences = (self.disagreement(group) for group, alike in self._groups.items() if len(alike) > 1)
        return list(islice(filter(None, sentences), limit))

    def _sharing(self, group: Resource) -> Iterator[tuple[DeclaredSubscription, dict[str, ClientKind]]]:
        """The subscriptions in the group, each with its clients."""
        for declared, clients in self._groups.get(group, {}).items():
            if self._roles[next(iter(clients))].shares:
                yield declared, clients

    def _warn(self, client_id: str, role: Role, other_id: str, other: DeclaredSubscription) -> None:
        filters, other_filters = _difference(role.declared, other)
        log.warning(
            "consumers of one group have different subscriptions; each gets or skips messages of the others",
            group=str(role.group),
            client_id=client_id,
            wants=filters,
            other_client_id=other_id,
            other_wants=other_filters,
        )


def _difference(one: DeclaredSubscription, other: DeclaredSubscription) -> tuple[str, str]:
    """What is different between two subscriptions, in words for both: the model, or the topics and filters."""
    if one.model is not other.model:
        return f"model {one.model}", f"model {other.model}"
    return difference(one.subscription, other.subscription)
