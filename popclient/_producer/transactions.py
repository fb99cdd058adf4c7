"""The core of transactions, in one event loop: sending the half, deciding, and answering the server's checks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from popclient._session.batching import Reply, unwrap
from popclient._session.convert import Outbound
from popclient._tasks import Tasks
from popclient._version import log
from popclient.errors import PopError
from popclient.listening import Checker, TransactionResolution
from popclient.message import MessageView
from popclient.receipts import SendReceipt
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

CHECKS_AT_ONCE: Final = 8

Submit = Callable[[Outbound, Reply], None]
# Tells the server a decision: topic, message id, transaction id, what was decided, and what made the client decide.
EndTransaction = Callable[
    [str, str, str, TransactionResolution, pb.TransactionSource.ValueType], Coroutine[Any, Any, None]
]
Decide = Callable[[MessageView], Awaitable[TransactionResolution]]
COMMIT, ROLLBACK, UNKNOWN = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK, TransactionResolution.UNKNOWN
RESOLUTIONS: Final = {COMMIT: pb.COMMIT, ROLLBACK: pb.ROLLBACK}


class HalfMessage:
    """One transaction; its two faces are `popclient.Transaction` and `popclient.aio.Transaction`."""

    def __init__(self, message: Outbound, submit: Submit, end: EndTransaction) -> None:
        self._submit = submit
        self._end = end
        self._message = message
        self._receipt: SendReceipt | None = None
        self.resolution: TransactionResolution | None = None

    @property
    def receipt(self) -> SendReceipt:
        if self._receipt is None:
            raise RuntimeError("the transaction has not begun; use it in a with statement")
        return self._receipt

    async def begin(self) -> None:
        """Has the server store the half."""
        if self._receipt is not None:
            raise RuntimeError("a transaction is used once; make another one")
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._submit(self._message, reply)
        self._receipt = unwrap(await reply)

    async def decide(self, resolution: TransactionResolution) -> None:
        """Tells the server. A decision that did not arrive may be repeated, but not changed."""
        receipt = self.receipt
        if self.resolution not in (None, resolution):
            raise RuntimeError(f"the transaction's decision is {self.resolution.value}; it cannot become another")
        self.resolution = resolution
        await self._end(self._message.topic, receipt.message_id, receipt.transaction_id, resolution, pb.SOURCE_CLIENT)

    async def leave(self, failed: bool) -> None:
        """The end of the block: commits an undecided message, or rolls it back if the block has failed."""
        if self.resolution is not None:
            return
        if not failed:
            await self.decide(COMMIT)
            return
        try:
            await self.decide(ROLLBACK)
        except PopError as failure:
            # The error of the block is more important, and the server will ask.
            log.warning("message %s is not rolled back yet: %s", self.receipt.message_id, failure)


class Checks:
    """Answers the server's checks of half messages without a decision.

    decide: calls the user's checker. Without one there is no answer, and the server asks another producer.
    timeout: seconds that the checker may take; after that there is no answer, and the next check follows.
    """

    def __init__(self, end: EndTransaction, decide: Decide | None, timeout: float) -> None:
        self._end = end
        self._decide = decide
        self._timeout = timeout
        self._tasks = Tasks()
        self._turns = asyncio.Semaphore(CHECKS_AT_ONCE)

    def asked(self, command: rpc.RecoverOrphanedTransactionCommand) -> None:
        if self._decide is None:
            log.debug("no checker to ask about message %s", command.message.system_properties.message_id)
        else:
            self._tasks.spawn(self._answer(self._decide, command))

    async def flush(self) -> None:
        await self._tasks.ended()

    def abandon(self) -> None:
        self._tasks.cancel()

    async def _answer(self, decide: Decide, command: rpc.RecoverOrphanedTransactionCommand) -> None:
        message = MessageView.unheld(command.message)
        async with self._turns:
            resolution = await self._ask(decide, message)
        if resolution is TransactionResolution.UNKNOWN:
            return
        try:
            await self._end(
                message.topic,
                message.message_id,
                command.transaction_id,
                resolution,
                pb.SOURCE_SERVER_CHECK,
            )
        except PopError as failure:
            log.warning("the server did not take the answer for message %s: %s", message.message_id, failure)

    async def _ask(self, decide: Decide, message: MessageView) -> TransactionResolution:
        """What the checker returns in time; UNKNOWN if it fails or returns anything else."""
        named = f"message {message.message_id} of topic {message.topic!r}"
        limit = asyncio.timeout(self._timeout)
        resolution: object = None
        try:
            async with limit:
                resolution = await decide(message)
        except asyncio.CancelledError:
            raise
        except BaseException:  # noqa: BLE001  the user's own code may raise anything, SystemExit too
            if not limit.expired():
                log.exception("the checker failed on %s; the server will ask again", named)
                return UNKNOWN
        if limit.expired():
            log.warning(
                "the checker has not decided about %s within %g s; the server will ask again", named, self._timeout
            )
            return UNKNOWN
        if not isinstance(resolution, TransactionResolution):
            log.error("the checker returned %r for %s, not a TransactionResolution", resolution, named)
            return UNKNOWN
        return resolution


def in_a_thread(checker: Checker) -> Decide:
    """Calls the checker in a daemon thread of its own, so that it does not keep the process from ending.

    A thread cannot be cancelled: after the timeout it goes on, and its answer is dropped.
    """

    async def decide(message: MessageView) -> TransactionResolution:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[TransactionResolution] = loop.create_future()

        def tell(result: TransactionResolution | None, failure: Exception | None) -> None:
            if answer.done():
                return
            if failure is not None:
                answer.set_exception(failure)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            try:
                result = checker(message)
            except BaseException as failure:  # noqa: BLE001  it is raised where the answer is awaited
                # A future takes no StopIteration, and a SystemExit must not end the event loop.
                wrapped = RuntimeError(f"the checker raised {failure!r}")
                wrapped.__cause__ = failure
                loop.call_soon_threadsafe(tell, None, wrapped)
            else:
                loop.call_soon_threadsafe(tell, result, None)

        threading.Thread(target=run, name="popclient-checker", daemon=True).start()
        return await answer

    return decide
