"""The asyncio pull consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from popclient._arguments import as_timedelta, require_whole
from popclient._consume.listener import AsyncConcurrentListener, is_async
from popclient._engine.options import MEBIBYTE
from popclient._loop import Here
from popclient._pull.core import PullConsumerCore
from popclient._pull.listen import PullListening, listening_of
from popclient._pull.options import (
    PullOptions,
    Wanted,
    as_offsets,
    as_topic_names,
    as_wanted,
    require_aware,
    require_queue,
)
from popclient._queues.allocation import AllocateStrategy
from popclient._queues.calls import QueueEnd
from popclient.aio.base import BaseConsumer
from popclient.aio.callbacks import require_kind, runner_of
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, Forked
from popclient.message import FilterExpression, MessageQueue, MessageView

FOREVER: Final = timedelta(days=365)


# sync: Belongs to ... nothing. => Safe in threads.
# sync: only one task may poll => only one thread may poll
class PullConsumer(BaseConsumer[PullConsumerCore]):
    """Reads queues from offsets of your choice, in the order in which their messages were stored.

    Belongs to the event loop of its first use. A cancelled `poll` loses nothing. Needs a PopMQ server; with a RocketMQ
    proxy `start` raises UnsupportedByServer.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    group: the server keeps the committed progress of each queue under its name. The protocol wants a group even for
        readers that commit nothing. The server refuses a group that consumes message by message, as with SimpleConsumer
        or PushConsumer: its progress is no offset.
    filters: topics to the filter of each: tags such as "a || b", or a FilterExpression. A topic without one: all.
    consume_from: where to begin in a queue in which the group has no progress: "CONSUME_FROM_LAST_OFFSET" at its end,
        "CONSUME_FROM_FIRST_OFFSET" at its beginning, "CONSUME_FROM_TIMESTAMP" at the first message stored at
        `consume_timestamp` or later: "yyyyMMddHHmmss" or an aware datetime; half an hour ago without one.
    batch_size: how many messages one pull asks for, at most 160.
    max_cached_messages, max_cached_bytes: how much to fetch ahead of `poll`, for all queues, counted with bodies. One
        pull may exceed the bytes.
    auto_commit: commits every `commit_interval` (seconds or a timedelta), and at `close`. Each poll says that the
        messages of earlier polls are done, and only these are committed; so only one task may poll.
    allocate_strategy: how members share the queues that they `subscribe` to: "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH",
        or a callable. All members must use the same.
    on_disconnect, on_reconnect: see ClientConfig.

    >>> async with PullConsumer("127.0.0.1:8081", "reports", consume_from="CONSUME_FROM_FIRST_OFFSET") as consumer:
    ...     await consumer.assign("flights")                                    # doctest: +SKIP
    ...     while messages := await consumer.poll(timeout=5):
    ...         handle(messages)
    ...         await consumer.commit()
    """

    __module__ = "popclient.aio"

    def __init__(
        self,
        endpoints: str | ClientConfig | None,
        group: str,
        *,
        filters: Mapping[str, str | FilterExpression] | None = None,
        consume_from: str = "CONSUME_FROM_LAST_OFFSET",
        consume_timestamp: str | datetime | None = None,
        batch_size: int = 32,
        max_cached_messages: int = 1024,
        max_cached_bytes: int = 64 * MEBIBYTE,
        auto_commit: bool = False,
        commit_interval: float | timedelta = 5,
        allocate_strategy: str | AllocateStrategy = "AVG",
        on_disconnect: Callable[[Exception], None] | None = None,
        on_reconnect: Callable[[], None] | None = None,
    ) -> None:
        options = PullOptions.among(locals())
        self._config = ClientConfig.of(endpoints).with_callbacks(on_disconnect, on_reconnect)
        self._bridge = Here()
        self._core = PullConsumerCore(self._config, options)
        self._bridge.close_at_exit(self._core)

    async def start(self) -> None:
        """Opens the session, as the first call would; raises Unreachable, UnsupportedByServer and so on."""
        await self._bridge.run(self._core.start)

    # ---- Queues ----

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's queues, in order. Raises NotFound."""
        return await self._bridge.run(lambda: self._core.queues(topic))

    async def assign(self, wanted: Wanted) -> list[MessageQueue]:
        """Reads these from now on, and nothing else: a topic (all its queues, later ones too), queues, or several.

        Each begins at the group's progress, else as `consume_from` says; one that was assigned before goes on where it
        is. Nothing changes when a topic or a queue does not exist: NotFound. Returns what is assigned.
        """
        each = as_wanted(wanted)
        return await self._bridge.run(lambda: self._core.assign(each))

    async def subscribe(self, topics: str | Iterable[str]) -> list[MessageQueue]:
        """Reads this member's share of the topics from now on, and nothing else; returns its queues.

        Consumers of the group that subscribe to a topic are members and share its queues, as QueuePushConsumers do;
        when a member comes or goes, the shares change. The next owner of a queue begins at the group's progress, so
        messages that were polled and not committed are delivered again.
        """
        names = as_topic_names(topics)
        return await self._bridge.run(lambda: self._core.subscribe(names))

    @property
    def assignment(self) -> list[MessageQueue]:
        """What is assigned, in order."""
        return self._core.assigned

    def pause(self, *mqs: MessageQueue) -> None:
        """Stops fetching and returning messages of these queues, or of all, until `resume`; their positions stay."""
        self._bridge.call(lambda: self._core.pause(mqs))

    def resume(self, *mqs: MessageQueue) -> None:
        """Continues with these queues, or with all."""
        self._bridge.call(lambda: self._core.resume(mqs))

    # ---- Messages ----

    async def poll(self, timeout: float | timedelta = 15, max_messages: int = 32) -> list[MessageView]:
        """Messages of the assigned queues, those of one queue in its order; empty when the time is over.

        Waits for the first one up to `timeout`, also while a server restarts. Raises permanent failures, such as a
        filter that the server refuses.
        """
        seconds = as_timedelta("timeout", timeout).total_seconds()
        require_whole("max_messages", max_messages)
        return await self._bridge.run(lambda: self._core.poll(seconds, max_messages))

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Polls message by message until the consumer is closed; `poll` is faster where many are at hand."""
        while True:
            try:
                polled = await self.poll(FOREVER, 1)
            except Forked:
                raise
            except ClientClosed:
                return
            for message in polled:
                yield message

    # sync: how many tasks => how many threads
    async def consume(
        self,
        topics: str | Iterable[str],
        listener: AsyncConcurrentListener,
        *,
        consume_threads: int = 20,
        consume_message_batch_max_size: int = 1,
        consume_timeout: float | timedelta = 900,
    ) -> None:
        """Becomes a member for the topics, as `subscribe` does, and hands their messages to a listener until `close`.

        The listener is one as QueuePushConsumer takes it: called with `(messages, context)`, it returns
        ConsumeConcurrentlyStatus; what fails is handed back and comes again by %RETRY%<group>. Progress is committed
        every 5 s, as far as everything before it is consumed; `seek`, `pause` and `position` work as before; `poll` is
        refused. Close the consumer from elsewhere than the listener: it waits for calls that have begun, within
        `close_timeout`.

        consume_threads: how many tasks call it. consume_message_batch_max_size: messages per call.
        consume_timeout: a message that the listener has for longer is handed back, and its result is ignored.
        """
        listening = listening_of(
            listener,
            consume_threads=consume_threads,
            consume_message_batch_max_size=consume_message_batch_max_size,
            consume_timeout=consume_timeout,
        )
        require_kind(listener, "PullConsumer", is_async=is_async(listener))
        names = as_topic_names(topics)
        runner = runner_of(self._bridge)
        await self._bridge.run(lambda: self._core.consume(PullListening(self._core, listening, runner), names))

    # ---- Positions ----

    def position(self, mq: MessageQueue) -> int:
        """The offset from which the next poll reads the queue: all messages before it were returned, or do not match
        the filter."""
        return self._bridge.call(lambda: self._core.position(mq))

    def generation(self, mq: MessageQueue) -> int:
        """A number that distinguishes the queue's topic from an earlier or later one of the same name; 0 until it is
        known.

        Keep it beside an offset that you `seek` to later.
        """
        return self._bridge.call(lambda: self._core.generation(mq))

    def seek(self, mq: MessageQueue, offset: int, generation: int = 0) -> None:
        """Continues at that offset; messages that were fetched before are not returned.

        An offset beyond one end of the queue continues at that end, and this is logged. With a `generation` of an
        earlier topic, the queue begins at its first message.
        """
        require_whole("offset", offset, 0)
        require_whole("generation", generation, 0)
        self._bridge.call(lambda: self._core.seek(mq, offset, generation))

    async def seek_to_beginning(self, *mqs: MessageQueue) -> None:
        """Goes on with the oldest message of these queues, or of all that are assigned."""
        await self._bridge.run(lambda: self._core.seek_to(mqs, QueueEnd.BEGINNING))

    async def seek_to_end(self, *mqs: MessageQueue) -> None:
        """Goes on with what comes from now on."""
        await self._bridge.run(lambda: self._core.seek_to(mqs, QueueEnd.END))

    async def seek_to_time(self, moment: datetime, *mqs: MessageQueue) -> None:
        """Goes on with the first message stored at that (aware) time or later."""
        require_aware("moment", moment)
        await self._bridge.run(lambda: self._core.seek_to(mqs, moment))

    async def search_offset(self, mq: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored in the queue at that (aware) time or later; its end if there
        is none."""
        require_queue(mq)
        require_aware("moment", moment)
        return await self._bridge.run(lambda: self._core.search_offset(mq, moment))

    async def send_message_back(self, message: MessageView, delay_level: int = 0) -> bool:
        """Hands a message back to the server, which delivers it again from %RETRY%<group>. True: it is a dead letter
        instead.

        delay_level: 0 by the group's intervals, 1 to 18 by the delay table, negative makes a dead letter at once. A
            commit includes the message all the same.
        """
        return await self._bridge.run(lambda: self._core.send_message_back(message, delay_level))

    # ---- Progress ----

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """The group has consumed all that was polled, or each queue up to, not including, the given offset.

        Progress only grows: a smaller offset than the stored one changes nothing. Raises ValueError for an offset
        beyond what was polled, MultipleResults when the server refuses some. After an operator's reset it commits
        nothing in that queue, and polling goes on where the operator said.
        """
        given = as_offsets(offsets)
        await self._bridge.run(lambda: self._core.commit(given))

    async def committed(self, mq: MessageQueue) -> int | None:
        """The next offset for the group to consume in that queue, as the server has it; None without progress."""
        return await self._bridge.run(lambda: self._core.committed(mq))

    # ---- Life ----

    def stop(self) -> None:
        """Ends the iteration and `consume`, and a `poll` that waits returns an empty list at once; the next one raises
        ClientClosed. What was polled can be committed until `close`. May be called in any thread, and by a signal
        handler."""
        self._bridge.post(self._core.stop)

    @property
    def stopped(self) -> bool:
        """Was `stop` called? For loops around `poll`."""
        return self._core.stopped

    async def close(self) -> None:
        """Ends all pulls, commits what was polled if `auto_commit` says so, and ends the session, within
        `close_timeout`.

        Closing twice is fine. A block that ends by an exception does not commit the messages of its last poll.
        """
        await self._close(all_done=True)

    async def _close(self, *, all_done: bool) -> None:
        await self._bridge.close(lambda: self._core.close(all_done=all_done), self._core)

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self._close(all_done=kind is None)
