"""Queue by queue: a pull names an offset and is told what is there and where to go on (contract 6.3).

What a pull carries besides stands in the binary header `popmq-pull-bin` (PullExtras); a client that sends none is held
when it names a polling time, and wants what its filter or else its settings say.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from popproto.v1 import legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.broker.broker import Broker
from popserver.broker.consumers import Role
from popserver.broker.pulls import Pull
from popserver.domain.errors import BadRequest, TooLate, Unsupported
from popserver.domain.filtering import Filter, TagFilter
from popserver.domain.names import Resource
from popserver.domain.pulling import BATCH_SIZE_MAX, Pulled, PullFlag, PullStatus
from popserver.rpc import convert, needs
from popserver.rpc.calls import Caller, Write
from popserver.rpc.consuming import poll_ms_of
from popserver.rpc.limits import Limits

EXTRAS_HEADER = "popmq-pull-bin"


class Pulling:
    """What members ask for that own whole queues."""

    def __init__(self, broker: Broker, limits: Limits, store_host: str) -> None:
        self._broker = broker
        self._limits = limits
        self._store_host = store_host

    async def pull_message(self, request: wire.PullMessageRequest, caller: Caller, write: Write) -> None:
        """Frames: status, messages, next offset."""
        clients = self._broker.clients
        client = clients.call_opened(caller.client_id)
        try:
            pulled = await self._broker.pulls.pull(self._wish(request, caller))
            # Rights may have changed while it was held.
            caller.require(needs.OF["PullMessage"](request, caller))
        finally:
            clients.call_closed(client)
        await write(wire.PullMessageResponse(status=_status(request, pulled)))
        for stored in pulled.messages:
            await write(convert.pulled(stored, request.message_queue.topic, self._store_host))
        await write(wire.PullMessageResponse(next_offset=pulled.next_offset))

    def _wish(self, request: wire.PullMessageRequest, caller: Caller) -> Pull:
        if request.batch_size <= 0:
            raise BadRequest(f"the batch size is {request.batch_size}; ask for 1 to {BATCH_SIZE_MAX} messages")
        extras = _extras(caller)
        flags = _flags(extras)
        group = convert.resource(request.group, caller.namespace)
        topic = convert.resource(request.message_queue.topic, caller.namespace)
        role = self._role(group, caller)
        may_be_held = PullFlag.SUSPEND in flags and convert.duration_ms(request.long_polling_timeout) > 0
        poll_ms = poll_ms_of(request, caller, self._limits) if may_be_held else 0
        commits = PullFlag.COMMIT_OFFSET in flags and PullFlag.SUSPEND in flags
        return Pull(
            group,
            topic,
            request.message_queue.id,
            request.offset,
            request.batch_size,
            _filter(request, extras, role, topic),
            self._broker.clock.now_ms() + poll_ms,
            commit_offset=extras.commit_offset if commits else None,
            resets=extras.resets,
        )

    def _role(self, group: Resource, caller: Caller) -> Role | None:
        role = self._broker.clients.role_of(caller.client_id)
        return role if role is not None and role.group == group else None


def _extras(caller: Caller) -> legacy_pb2.PullExtras:
    """What the pull carries besides; of a client that sends none, what its request says by itself."""
    data = caller.binary(EXTRAS_HEADER)
    if data is None:
        return legacy_pb2.PullExtras(sys_flag=PullFlag.SUSPEND | PullFlag.SUBSCRIPTION)
    try:
        return legacy_pb2.PullExtras.FromString(data)
    except DecodeError:
        raise BadRequest(f"the {len(data)} bytes of header {EXTRAS_HEADER} are no popmq.v1.PullExtras") from None


def _flags(extras: legacy_pb2.PullExtras) -> PullFlag:
    flags = PullFlag(extras.sys_flag)
    if PullFlag.CLASS_FILTER in flags:
        raise Unsupported(
            f"sys_flag {extras.sys_flag} asks for a class filter (8), which is not offered; use a SQL expression on the"
            " message's properties"
        )
    return flags


def _filter(
    request: wire.PullMessageRequest, extras: legacy_pb2.PullExtras, role: Role | None, topic: Resource
) -> Filter:
    """What the pull wants: by its own filter where that is meant to count, else by its client's settings (row B22).

    Where the two are of different times, the newer one counts. The older one would pass over what is wanted now.
    """
    version = 0 if role is None else role.subscription_version
    if 0 < extras.sub_version < version:
        raise TooLate(
            f"the pull stands on subscription version {extras.sub_version}, and its client's settings on {version};"
            " pull again with that one"
        )
    own = convert.filter_of(request.filter_expression) if request.HasField("filter_expression") else None
    if own is not None and (PullFlag.SUBSCRIPTION in PullFlag(extras.sys_flag) or extras.sub_version > version):
        return own
    if extras.sub_version > version:
        raise TooLate(
            f"the pull stands on subscription version {extras.sub_version}, and its client's settings on {version};"
            " send the settings first, or the filter along with the pull"
        )
    settled = None if role is None else dict(role.filters).get(topic)
    return settled or own or TagFilter()


def _status(request: wire.PullMessageRequest, pulled: Pulled) -> pb.Status:
    named = f"queue {request.message_queue.id} of topic '{request.message_queue.topic.name}'"
    code, sentence = {
        PullStatus.FOUND: (pb.OK, "OK"),
        PullStatus.NO_NEW_MSG: (pb.MESSAGE_NOT_FOUND, f"{named} ends at {pulled.next_offset}; pull there again"),
        PullStatus.NO_MATCHED_MSG: (
            pb.MESSAGE_NOT_FOUND,
            f"nothing in {named} from {request.offset} to {pulled.next_offset} is wanted; go on there",
        ),
        PullStatus.OFFSET_ILLEGAL: (
            pb.ILLEGAL_OFFSET,
            f"offset {request.offset} is not in {named}, which begins at {pulled.min_offset} and ends at"
            f" {pulled.end_offset}; go on at {pulled.next_offset}",
        ),
    }[pulled.status]
    return pb.Status(code=code, message=sentence)
