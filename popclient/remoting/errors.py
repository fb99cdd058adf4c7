"""What a server that speaks the remoting protocol refuses, and how its codes are called."""

from __future__ import annotations

from typing import Final

from popclient.errors import PopError

CONSUMER_NOT_ONLINE: Final = 206

# Sources: RemotingSysResponseCode and ResponseCode of RocketMQ 5.5.0.
_NAMES: Final = {
    1: "SYSTEM_ERROR",
    2: "SYSTEM_BUSY",
    3: "REQUEST_CODE_NOT_SUPPORTED",
    16: "NO_PERMISSION",
    17: "TOPIC_NOT_EXIST",
    26: "SUBSCRIPTION_GROUP_NOT_EXIST",
    29: "INVALID_PARAMETER",
    CONSUMER_NOT_ONLINE: "CONSUMER_NOT_ONLINE",
}

_WAYS_OUT: Final = {
    2: "; repeat it a little later",
    3: "; give the address of a name server, of RocketMQ 5",
    16: "; give the access key of a user who may do it",
}


class RefusedByBroker(PopError):
    """A broker or name server of RocketMQ refused a request; the sentence has its address and its remark.

    `code` and `name` are those of the remoting protocol, such as 17, TOPIC_NOT_EXIST.
    """


def refusal(address: str, what: str, code: int, remark: str) -> RefusedByBroker:
    """what: what was asked for, such as "create topic 'orders'"."""
    name = _NAMES.get(code, f"CODE_{code}")
    # A remark may end with a link, in a line of its own.
    said = remark.split("\n", 1)[0].strip() or "it gives no reason"
    return RefusedByBroker(f"{address} refuses to {what}: {said}{_WAYS_OUT.get(code, '')}", code=code, name=name)
