"""The gates, which check every call: signature, client id, quota and rights, in this order.

They store nothing about a caller before they know its user. If callers need not sign and there are no quotas, a gate
costs one header and two comparisons.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from google.protobuf.message import Message

from popproto.v2 import admin_pb2 as admin
from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Access
from popserver.access.rules import User
from popserver.engine.clock import Clock
from popserver.model.errors import BadRequest, ClientIdRequired, Forbidden, Unauthorized
from popserver.model.names import CONTROL, Resource, is_system_derived
from popserver.transport.calls import Caller, RequiredRights

CLIENT_ID_LENGTH_MAX = 255

# The topics that messages come from, by their keys: see `delivery.origins.topics_behind`.
OriginsOf = Callable[[Sequence[int]], Awaitable[Iterable[Resource | None]]]

# These methods count in the quota but are never refused. A refusal would only make more work: a message that is not
# acked is delivered again, and a client without heartbeats is taken for dead. A client that calls them often gets fewer
# receives.
_ONLY_COUNTED = frozenset(
    {
        "AckMessage",
        "ChangeInvisibleDuration",
        "ForwardMessageToDeadLetterQueue",
        "UpdateOffset",
        "CommitOffsets",
        "RenewAttempt",
        "AckAttempt",
        "Heartbeat",
        "Telemetry",
        "NotifyClientTermination",
    }
)


class KnownClient(Protocol):
    """A client as the gate sees it."""

    last_seen_ms: int


class ClientRegistry(Protocol):
    """The connected clients. Each call shows that its client is alive."""

    @property
    def present(self) -> Mapping[str, KnownClient]:
        """The clients of which a call changes nothing but `last_seen_ms`, by id."""

    def seen(self, client_id: str) -> None:
        """A client that is not among them called."""


class ClientGate:
    """The gate for methods of clients."""

    def __init__(self, access: Access, clients: ClientRegistry, clock: Clock, origins_of: OriginsOf) -> None:
        self._access = access
        self._origins_of = origins_of
        self._must_sign = access.is_on
        self._clients = clients
        self._clock = clock
        self.allow = self._allow if access.is_on or access.messages is not None else None

    def enter(self, method: str, caller: Caller, *, anonymous: bool) -> None:
        """Raise `Unauthorized`, `ClientIdRequired`, `BadRequest` for an illegal client id, `TooManyRequests`."""
        client_id = caller.client_id
        if not client_id and anonymous:
            # Such a call only checks that the server answers; it reads and changes nothing (protocol 1.4).
            caller.is_anonymous = self._must_sign
            return
        if self._must_sign:
            self._sign_in(caller)
        if not client_id:
            raise ClientIdRequired
        if len(client_id) > CLIENT_ID_LENGTH_MAX:
            raise BadRequest(
                f"client id '{client_id[:32]}…' has {len(client_id)} characters,"
                f" at most {CLIENT_ID_LENGTH_MAX} are allowed"
            )
        if CONTROL.search(client_id):
            raise BadRequest(f"client id {client_id[:32]!r} has a control character; use visible characters")
        if self._access.requests is not None:
            limit = self._access.requests.charge if method in _ONLY_COUNTED else self._access.requests.take
            limit(_holder(caller), 1, self._clock.now_ms())
        client = self._clients.present.get(caller.client_id)
        if client is None:
            self._clients.seen(caller.client_id)
        else:
            client.last_seen_ms = self._clock.now_ms()

    def _allow(self, rights: Callable[[Message, Caller], RequiredRights], request: Message, caller: Caller) -> None:
        """Raise `Forbidden` if the caller lacks a right, `TooManyRequests` if it sends more messages than its quota."""
        if self._must_sign:
            caller.require(rights(request, caller))
        if self._access.messages is not None and isinstance(request, wire.SendMessageRequest):
            self._access.messages.take(_holder(caller), len(request.messages), self._clock.now_ms())

    def _sign_in(self, caller: Caller) -> None:
        user = _signer(self._access, caller)
        caller.require = partial(self._require, user)
        caller.check_origins = partial(self._check_origins, user)
        caller.user = user.access_key
        if caller.client_id:
            caller.client_id = f"{user.access_key}/{caller.client_id}"

    def _require(self, user: User, wanted: RequiredRights) -> None:
        self._access.check_current(user)
        self._access.check(user, wanted)

    async def _check_origins(self, user: User, topic_name: str, keys: Sequence[int]) -> None:
        """Raise `Forbidden` if one of these messages comes from a topic that the user may not read: such a message
        must not be read as a dead letter or a retry message of a group either.

        It costs a query for users that read a `%DLQ%` or `%RETRY%` topic and have a DENY policy, and nothing for all
        others.
        """
        if keys and is_system_derived(topic_name) and self._access.denies_reading(user):
            self._access.check_origins(user, await self._origins_of(keys))


class AdminGate:
    """The gate for the administration. If callers must sign, only admins may call. No client id is needed."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        # Admins may do everything, but not send more than others.
        self.allow = None if access.messages is None and access.requests is None else self._limit_sends

    def enter(self, method: str, caller: Caller, *, anonymous: bool) -> None:
        """Raise `Unauthorized`, or `Forbidden` if the user is not an admin."""
        if not self._access.is_on:
            return
        user = _signer(self._access, caller)
        caller.user = user.access_key
        if not user.is_admin:
            raise Forbidden(
                f"user '{user.access_key}' may not call {method}: it is for admins; sign as an admin, or create one"
                " with: popmq acl user add NAME --admin"
            )

    def _limit_sends(self, _rights: object, request: Message, caller: Caller) -> None:
        """Raise `TooManyRequests` for a message beyond the quotas of producers."""
        if isinstance(request, admin.AdminSendMessageRequest):
            for quota in (self._access.requests, self._access.messages):
                if quota is not None:
                    quota.take(_holder(caller), 1, self._clock.now_ms())


class AdminElsewhere:
    """The gate for the administration on a port that does not serve it."""

    allow = None

    def enter(self, method: str, caller: Caller, *, anonymous: bool) -> None:
        """Raise `Forbidden`."""
        raise Forbidden(
            f"this port does not serve {method}: the server has a port of its own for the administration (--admin);"
            " call that port, with popmq by --endpoint HOST:PORT"
        )


def _holder(caller: Caller) -> str:
    """The holder of the quota: a user, or a client if callers need not sign; an address for one without an id."""
    if caller.user:
        return f"user '{caller.user}'"
    return f"client '{caller.client_id}'" if caller.client_id else f"address '{caller.peer.rpartition(':')[0]}'"


def _signer(access: Access, caller: Caller) -> User:
    authorization = caller.header("authorization")
    try:
        return access.authenticate(authorization, caller.header("x-mq-date-time"))
    except Unauthorized as refusal:
        access.log_rejected(authorization, caller.peer, refusal)
        raise
