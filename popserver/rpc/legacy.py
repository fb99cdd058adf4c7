"""popmq.v1.Legacy: what consumers that own whole queues need and MessagingService has no words for.

On the same port, through the same gate: its callers are clients, with an id and the rights that their requests name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from popproto.v1 import legacy_pb2 as wire
from popserver.broker.access import Access
from popserver.broker.broker import Broker
from popserver.rpc import calls
from popserver.rpc.calls import Verb
from popserver.rpc.gates import Door
from popserver.rpc.group_members import GroupMembers
from popserver.rpc.incoming import Incoming
from popserver.rpc.offsets import Offsets
from popserver.rpc.pulling import Pulling
from popserver.rpc.retries import Retries

SERVICE = wire.DESCRIPTOR.services_by_name["Legacy"]


def service(broker: Broker, access: Access, pulling: Pulling, incoming: Incoming) -> Any:
    offsets = Offsets(broker)
    verbs: dict[str, Callable[..., Awaitable[Any]]] = {
        **GroupMembers(broker).verbs,
        "FetchOffsets": offsets.fetch_offsets,
        "CommitOffsets": offsets.commit_offsets,
        "SendBack": Retries(broker).send_back,
        "PullBatch": pulling.pull_batch,
    }
    table = {name: Verb(verb) for name, verb in verbs.items()}
    return calls.handlers(SERVICE, table, wire, Door(access, broker.clients.seen, broker.clock), incoming)
