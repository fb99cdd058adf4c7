"""Taskiq over PopMQ: tasks are messages of a topic, and the workers are a consumer group.

    from popclient.frameworks.taskiq import PopBroker

    broker = PopBroker("127.0.0.1:8081", topic="tasks", group="workers")

    @broker.task
    async def bake(cake: str) -> None:
        ...

Taskiq calls `ack` for a task that has failed as for one that has succeeded, and calls nothing for one that it does not
run. A middleware, which the broker adds to itself, notes what became of each task. Needs Taskiq: pip install
'popmq[taskiq]'.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Final

from popclient._engine.options import HOLD_MAX
from popclient.aio.producer import Producer
from popclient.aio.push_consumer import PushConsumer
from popclient.config import ClientConfig
from popclient.listening import ConsumeResult, GiveBack, GiveUp
from popclient.message import MessageView

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage, NoResultError, TaskiqMessage, TaskiqMiddleware
    from taskiq.exceptions import TaskRejectedError
    from taskiq.result import TaskiqResult
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; popclient.frameworks.taskiq needs it: pip install 'popmq[taskiq]'") from None

__all__ = ["PopBroker"]

DRAIN_TIMEOUT: Final = HOLD_MAX.total_seconds()  # Taskiq decides how long to wait for tasks; `shutdown` ends them


class PopBroker(AsyncBroker):
    """A Taskiq broker. Belongs, from `startup` to `shutdown`, to one event loop.

    A task that raises is delivered again after the group's retry interval, until the group's attempts are used up and
    it becomes a dead letter; its result is stored after its last attempt. A task that Taskiq itself sends again (by a
    retry middleware, or `context.requeue`) is done with that. A task that is rejected or raises `popclient.GiveUp`,
    and a message that is no task, become dead letters at once. The message's tag is the task's name, and its key the
    task's id.

    Labels of a task: `delay` in seconds; `message_group`: tasks of one group run one after the other, in the order in
    which they were sent; `priority`: a hint, 0 or more, higher first, in a topic of the type PRIORITY. Give one of them
    at most.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    topic: where tasks are sent, and received. group: the consumer group of the workers.
    concurrency: how many tasks one worker process holds, running and waiting. Give `taskiq worker` the same number as
        `--max-async-tasks`, so that none waits here while another worker is idle.
    consumption_timeout: seconds or a timedelta, up to 3 h; a task that has not ended by then has failed. Taskiq does
        not stop it: give a coroutine the label `timeout` as well.
    """

    def __init__(
        self,
        endpoints: str | ClientConfig | None = None,
        topic: str = "tasks",
        group: str = "workers",
        *,
        concurrency: int = 100,
        consumption_timeout: float | timedelta = 900,
    ) -> None:
        super().__init__()
        self._config = ClientConfig.of(endpoints)
        self._topic = topic
        self._group = group
        self._concurrency = concurrency
        self._consumption_timeout = consumption_timeout
        self._make_clients()
        self.add_middlewares(_TaskOutcomes(self))

    def _make_clients(self) -> None:
        self._producer = Producer(self._config, self._topic)
        self._consumer = PushConsumer(
            self._config,
            self._group,
            self._topic,
            self._listener,
            concurrency=self._concurrency,
            max_cached_messages=self._concurrency,
            consumption_timeout=self._consumption_timeout,
            drain_timeout=DRAIN_TIMEOUT,
        )
        self._arrived: asyncio.Queue[_Delivery | None] = asyncio.Queue()
        self._consumer._core.when_ended = partial(self._arrived.put_nowait, None)
        self._undecided: set[_Delivery] = set()
        self._not_begun: defaultdict[str, deque[_Delivery]] = defaultdict(deque)  # with Taskiq, by the task's id

    async def startup(self) -> None:
        """Connects, in a worker as a consumer too; raises NotFound, Unreachable and so on."""
        await super().startup()
        await self._producer.start()
        if self.is_worker_process:
            await self._consumer.start()

    async def shutdown(self) -> None:
        """Closes the clients. A task that still runs has failed: it is delivered again."""
        try:
            await super().shutdown()
        finally:
            for delivery in [*self._undecided]:
                delivery.end(RuntimeError("the worker ended before the task") if delivery.has_begun else GiveBack())
            await self._consumer.close()
            await self._producer.close()
            self._make_clients()  # for another `startup`, perhaps in another event loop

    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task. Raises a PopError, or ValueError for a label that cannot be sent."""
        await self._producer.send(
            self._topic, message.message, tag=message.task_name, keys=message.task_id, **_fields_of(message.labels)
        )
        running = _running.get()
        if running is not None and running.task_id == message.task_id:
            running.is_sent_again = True

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """The tasks of this worker, until the broker shuts down. Raises the server's refusal if that ends it."""
        consumer, arrived = self._consumer, self._arrived
        await consumer.start()
        try:
            while (delivery := await arrived.get()) is not None:
                if delivery.outcome.done():  # it has waited here for too long
                    continue
                self._not_begun[delivery.task_id].append(delivery)
                yield AckableMessage(data=delivery.view.body, ack=delivery.ack)
            consumer.raise_refusal()
        finally:
            consumer._core.begin_closing(DRAIN_TIMEOUT)  # nothing more arrives; tasks that run keep their holds
            while not arrived.empty():
                if (waiting := arrived.get_nowait()) is not None:
                    waiting.end(GiveBack())

    async def _listener(self, view: MessageView) -> ConsumeResult:
        """Returns when the task has been done; raises why it has failed."""
        try:
            message = self.formatter.loads(view.body)
        except Exception as error:
            raise GiveUp(f"this is no task for Taskiq: {type(error).__name__}: {error}") from error
        if self.find_task(message.task_name) is None:
            raise LookupError(f"there is no task {message.task_name!r} in this worker; let it import the task's module")
        delivery = _Delivery(view, message.task_id)
        self._undecided.add(delivery)
        self._arrived.put_nowait(delivery)
        try:
            failure = await delivery.outcome
        finally:
            self._undecided.discard(delivery)
        if failure is None:
            return ConsumeResult.SUCCESS
        if isinstance(failure, Exception):
            raise failure
        raise RuntimeError(f"the task has raised {failure!r}") from failure

    def _begin(self, task_id: str) -> _Delivery | None:
        """The delivery of the task that begins. Taskiq begins tasks in the order in which they were handed to it."""
        waiting = self._not_begun.get(task_id)
        if not waiting:
            return None
        delivery = waiting.popleft()
        delivery.has_begun = True
        if not waiting:
            del self._not_begun[task_id]
        return delivery

    def _comes_again(self, view: MessageView) -> bool:
        most = self._consumer._core.session.settings.backoff_policy.max_attempts
        return not most or view.delivery_attempt < most


class _Delivery:
    """One delivery of a task. `outcome` is None after a success, else why it has failed."""

    def __init__(self, view: MessageView, task_id: str) -> None:
        self.view = view
        self.task_id = task_id
        self.outcome: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.failure: BaseException | None = None  # so far: Taskiq acks a failed task, too
        self.has_begun = False
        self.is_sent_again = False

    def ack(self) -> None:
        self.end(self.failure)

    def end(self, failure: BaseException | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result(failure)


_running: Final[ContextVar[_Delivery | None]] = ContextVar("popclient_taskiq_running", default=None)


class _TaskOutcomes(TaskiqMiddleware):
    """Notes what becomes of tasks. The first middleware: the others have acted when it hears of an error."""

    def __init__(self, broker: PopBroker) -> None:
        super().__init__()
        self._broker = broker

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """A task begins. What Taskiq does not ack has failed when it ends."""
        delivery = self._broker._begin(message.task_id)
        running = asyncio.current_task()
        if delivery is not None and running is not None:
            _running.set(delivery)
            running.add_done_callback(lambda _: delivery.end(RuntimeError("the task ended without an ack")))
        return message

    def on_error(self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException) -> None:
        """A task has failed. If it comes again, its result is not stored yet."""
        delivery = _running.get()
        if delivery is None or delivery.outcome.done() or delivery.is_sent_again:
            return
        if isinstance(result.error, NoResultError):
            return
        delivery.failure = GiveUp("the task was rejected") if isinstance(exception, TaskRejectedError) else exception
        if not isinstance(delivery.failure, GiveUp) and self._broker._comes_again(delivery.view):
            result.error = NoResultError()


def _fields_of(labels: dict[str, Any]) -> dict[str, Any]:
    """The fields of a message that labels name. Taskiq has made texts of their values."""
    fields: dict[str, Any] = {}
    if "message_group" in labels:
        fields["message_group"] = labels["message_group"]
    if "priority" in labels:
        fields["priority"] = _number("priority", int, labels["priority"])
    if "delay" in labels and (delay := _number("delay", float, labels["delay"])):
        fields["delay"] = delay
    return fields


def _number(label: str, kind: type[int] | type[float], given: Any) -> float:
    try:
        return kind(given)
    except (TypeError, ValueError):
        what = "a whole number" if kind is int else "a number of seconds"
        raise ValueError(f"label {label} is {given!r}; it must be {what}") from None
