"""apache.rocketmq.v2.Admin: find stored messages, and send one."""

from __future__ import annotations

import uuid

from popproto.v2 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.administration.flow import Administration
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.undelivered import Undelivered
from popserver.filters import tags
from popserver.model.errors import BadRequest, MessageNotFound, PopError
from popserver.model.message import BODY_BYTES_MAX, StoredMessage, check_lite_topic
from popserver.model.names import check_topic
from popserver.model.topic import MessageType
from popserver.producing.send import Sending
from popserver.producing.sent import sent_message
from popserver.rocketmq_admin.search import EXAMINED_MAX, PAGE_DEFAULT, PAGE_MAX, FoundPage, Query, search
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method
from popserver.transport.convert import BORN_AT_MS_MAX
from popserver.transport.limits import MIB

# A body, and the rest of a message with all that it may have.
SEND_BYTES_MAX = BODY_BYTES_MAX + MIB


class MessageAdminMethods:
    """One method per RPC, in the proto's order."""

    def __init__(
        self, operations: Administration, sending: Sending, reader: Reader, clock: Clock, undelivered: Undelivered
    ) -> None:
        self._operations = operations
        self._sending = sending
        self._reader = reader
        self._clock = clock
        self._undelivered = undelivered
        self.methods: dict[str, AnyMethod] = {
            "QueryMessage": Method(self.query_message, rights.admin),
            "AdminSendMessage": Method(self.admin_send_message, rights.admin, bytes_max=SEND_BYTES_MAX),
        }

    async def query_message(self, request: wire.ListMessageRequest, caller: Caller) -> wire.ListMessageResponse:
        """By id, by key, by the tags of a subscription, of a lite topic, or (without a search key) all."""
        name, query = caller.resource(request.topic), _query(request)
        check_topic(name)
        if request.WhichOneof("search_key") == "message_id":
            found = FoundPage([await self._with_id(request, caller, query)], "")
        else:
            topic = (await self._operations.topic(name)).topic
            found = await search(self._reader, topic, query, _size)
            is_first = not (query.after or query.skip)
            if query.key is not None and is_first and not (found.messages or found.scroll_id):
                raise MessageNotFound(f"topic '{name}' has no message with key '{query.key[:64]}' in this time range")
        caller.carries(self._undelivered, sum(len(each.message.body) for each in found.messages))
        return wire.ListMessageResponse(
            status=status.OK, messages=map(convert.found_message, found.messages), scroll_id=found.scroll_id
        )

    async def admin_send_message(
        self, request: wire.AdminSendMessageRequest, caller: Caller
    ) -> wire.AdminSendMessageResponse:
        """Send one message as a producer does: it is checked in the same way, and durable when this returns."""
        sent = _sent(request)
        now_ms, calendar_ms, _ = self._clock.times()
        message = sent_message(sent, caller.resource(request.topic), now_ms, calendar_ms)
        if message.message_type is MessageType.TRANSACTION:
            raise BadRequest("a half message needs a producer that ends its transaction; send it with a producer")
        (outcome,) = await self._sending.send([message])
        if isinstance(outcome, PopError):
            raise outcome
        return wire.AdminSendMessageResponse(status=status.OK, message_id=outcome.message_id)

    async def _with_id(self, request: wire.ListMessageRequest, caller: Caller, query: Query) -> StoredMessage:
        stored = (await self._operations.message(caller.resource(request.topic), request.message_id)).stored
        is_in = query.begin_ms <= stored.stored_at_ms <= query.end_ms
        if not is_in or query.queue_number not in (None, stored.queue_number):
            raise MessageNotFound(
                f"message '{request.message_id[:64]}' is in queue {stored.queue_number} of topic"
                f" '{stored.message.topic}', stored at {stored.stored_at_ms} ms: not in the queue and time range of the"
                " request"
            )
        return stored


def _size(stored: StoredMessage) -> int:
    return convert.found_message(stored).ByteSize()


def _query(request: wire.ListMessageRequest) -> Query:
    """Raises `BadRequest` for what does not fit together."""
    kind = request.WhichOneof("search_key")
    if kind == "lite_topic":
        check_lite_topic(request.lite_topic)
    if kind in ("message_id", "message_key") and not getattr(request, kind):
        raise BadRequest(f"{kind} is empty; give one, or leave it out to get all messages of the time range")
    begin_ms = convert.time_ms(request.begin_timestamp, "begin_timestamp") if request.HasField("begin_timestamp") else 0
    end_ms = BORN_AT_MS_MAX
    if request.HasField("end_timestamp"):
        end_ms = convert.time_ms(request.end_timestamp, "end_timestamp")
    if begin_ms > end_ms:
        raise BadRequest(f"the time range begins at {begin_ms} ms and ends before that, at {end_ms} ms; swap them")
    limit = _limit("page_size", request.page_size) or _limit("max_message_nums", request.max_message_nums)
    if request.page_size and request.max_message_nums:
        limit = min(limit, request.max_message_nums)
    limit = limit or PAGE_DEFAULT
    return Query(
        request.message_key if kind == "message_key" else None,
        tags.parse(request.subscription) if kind == "subscription" else tags.EVERYTHING,
        begin_ms,
        end_ms,
        request.queue_id if request.HasField("queue_id") else None,
        _skip(request, limit),
        limit,
        request.scroll_id,
        request.lite_topic if kind == "lite_topic" else None,
    )


def _limit(field: str, limit: int) -> int:
    if not 0 <= limit <= PAGE_MAX:
        raise BadRequest(f"{field} is {limit}; one answer has 1 to {PAGE_MAX} messages")
    return limit


def _skip(request: wire.ListMessageRequest, limit: int) -> int:
    """The messages of the pages before this one; the first page has the number 1."""
    if not request.HasField("page_num"):
        return 0
    if request.scroll_id:
        raise BadRequest("the request has both a scroll id and a page number; give one of them")
    if request.page_num < 1 or request.page_num * limit > EXAMINED_MAX:
        raise BadRequest(
            f"page {request.page_num} of {limit} messages each is not within the first {EXAMINED_MAX} messages; count"
            " from 1, and reach later ones by the scroll id of each answer"
        )
    return (request.page_num - 1) * limit


def _sent(request: wire.AdminSendMessageRequest) -> pb.Message:
    """The message as a producer would have sent it. Raises `BadRequest` if something is given twice."""
    sent = pb.Message(topic=request.topic, body=request.body, user_properties=request.user_properties)
    system = sent.system_properties
    system.CopyFrom(request.system_properties)
    if request.tag:
        if system.tag not in ("", request.tag):
            raise BadRequest("the request has one tag, and another one in system_properties; give it once")
        system.tag = request.tag
    if request.key and request.key not in system.keys:
        system.keys.append(request.key)
    if not system.message_id:
        system.message_id = f"01{uuid.uuid4().hex.upper()}"
    return sent
