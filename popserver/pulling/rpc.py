"""The calls of a pull: it names a queue and an offset, and gets messages and the next offset (protocol 6.3).

There are two calls: PullMessage, and PullBatch, which is answered in one frame; they are otherwise the same. Further
options are in PullExtras: a field of PullBatch, or the binary header `popmq-pull-bin` of PullMessage. Without them, a
pull waits if it names a polling time, and uses the filter of its request, or else of its client's settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.message import DecodeError

from popproto.v1 import legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.clients.clients import Clients
from popserver.engine.clock import Clock
from popserver.engine.undelivered import Undelivered
from popserver.filters import Filter, TagFilter
from popserver.filters.subscription import Role
from popserver.model.errors import BadRequest, TooLate, Unsupported
from popserver.model.names import Resource
from popserver.pulling.flow import PullRequest, Pulls
from popserver.pulling.rules import BATCH_BYTES_MAX, BATCH_SIZE_MAX, Pulled, PullFlag, PullStatus
from popserver.transport import convert
from popserver.transport.call import Write
from popserver.transport.calls import AnyMethod, Caller, Method, NotTaken, RequiredRights, StreamMethod, poll_ms_of
from popserver.transport.limits import CallLimits

EXTRAS_HEADER = "popmq-pull-bin"
# The flags of a pull without extras.
_UNSAID = legacy_pb2.PullExtras(sys_flag=PullFlag.SUSPEND | PullFlag.SUBSCRIPTION)


class Asked(NamedTuple):
    """A pull from either call; `request` has the fields that both calls share."""

    request: wire.PullMessageRequest | legacy_pb2.PullBatchRequest
    topic: pb.Resource
    queue_id: int
    extras: legacy_pb2.PullExtras | None


class PullMethods:
    """The calls of members that own whole queues: pulls."""

    def __init__(
        self,
        pulls: Pulls,
        clients: Clients,
        clock: Clock,
        undelivered: Undelivered,
        open_polls: Callable[[], int],
        limits: CallLimits,
        store_host: str,
    ) -> None:
        self._pulls = pulls
        self._clients = clients
        self._clock = clock
        self._undelivered = undelivered
        self._open_polls = open_polls
        self._limits = limits
        self._store_host = store_host
        self.methods: dict[str, AnyMethod] = {
            "PullMessage": StreamMethod(self.pull_message, rights.consume_message_queue)
        }
        self.legacy: dict[str, AnyMethod] = {"PullBatch": Method(self.pull_batch, rights.consume_queue)}

    async def pull_message(self, request: wire.PullMessageRequest, caller: Caller, write: Write) -> None:
        """Frames: status, messages, next offset."""
        queue = request.message_queue
        asked = Asked(request, queue.topic, queue.id, _extras_of_header(caller))
        pulled = await self._pull(asked, lambda: rights.consume_message_queue(request, caller), caller)
        try:
            async with asyncio.timeout(self._limits.answer_ms / 1_000):
                await self._write(asked, pulled, write)
        except TimeoutError:
            raise NotTaken from None

    async def _write(self, asked: Asked, pulled: Pulled, write: Write) -> None:
        await write(wire.PullMessageResponse(status=_status(asked, pulled)))
        common = convert.common_fields(asked.topic, self._store_host)
        for stored in pulled.messages:
            frame = wire.PullMessageResponse()
            convert.fill_pulled(frame.message, stored, common)
            await write(frame)
        await write(wire.PullMessageResponse(next_offset=pulled.next_offset))

    async def pull_batch(self, request: legacy_pb2.PullBatchRequest, caller: Caller) -> legacy_pb2.PullBatchResponse:
        queue = request.queue
        asked = Asked(request, queue.topic, queue.queue_id, request.extras if request.HasField("extras") else None)
        pulled = await self._pull(asked, lambda: rights.consume_queue(request, caller), caller)
        answer = legacy_pb2.PullBatchResponse(
            status=_status(asked, pulled), next_offset=pulled.next_offset, generation=pulled.generation
        )
        common = convert.common_fields(asked.topic, self._store_host, digest=pb.CRC32)
        for stored in pulled.messages:
            convert.fill_pulled(answer.messages.add(), stored, common)
        return answer

    async def _pull(self, asked: Asked, rights: Callable[[], RequiredRights], caller: Caller) -> Pulled:
        clients = self._clients
        client = clients.call_opened(caller.client_id)
        try:
            pulled = await self._pulls.pull(self._pull_request(asked, caller))
            # Rights may have changed during the wait.
            caller.require(rights())
            caller.carries(self._undelivered, sum(len(each.message.body) for each in pulled.messages))
            keys = [each.message_key for each in pulled.messages]
            await caller.check_origins(asked.topic.name, keys)
        finally:
            clients.call_closed(client)
        return pulled

    def _pull_request(self, asked: Asked, caller: Caller) -> PullRequest:
        request = asked.request
        if request.batch_size <= 0:
            raise BadRequest(f"the batch size is {request.batch_size}; ask for 1 to {BATCH_SIZE_MAX} messages")
        extras = _UNSAID if asked.extras is None else asked.extras
        if extras.max_bytes < 0:
            raise BadRequest(
                f"max_bytes is {extras.max_bytes}; ask for 1 to {BATCH_BYTES_MAX} bytes, or 0 for the most"
            )
        flags = _flags(extras)
        group = caller.resource(request.group)
        topic = caller.resource(asked.topic)
        role = self._clients.role_of(caller.client_id)
        if role is not None and role.group != group:
            role = None
        may_be_held = PullFlag.SUSPEND in flags and convert.duration_ms(request.long_polling_timeout) > 0
        poll_ms = poll_ms_of(request, caller, self._limits, self._open_polls()) if may_be_held else 0
        commits = PullFlag.COMMIT_OFFSET in flags and PullFlag.SUSPEND in flags
        return PullRequest(
            group,
            topic,
            asked.queue_id,
            request.offset,
            request.batch_size,
            _filter(asked, extras, role, topic),
            self._clock.deadline_ms(poll_ms),
            commit_offset=extras.commit_offset if commits else None,
            resets=extras.resets,
            generation=extras.generation,
            max_bytes=min(extras.max_bytes or BATCH_BYTES_MAX, BATCH_BYTES_MAX),
        )


def _extras_of_header(caller: Caller) -> legacy_pb2.PullExtras | None:
    data = caller.binary(EXTRAS_HEADER)
    if data is None:
        return None
    try:
        return legacy_pb2.PullExtras.FromString(data)
    except DecodeError:
        raise BadRequest(f"the {len(data)} bytes of header {EXTRAS_HEADER} are no popmq.v1.PullExtras") from None


def _flags(extras: legacy_pb2.PullExtras) -> PullFlag:
    flags = PullFlag(extras.sys_flag)
    if PullFlag.CLASS_FILTER in flags:
        raise Unsupported(
            f"sys_flag {extras.sys_flag} asks for an unsupported class filter (8); use a SQL expression on the"
            " message's properties"
        )
    return flags


def _filter(asked: Asked, extras: legacy_pb2.PullExtras, role: Role | None, topic: Resource) -> Filter:
    """The filter of a pull: its own, or the one in its client's settings (requirement B22).

    If both exist with different versions, the newer one counts: the older one could skip messages that match now.
    """
    request, version = asked.request, 0 if role is None else role.subscription_version
    if 0 < extras.sub_version < version:
        raise TooLate(
            f"the pull has subscription version {extras.sub_version}, but its client's settings have {version};"
            " pull again with that version"
        )
    own = convert.filter_of(request.filter_expression) if request.HasField("filter_expression") else None
    if own is not None and (PullFlag.SUBSCRIPTION in PullFlag(extras.sys_flag) or extras.sub_version > version):
        return own
    if extras.sub_version > version:
        raise TooLate(
            f"the pull has subscription version {extras.sub_version}, but its client's settings have {version};"
            " send the settings first, or send the filter in the pull"
        )
    settled = None if role is None else role.filter_of(topic)
    return settled or own or TagFilter()


def _status(asked: Asked, pulled: Pulled) -> pb.Status:
    named, offset = f"queue {asked.queue_id} of topic '{asked.topic.name}'", asked.request.offset
    code, sentence = {
        PullStatus.FOUND: (pb.OK, "OK"),
        PullStatus.NO_NEW_MSG: (pb.MESSAGE_NOT_FOUND, f"{named} ends at {pulled.next_offset}; pull there again"),
        PullStatus.NO_MATCHED_MSG: (
            pb.MESSAGE_NOT_FOUND,
            f"the filter accepts no message of {named} from {offset} to {pulled.next_offset}; continue there",
        ),
        PullStatus.OFFSET_ILLEGAL: (
            pb.ILLEGAL_OFFSET,
            f"offset {offset} is not in {named}, which begins at {pulled.min_offset} and ends at"
            f" {pulled.end_offset}; continue at {pulled.next_offset}",
        ),
        PullStatus.RECREATED: (
            pb.ILLEGAL_OFFSET,
            f"topic '{asked.topic.name}' was deleted and created again, and offset {offset} belongs to the old topic;"
            f" {named} begins at {pulled.next_offset}, continue there",
        ),
    }[pulled.status]
    return pb.Status(code=code, message=sentence)
