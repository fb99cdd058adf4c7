"""What an attempt id is kept as: it names a receive only to the caller that made it.

A ReceiveMessage belongs to its client; where callers sign, to the user's client. A bulk receive is repeated, renewed
and acknowledged by any process of one user: the workers of a Spark stream have no client id in common. Where callers do
not sign, any caller that knows the attempt id of a bulk receive may use it.
"""

from __future__ import annotations

# Neither a client's id nor a user's access key has one, nor an attempt id.
_SEPARATOR = "\n"


def of_client(client_id: str, attempt_id: str | None) -> str | None:
    """The attempt id of a client's receive, as it is kept; None for a receive that has none."""
    return None if attempt_id is None else f"{client_id}{_SEPARATOR}{attempt_id}"


def of_user(user: str, attempt_id: str) -> str:
    """The attempt id of a user's bulk receive, as it is kept; `user` is empty where callers do not sign."""
    return f"{_SEPARATOR}{user}{_SEPARATOR}{attempt_id}"


def as_sent(kept: str) -> str:
    """The attempt id as its caller wrote it."""
    return kept.rpartition(_SEPARATOR)[2]
