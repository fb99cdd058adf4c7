"""Who works for which group, and what each said it wants (requirement G5).

Consumers of one group that want different things take messages from each other, or pass them over for each other.
Nothing is refused, but a warning says so, once for each change; `popmq group show` shows it for as long as it is so.
Kept of what this server was told by clients that are there; other servers know their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import structlog

from popserver.filters.subscription import ClientKind, DeclaredSubscription, Role, difference
from popserver.model.names import Resource

log = structlog.get_logger("popserver.consumers")


class Consumers:
    """The roles of the clients that are there; finding one that wants something else costs nothing per client."""

    def __init__(self) -> None:
        self._roles: dict[str, Role] = {}
        self._groups: dict[Resource, dict[DeclaredSubscription, dict[str, ClientKind]]] = {}

    def took(self, client_id: str, role: Role) -> None:
        """The client took a role, or says again which it has."""
        if self._roles.get(client_id) == role:
            return
        self.left(client_id)
        self._roles[client_id] = role
        alike = self._groups.setdefault(role.group, {})
        alike.setdefault(role.wish, {})[client_id] = role.kind
        for other, clients in self._sharing(role.group):
            if other != role.wish and role.shares:
                self._warn(client_id, role, next(iter(clients)), other)
                return

    def left(self, client_id: str) -> None:
        """The client is gone, or has another role now."""
        role = self._roles.pop(client_id, None)
        if role is None:
            return
        alike = self._groups[role.group]
        del alike[role.wish][client_id]
        if not alike[role.wish]:
            del alike[role.wish]
        if not alike:
            del self._groups[role.group]

    def of(self, group: Resource) -> dict[str, Role]:
        """The consumers of a group by client id, those that want the same one after the other."""
        alike = self._groups.get(group, {})
        return {client_id: self._roles[client_id] for clients in alike.values() for client_id in clients}

    def disagreement(self, group: Resource) -> str:
        """How the first consumers that want different things differ, in a sentence; empty where all want the same."""
        alike = list(islice(self._sharing(group), 2))
        if len(alike) < 2:
            return ""
        (one, clients), (other, other_clients) = alike
        wants, other_wants = _difference(one, other)
        return (
            f"the consumers of group '{group}' want different things and take messages from each other:"
            f" {next(iter(clients))} wants {wants}, {next(iter(other_clients))} wants {other_wants};"
            " give all of them one subscription and one model, or each its own group"
        )

    def disagreements(self, limit: int) -> list[str]:
        """The same of the first groups that have any."""
        told = (self.disagreement(group) for group, alike in self._groups.items() if len(alike) > 1)
        return list(islice(filter(None, told), limit))

    def _sharing(self, group: Resource) -> Iterator[tuple[DeclaredSubscription, dict[str, ClientKind]]]:
        """What those want who share the group's messages, and who they are."""
        for wish, clients in self._groups.get(group, {}).items():
            if self._roles[next(iter(clients))].shares:
                yield wish, clients

    def _warn(self, client_id: str, role: Role, other_id: str, other: DeclaredSubscription) -> None:
        wants, other_wants = _difference(role.wish, other)
        log.warning(
            "consumers of one group want different things; each gets messages that are meant for the other",
            group=str(role.group),
            client_id=client_id,
            wants=wants,
            other_client_id=other_id,
            other_wants=other_wants,
        )


def _difference(one: DeclaredSubscription, other: DeclaredSubscription) -> tuple[str, str]:
    """What each has that the other has not, in words: each message for one of them all, or for each of them."""
    if one.model is not other.model:
        return f"model {one.model}", f"model {other.model}"
    return difference(one.subscription, other.subscription)
