"""popmq.v1.Legacy: what consumers that own whole queues need and MessagingService has no words for.

On the same port, through the same gate: its callers are clients, with an id and the rights that their requests name.
"""

from __future__ import annotations

from popproto.v1 import legacy_pb2 as wire
from popserver.rpc import needs
from popserver.rpc.calls import AnyMethod, Method
from popserver.rpc.group_members import GroupMembers
from popserver.rpc.offsets import Offsets
from popserver.rpc.pulling import Pulling
from popserver.rpc.retries import Retries

SERVICE = wire.DESCRIPTOR.services_by_name["Legacy"]


def legacy_methods(
    group_members: GroupMembers, offsets: Offsets, retries: Retries, pulling: Pulling
) -> dict[str, AnyMethod]:
    """Every method of the service."""
    return {
        "ListMembers": Method(group_members.list_members, needs.group),
        "LockQueues": Method(group_members.lock_queues, needs.consume_queues),
        "UnlockQueues": Method(group_members.unlock_queues, needs.consume_queues),
        "FetchOffsets": Method(offsets.fetch_offsets, needs.consume_queues),
        "CommitOffsets": Method(offsets.commit_offsets, needs.commit_offsets),
        "SendBack": Method(retries.send_back, needs.consume_queue),
        "PullBatch": Method(pulling.pull_batch, needs.consume_queue),
    }
