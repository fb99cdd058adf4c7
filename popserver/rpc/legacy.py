"""popmq.v1.Legacy: what consumers that own whole queues need and MessagingService has no words for.

On the same port, through the same gate: its callers are clients, with an id and the rights that their requests name.
"""

from __future__ import annotations

from popproto.v1 import legacy_pb2 as wire
from popserver.broker.access import Access
from popserver.broker.broker import Broker
from popserver.rpc import calls, needs
from popserver.rpc.call import Service
from popserver.rpc.calls import AnyMethod, Method
from popserver.rpc.gates import ClientGate
from popserver.rpc.group_members import GroupMembers
from popserver.rpc.incoming import Incoming
from popserver.rpc.offsets import Offsets
from popserver.rpc.pulling import Pulling
from popserver.rpc.retries import Retries

SERVICE = wire.DESCRIPTOR.services_by_name["Legacy"]


def service(broker: Broker, access: Access, pulling: Pulling, incoming: Incoming) -> Service:
    gate = ClientGate(access, broker.clients.seen, broker.clock)
    return calls.serve(SERVICE, legacy_methods(broker, pulling), gate, incoming)


def legacy_methods(broker: Broker, pulling: Pulling) -> dict[str, AnyMethod]:
    """Every method of the service."""
    offsets, group_members = Offsets(broker), GroupMembers(broker)
    return {
        "ListMembers": Method(group_members.list_members, needs.group),
        "LockQueues": Method(group_members.lock_queues, needs.consume_queues),
        "UnlockQueues": Method(group_members.unlock_queues, needs.consume_queues),
        "FetchOffsets": Method(offsets.fetch_offsets, needs.consume_queues),
        "CommitOffsets": Method(offsets.commit_offsets, needs.commit_offsets),
        "SendBack": Method(Retries(broker).send_back, needs.consume_queue),
        "PullBatch": Method(pulling.pull_batch, needs.consume_queue),
    }
