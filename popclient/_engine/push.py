"""The push consumer's life: start, poll, drain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta

from popclient import _convert as convert
from popclient._engine.assignments import LONG_POLL, Polling
from popclient._engine.dispatcher import Dispatcher
from popclient._engine.flow import CacheBudget
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.listener import PushListener
from popclient._engine.options import PushOptions
from popclient._engine.runner import MakeRunner
from popclient._engine.settle import Settling
from popclient._session import Session, log
from popclient._tracing import Onlooker
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, PopError, for_caller
from popclient.listening import ConsumeStatus
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb


class PushConsumerCore:
    """One push consumer. Belongs to one event loop."""

    def __init__(
        self,
        config: ClientConfig,
        options: PushOptions,
        make_runner: MakeRunner,
    ) -> None:
        self.config = config
        self.options = options
        self.session = Session(
            config,
            pb.PUSH_CONSUMER,
            options.group,
            lambda: convert.subscription(options.group, options.topics, config.namespace, timedelta(seconds=LONG_POLL)),
        )
        self.session.on_refused = self._end
        self.budget = CacheBudget(options.max_cached_messages, options.max_cached_bytes)
        self.when_ended: Callable[[], None] = lambda: None
        self.refusal: PopError | None = None  # what the server has ended it with
        interceptors = InterceptorChain([Onlooker(config, options.group), *options.interceptors])
        self._settling = Settling(self.session, options.group)
        listener = PushListener(options.listener, interceptors, single=options.batch_size is None)
        self._runner = make_runner(f"{options.group}-", options.concurrency, None)
        self._dispatcher = Dispatcher(self.session, options, self._settling, self.budget, listener, self._runner)
        self._polling = Polling(
            self.session,
            options,
            self.budget,
            interceptors,
            self._dispatcher.arrived,
            self._dispatcher.strayed,
            self._dispatcher.keeps_up,
        )
        self.session.on_trial = self._try_out
        self._starting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Looks the topics up, opens the session and begins to poll; raises what is wrong with them."""
        if self._closing is not None:
            raise ClientClosed
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._starting.cancelled():
                self.raise_refusal()
            raise

    async def _start(self) -> None:
        for topic in self.options.topics:
            await self.session.route(topic)
        await self.session.start()
        await self._polling.start()

    def is_inside(self) -> bool:
        """Is the caller the listener? It must not wait for the end of the consumer, which waits for it."""
        return self._runner.is_inside()

    def _end(self, refusal: PopError) -> None:
        """The server lets it consume no more: its group is gone, or its rights."""
        if self._closing is None:
            self.refusal = refusal
            log.error("the consumer of group %s ends: %s", self.options.group, refusal)
            self.begin_closing(self.options.drain_timeout)

    async def _try_out(self, message: pb.Message) -> pb.Status:
        """Has the listener consume a message without a hold, for an operator; says how it ended."""
        try:
            async with asyncio.timeout(self.options.consumption_timeout):
                consumption = await self._dispatcher.try_out(MessageView.unheld(message))
        except TimeoutError:
            return _failed(f"the listener has not ended within {self.options.consumption_timeout:g} s")
        if consumption.status is ConsumeStatus.SUCCESS:
            return pb.Status(code=pb.OK, message=f"consumed in {consumption.seconds:.3f} s")
        error = "" if consumption.error is None else f": {consumption.error!r}"
        return _failed(f"the listener ended with {consumption.status}{error}")

    def raise_refusal(self) -> None:
        """Raises what the server has ended it with."""
        if self.refusal is not None:
            raise for_caller(self.refusal)

    async def close(self, drain_timeout: float = 0.0) -> None:
        """Returns when the consumer is closed. A process that ends without closing it waits for no listener."""
        await asyncio.shield(self.begin_closing(drain_timeout))

    def begin_closing(self, drain_timeout: float) -> asyncio.Task[None]:
        """Stops polling, gives back, lets the listener finish for `drain_timeout` seconds, flushes, says goodbye.

        A second call waits for the same end.
        """
        if self._closing is None:
            self._dispatcher.begin_no_more()
            self._closing = asyncio.get_running_loop().create_task(self._close(drain_timeout))
        return self._closing

    async def _close(self, drain_timeout: float) -> None:
        clock = asyncio.get_running_loop().time
        patience = 0.0  # an interrupted closing does not wait for the goodbye either
        try:
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.gather(self._starting, return_exceptions=True)
            await self._polling.stop(drain_timeout)
            await self._dispatcher.drain(drain_timeout)
            deadline = clock() + self.config.close_timeout
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._dispatcher.flush()
            patience = deadline - clock()
        finally:
            self._dispatcher.abandon()
            self._settling.abandon()
            await self.session.close(patience)
            self.when_ended()


def _failed(sentence: str) -> pb.Status:
    return pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE, message=sentence[:1_000])
