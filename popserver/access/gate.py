"""The gates before the services: who calls, how much, and whether that is allowed.

They check signature, client id, quota and rights, in this order; they read and keep nothing of a caller before they
know it. Where callers need not sign and nothing is limited, a gate costs a header and two comparisons.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message

from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Access
from popserver.access.rules import User
from popserver.engine.clock import Clock
from popserver.model.errors import BadRequest, ClientIdRequired, Forbidden, Unauthorized
from popserver.model.names import CONTROL
from popserver.transport.calls import Caller, Needs

CLIENT_ID_LENGTH_MAX = 255

# Told the client id of every call that is let in.
Seen = Callable[[str], None]
Require = Callable[[Needs], None]

# Refused, these would only make more work: what is not ended or committed comes again, a client not heard of is taken
# for gone. They count, so that whoever ends much receives less.
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


class ClientGate:
    """The gate before the messages: users with rights, clients with ids."""

    def __init__(self, access: Access, seen: Seen, clock: Clock) -> None:
        self._access = access
        self._must_sign = access.is_on
        self._seen = seen
        self._clock = clock
        self.allow = self._allow if access.is_on or access.messages is not None else None

    def enter(self, method: str, caller: Caller, *, anonymous: bool) -> None:
        """Raise `Unauthorized`, `ClientIdRequired`, `BadRequest` for an illegal client id, `TooManyRequests`."""
        client_id = caller.client_id
        if not client_id and anonymous:
            # Only looks whether somebody is there; it neither learns nor changes anything (protocol 1.4).
            caller.is_stranger = self._must_sign
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
            raise BadRequest(f"client id {client_id[:32]!r} holds a control character; use visible ones")
        if self._access.requests is not None:
            limit = self._access.requests.charge if method in _ONLY_COUNTED else self._access.requests.take
            limit(_holder(caller), 1, self._clock.now_ms())
        self._seen(caller.client_id)

    def _allow(self, rights: Callable[[Message, Caller], Needs], request: Message, caller: Caller) -> None:
        """Raise `Forbidden` for what the caller may not do, `TooManyRequests` for more messages than it may send."""
        if self._must_sign:
            caller.require(rights(request, caller))
        if self._access.messages is not None and isinstance(request, wire.SendMessageRequest):
            self._access.messages.take(_holder(caller), len(request.messages), self._clock.now_ms())

    def _sign_in(self, caller: Caller) -> None:
        user = _signer(self._access, caller)
        caller.require = _rights_of(self._access, user)
        caller.withholds = partial(self._access.withholds, user)
        caller.require_origins = partial(self._access.check_origins, user)
        caller.user = user.access_key
        if caller.client_id:
            caller.client_id = f"{user.access_key}/{caller.client_id}"


class AdminGate:
    """The gate before the administration: admins, where callers must sign. An operator is no client."""

    allow = None  # an admin may do everything

    def __init__(self, access: Access) -> None:
        self._access = access

    def enter(self, method: str, caller: Caller, *, anonymous: bool) -> None:
        """Raise `Unauthorized`, or `Forbidden` for a user who is no admin."""
        if not self._access.is_on:
            return
        user = _signer(self._access, caller)
        caller.user = user.access_key
        if not user.is_admin:
            raise Forbidden(
                f"user '{user.access_key}' may not call {method}: it is for admins; sign as one, or make one with:"
                " popmq acl user add NAME --admin"
            )


def _holder(caller: Caller) -> str:
    """Who a quota is for."""
    return f"user '{caller.user}'" if caller.user else f"client '{caller.client_id}'"


def _signer(access: Access, caller: Caller) -> User:
    authorization = caller.header("authorization")
    try:
        return access.authenticate(authorization, caller.header("x-mq-date-time"))
    except Unauthorized as refusal:
        access.turned_away(authorization, caller.peer, refusal)
        raise


def _rights_of(access: Access, user: User) -> Require:
    def require(wanted: Needs) -> None:
        access.check_current(user)
        access.check(user, wanted)

    return require
