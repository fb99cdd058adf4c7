"""The push consumer's life: start, poll, drain."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import ClassVar

from popclient._engine.flow import CacheBudget
from popclient._engine.interceptors import InterceptorChain
from popclient._engine.life import ConsumerLife
from popclient._engine.options import PushOptions
from popclient._engine.runner import MakeRunner
from popclient._engine.settle import Settling
from popclient._push.assignments import LONG_POLL, Polling
from popclient._push.dispatcher import Dispatcher
from popclient._push.listener import PushListener
from popclient._session import convert
from popclient._session.session import Session
from popclient._tracing import TracingInterceptor
from popclient.config import ClientConfig
from popclient.listening import ConsumeStatus
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb


class PushConsumerCore(ConsumerLife):
    """One push consumer. Belongs to one event loop."""

    client_type: ClassVar[pb.ClientType.ValueType] = pb.PUSH_CONSUMER

    def __init__(
        self,
        config: ClientConfig,
        options: PushOptions,
        make_runner: MakeRunner,
    ) -> None:
        super().__init__(options.group, options.drain_timeout)
        self.config = config
        self.options = options
        self.session = Session(
            config,
            self.client_type,
            options.group,
            lambda: convert.subscription(options.group, options.topics, config.namespace, timedelta(seconds=LONG_POLL)),
        )
        self.session.on_refused = self._end
        self.budget = CacheBudget(options.max_cached_messages, options.max_cached_bytes)
        interceptors = InterceptorChain([TracingInterceptor(config, options.group), *options.interceptors])
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
            self._dispatcher.return_late,
            self._dispatcher.keeps_up,
        )
        self.session.on_trial = self._try_out
        self.session.transport.on_silence = self._dispatcher.server_is_silent

    async def _start(self) -> None:
        """Looks the topics up, opens the session and begins to poll. Raises a PopError if one of these is refused."""
        for topic in self.options.topics:
            await self.session.look_up(topic)
        await self.session.start()
        await self._subscribe()
        await self._polling.start()

    async def _subscribe(self) -> None:
        """What the server has to be told before polls; raises its refusal."""

    def is_inside(self) -> bool:
        return self._runner.is_inside()

    async def _try_out(self, message: pb.Message) -> pb.Status:
        """Gives the listener a message without a hold, for an operator. Returns how the call ended."""
        try:
            async with asyncio.timeout(self.options.consumption_timeout):
                consumption = await self._dispatcher.try_out(MessageView.unheld(message))
        except TimeoutError:
            return _failed(f"the listener has not ended within {self.options.consumption_timeout:g} s")
        if consumption.status is ConsumeStatus.SUCCESS:
            return pb.Status(code=pb.OK, message=f"consumed in {consumption.seconds:.3f} s")
        error = "" if consumption.error is None else f": {consumption.error!r}"
        return _failed(f"the listener ended with {consumption.status}{error}")

    def _call_no_more(self) -> None:
        self._dispatcher.begin_no_more()

    async def _close(self, drain_timeout: float) -> None:
        """Stops polling, gives messages back, lets the listener finish, flushes the outcomes, and says goodbye."""
        clock = asyncio.get_running_loop().time
        patience = 0.0  # an interrupted closing does not wait for the goodbye either
        try:
            await self._stop_starting()
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
