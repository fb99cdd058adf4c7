"""popmq.v1.Bulk: many messages at once, as columns.

While one page is written as Arrow chunks, the server reads the next page, and no further one. So a slow client slows
down the server's reads, and a disconnected one ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import Message

from popproto.v1 import bulk_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.bulk import flow
from popserver.bulk.flow import BulkReceive
from popserver.bulk.rules import RECEIVE_MESSAGES_MAX, QueuePage, QueueSlice, columns_named, sources_of
from popserver.clients.clients import Clients
from popserver.messages.columns import Columns
from popserver.model import handles
from popserver.model.errors import BadRequest, Forbidden, Unsupported
from popserver.model.message import HeldMessage
from popserver.model.names import Resource
from popserver.model.topic import offset_of
from popserver.receiving.rpc import attempt_id_of, invisible_ms_of
from popserver.settling.rpc import check_change
from popserver.transport import convert, status
from popserver.transport.call import Write, encode
from popserver.transport.calls import AnyMethod, Caller, Method, StreamMethod
from popserver.transport.limits import CallLimits

if TYPE_CHECKING:
    from popserver.bulk.arrow import Chunk, Chunks


_CHUNK_OF_PULL = wire.PullBulkResponse.CHUNK_FIELD_NUMBER
_CHUNK_OF_RECEIVE = wire.ReceiveBulkResponse.CHUNK_FIELD_NUMBER


class Frame(NamedTuple):
    """A frame with a chunk, which is appended to the other fields unchanged: protobuf would copy it twice."""

    others: Message
    field_number: int
    chunk: Chunk

    def SerializeToString(self) -> bytes:  # noqa: N802
        tag_and_size = bytes([self.field_number << 3 | 2]) + _varint(self.chunk.size)
        return b"".join((self.others.SerializeToString(), tag_and_size, *self.chunk.parts))


class BulkMethods:
    """The calls of popmq.v1.Bulk."""

    def __init__(self, bulk: flow.Bulk, clients: Clients, limits: CallLimits) -> None:
        self._bulk = bulk
        self._clients = clients
        self._limits = limits
        self.methods: dict[str, AnyMethod] = {
            "PullBulk": StreamMethod(self.pull_bulk, rights.consume, encode=encode),
            "ReceiveBulk": StreamMethod(self.receive_bulk, rights.consume, encode=encode),
            "RenewAttempt": Method(self.renew_attempt, rights.consume),
            "AckAttempt": Method(self.ack_attempt, rights.consume),
        }
        self._make_chunks: Callable[..., Chunks] | None = None

    async def pull_bulk(self, request: wire.PullBulkRequest, caller: Caller, write: Write) -> None:
        """Frames: status and the queue's ends, chunks."""
        make_chunks = await self._arrow()
        columns = columns_named(request.columns)
        queue_slice = await self._bulk.slice_of(
            caller.resource(request.topic),
            request.queue_id,
            request.offset,
            request.end_offset,
            convert.filter_of(request.filter_expression),
            sources_of(columns, request.topic.name),
        )
        chunks = make_chunks(columns, request.topic.name)
        group_id = await self._bulk.reading_group(caller.resource(request.group))
        with self._present(caller):
            await self._write_pages(queue_slice, group_id, chunks, write, caller)

    async def receive_bulk(self, request: wire.ReceiveBulkRequest, caller: Caller, write: Write) -> None:
        """Frames: status, chunks. If the answer breaks off, all messages stay held for a repeated call."""
        make_chunks = await self._arrow()
        columns = columns_named(request.columns)
        bulk_receive = self._bulk_receive(request, caller)
        with self._present(caller):
            held = await self._bulk.receive(bulk_receive)
            await self._check_origins(bulk_receive, held, caller)
            await write(wire.ReceiveBulkResponse(status=status.OK))
            attempts = dict(held)
            chunks = make_chunks(columns, request.topic.name, attempts)
            sources = sources_of(columns, request.topic.name)
            async for page in self._bulk.pages(bulk_receive.topic, held, sources):
                async for chunk in _made(chunks, page.columns, page.numbers):
                    others = wire.ReceiveBulkResponse(messages=chunk.messages)
                    await write(Frame(others, _CHUNK_OF_RECEIVE, chunk))
                await self._bulk.count_bytes(bulk_receive, attempts, page.columns)

    async def renew_attempt(self, request: wire.RenewAttemptRequest, caller: Caller) -> wire.RenewAttemptResponse:
        """Renew an attempt's holds for 0 s to 12 h from now, as ChangeInvisibleDuration does."""
        duration_ms = convert.duration_ms(request.invisible_duration)
        check_change(duration_ms, self._limits)
        held = await self._bulk.renew(*_attempt(request, caller), duration_ms)
        return wire.RenewAttemptResponse(status=status.OK, held=held)

    async def ack_attempt(self, request: wire.AckAttemptRequest, caller: Caller) -> wire.AckAttemptResponse:
        acked = await self._bulk.ack(*_attempt(request, caller))
        return wire.AckAttemptResponse(status=status.OK, acked=acked)

    def _bulk_receive(self, request: wire.ReceiveBulkRequest, caller: Caller) -> BulkReceive:
        if not 0 <= request.max_messages <= RECEIVE_MESSAGES_MAX:
            raise BadRequest(
                f"max_messages is {request.max_messages}; ask for up to {RECEIVE_MESSAGES_MAX} messages, or send 0 for"
                " the messages that are held already"
            )
        return BulkReceive(
            *_attempt(request, caller),
            request.max_messages,
            invisible_ms_of(request, self._limits) if request.max_messages else 0,
            convert.filter_of(request.filter_expression),
            caller.client_id,
        )

    async def _arrow(self) -> Callable[..., Chunks]:
        """The maker of chunks. Raises `Unsupported` if Arrow is not installed."""
        if self._make_chunks is None:
            try:
                # In a thread, because the import takes a moment; other calls wait until it is complete.
                self._make_chunks = (await asyncio.to_thread(import_module, "popserver.bulk.arrow")).Chunks
            except ImportError as error:
                raise Unsupported(
                    f"bulk transfer needs Arrow ({error}); run pip install 'popmq[fast]' on the server, or use"
                    " PullMessage and ReceiveMessage"
                ) from None
        return self._make_chunks

    @contextmanager
    def _present(self, caller: Caller) -> Iterator[None]:
        """Count the client as connected during the answer."""
        clients = self._clients
        client = clients.call_opened(caller.client_id)
        try:
            yield
        finally:
            clients.call_closed(client)

    async def _write_pages(
        self, queue_slice: QueueSlice, group_id: int, chunks: Chunks, write: Write, caller: Caller
    ) -> None:
        page = await self._page(queue_slice, caller)
        if page.columns is not None:
            await write(wire.PullBulkResponse(status=status.OK, min_offset=page.min_offset, max_offset=page.end_offset))
            queue_slice = queue_slice._replace(end_offset=min(queue_slice.end_offset, page.end_offset))
        while page.columns is not None:
            if page.next_offset >= queue_slice.end_offset:
                await _write_page(queue_slice, page, page.columns, chunks, write)
                self._bulk.count_pulled(group_id, queue_slice, page.columns)
                if not page.columns.keys and page.next_offset > queue_slice.offset:
                    await write(wire.PullBulkResponse(next_offset=page.next_offset))
                return
            queue_slice = queue_slice._replace(offset=page.next_offset)
            # The database reads the next page while this one is written.
            ahead = asyncio.ensure_future(self._page(queue_slice, caller))
            ahead.add_done_callback(_ignore_exception)
            try:
                await _write_page(queue_slice, page, page.columns, chunks, write)
                self._bulk.count_pulled(group_id, queue_slice, page.columns)
                page = await ahead
            finally:
                ahead.cancel()
        await write(_outside(queue_slice, page))

    async def _page(self, queue_slice: QueueSlice, caller: Caller) -> QueuePage:
        page = await self._bulk.page(queue_slice)
        if page.columns is not None:
            await caller.check_origins(queue_slice.topic.name.name, page.columns.keys)
        return page

    async def _check_origins(self, bulk_receive: BulkReceive, held: Sequence[HeldMessage], caller: Caller) -> None:
        try:
            await caller.check_origins(bulk_receive.topic.name, [each.message_key for each in held])
        except Forbidden:
            await self._bulk.cancel(bulk_receive.group, bulk_receive.topic, bulk_receive.attempt_id)
            raise


async def _write_page(queue_slice: QueueSlice, page: QueuePage, found: Columns, chunks: Chunks, write: Write) -> None:
    async for chunk in _made(chunks, found, {queue_slice.queue.queue_id: queue_slice.queue.number}):
        is_last = chunk.next_key > found.keys[-1]
        next_offset = page.next_offset if is_last else offset_of(chunk.next_key)
        others = wire.PullBulkResponse(messages=chunk.messages, next_offset=next_offset)
        await write(Frame(others, _CHUNK_OF_PULL, chunk))


def _ignore_exception(ahead: asyncio.Future[QueuePage]) -> None:
    """Retrieve the exception of a page that no call waits for, so that asyncio does not log it."""
    if not ahead.cancelled():
        ahead.exception()


async def _made(chunks: Chunks, found: Columns, numbers: Mapping[int, int]) -> AsyncIterator[Chunk]:
    """The chunks; each is made after the one before is written, in a thread if bodies must be unpacked."""
    made = chunks.of(found, numbers)
    if not chunks.has_packed(found):
        for chunk in made:
            yield chunk
        return
    while (next_chunk := await asyncio.to_thread(next, made, None)) is not None:
        yield next_chunk


def _outside(queue_slice: QueueSlice, page: QueuePage) -> wire.PullBulkResponse:
    """The answer for an offset outside the queue, or if its messages were removed meanwhile."""
    sentence = (
        f"offset {queue_slice.offset} is not in queue {queue_slice.queue.number}"
        f" of topic '{queue_slice.topic.name}', which begins"
        f" at {page.min_offset} and ends at {page.end_offset}"
    )
    refused = pb.Status(code=pb.ILLEGAL_OFFSET, message=sentence)
    return wire.PullBulkResponse(status=refused, min_offset=page.min_offset, max_offset=page.end_offset)


def _attempt(
    request: wire.ReceiveBulkRequest | wire.RenewAttemptRequest | wire.AckAttemptRequest, caller: Caller
) -> tuple[Resource, Resource, str]:
    """Group, topic and attempt id."""
    attempt_id = attempt_id_of(request)
    if attempt_id is None:
        raise BadRequest("the attempt id is blank; send one, because later calls find the holds by it")
    return (
        caller.resource(request.group),
        caller.resource(request.topic),
        handles.attempt_of_user(caller.user, attempt_id),
    )


def _varint(number: int) -> bytes:
    """A number in protobuf's variable-length encoding."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
