"""A transport for kombu, and so for Celery: queues are topics, and all workers are one consumer group.

    import popclient.frameworks.kombu  # knows URLs with popmq://

    app = Celery("shop", broker="popmq://127.0.0.1:8081")

Importing it adds `popmq` to kombu's TRANSPORT_ALIASES. Needs kombu: pip install 'popmq[celery]'.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from kombu.exceptions import ConnectionError as KombuConnectionError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from popclient import (
    ClientConfig,
    Message,
    MessageView,
    RequestTimeout,
    ServerError,
    ServerTimeout,
    Tls,
    TooManyRequests,
    Unreachable,
)
from popclient._arguments import MILLISECOND, as_timedelta
from popclient._version import VERSION
from popclient.admin import Admin
from popclient.config import DEFAULT_PORT, Endpoint
from popclient.frameworks.forking import ForkingProducer
from popclient.frameworks.intake import Intake, Settlement, log

GROUP: Final = "celery"
HOLD_S: Final = 30
PRIORITIES: Final = "x-max-priority"  # the argument of a queue whose topic takes PRIORITY messages


class KombuQoS(virtual.QoS):
    """Which deliveries of a channel are not settled. Settles them at the server, and never by publishing them again."""

    def ack(self, delivery_tag: str) -> None:
        """The message is done."""
        super().ack(delivery_tag)
        self.channel.settle(delivery_tag, Settlement.ACK)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Delivered again at once, which counts as an attempt; or a dead letter."""
        super().reject(delivery_tag)
        if requeue:
            self.channel.settle(delivery_tag, Settlement.REQUEUE)
        else:
            self.channel.settle(delivery_tag, Settlement.GIVE_UP, "rejected by the worker")

    def restore_unacked(self) -> list[Any]:
        """Gives all of them back; their attempts do not count."""
        self.channel.give_back_all()
        return []

    def restore_unacked_once(self, stderr: object = None) -> None:
        """The same, when the channel closes."""
        self.restore_unacked()


class KombuChannel(virtual.Channel):
    """A channel. Its queues are topics; a direct exchange is known to the process that has bound queues to it."""

    QoS = KombuQoS

    def __init__(self, connection: KombuTransport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        options = connection.client.transport_options
        self._group: str = options.get("group", GROUP)
        self._queues: dict[str, str] = {}  # by consumer tag
        self._intake = Intake(
            connection.config,
            self._group,
            as_timedelta("invisible_duration", options.get("invisible_duration", HOLD_S), MILLISECOND),
            lambda: self.qos.can_consume_max_estimate(),
            connection.wake,
        )

    # ---- Declaring ----

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **kwargs: Any
    ) -> None:
        """Binds it. Raises ValueError for an exchange that is not direct."""
        kind = self.typeof(exchange).type
        if kind != "direct":
            raise ValueError(
                f"queue {queue!r} is bound to exchange {exchange!r} of type {kind!r}, and PopMQ has only direct ones:"
                " give each queue a name, and send to it; for several receivers of one message use a consumer group"
                " for each of them, with transport_options={'group': ...}"
            )
        super().queue_bind(queue, exchange, routing_key, arguments, **kwargs)

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **options: Any) -> Mapping[str, Any]:
        """The arguments of a queue with its options, by their names in RabbitMQ, for `_new_queue` to look at."""
        prepared: Mapping[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return prepared

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("auto_delete") or kwargs.get("exclusive"):
            raise ValueError(
                f"queue {queue!r} is for one process, and a topic of PopMQ stays: declare it durable;"
                " Celery's remote control and its result backend rpc:// need such queues, and do not work here"
            )
        arguments = dict(kwargs.get("arguments") or {})
        if arguments.pop(PRIORITIES, None) is not None:
            self.connection.with_priorities.add(queue)
        if arguments:
            raise ValueError(
                f"queue {queue!r} has arguments that mean nothing to PopMQ: {', '.join(sorted(arguments))}; remove"
                " them, and set the policy of the topic or the group with popmq topic, popmq group"
            )

    def _purge(self, queue: str) -> int:
        with Admin(self.connection.config) as admin:
            moved = admin.reset_offsets(self._group, queue, "END", force=True)
        return sum(each.to_offset - max(each.from_offset, 0) for each in moved)

    # ---- Sending ----

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publishes to a queue, or to a direct exchange. What goes to another exchange reaches nobody: there no queue
        can be bound.

        Raises ValueError if no queue is bound to a direct exchange with this key, or a PopError.
        """
        if exchange and self.typeof(exchange).type == "direct":
            bound = {(source, key) for _, source, key in self.list_bindings()}
            if (exchange, routing_key) not in bound:
                raise ValueError(
                    f"this process knows no queue of exchange {exchange!r} with routing key {routing_key!r}; declare"
                    " the queue here too (Celery: task_queues), or name it: queue='...'"
                )
        super().basic_publish(message, exchange, routing_key, **kwargs)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str]:
        """Text stays as it is, so that an operator can read it; bytes become base64."""
        if isinstance(body, str):
            return body, "utf-8"
        encoded: tuple[Any, str] = super().encode_body(body, "base64")
        return encoded

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        has_priorities = queue in self.connection.with_priorities
        self.connection.producer.send(message_of(queue, message, has_priorities=has_priorities))

    # ---- Receiving ----

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Receives from the queue from now on. Raises a PopError if its topic or the group is refused."""

        def acked(message: Any) -> Any:
            self.settle(message.delivery_tag, Settlement.ACK)
            return callback(message)

        super().basic_consume(queue, no_ack, acked if no_ack else callback, consumer_tag, **kwargs)
        self._queues[consumer_tag] = queue
        self._intake.receive_from(dict.fromkeys(self._queues.values()))

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receives from its queue no more; what was received can be settled until the channel closes."""
        super().basic_cancel(consumer_tag)
        if self._queues.pop(consumer_tag, None) is not None:
            self._intake.receive_from(dict.fromkeys(self._queues.values()))

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Changes how many messages may be held; 0: any number."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._intake.look_again()

    def settle(self, delivery_tag: str, settlement: Settlement, reason: str = "") -> None:
        """Settles a delivery soon."""
        self._intake.settle(delivery_tag, settlement, reason)

    def give_back_all(self) -> None:
        """Gives back all that is not settled; the attempts do not count."""
        self._intake.give_back_all()

    def deliver(self) -> int:
        """Calls the consumers with what has arrived; returns how many messages that were."""
        count = 0
        while (found := self._intake.next_arrived()) is not None:
            tag, view = found
            if view.topic not in self._queues.values():  # cancelled meanwhile
                self.settle(tag, Settlement.GIVE_BACK)
                continue
            try:
                payload = payload_of(view, tag)
            except ValueError as error:
                log.error("%s becomes a dead letter: %s", view, error)
                self.settle(tag, Settlement.GIVE_UP, str(error))
                continue
            self.connection.on_message_ready(self, payload, view.topic)
            count += 1
        if (refusal := self._intake.refusal) is not None:
            self._intake.refusal = None
            raise KombuConnectionError(str(refusal)) from refusal
        return count

    def close(self) -> None:
        """Gives back what is not settled, and ends the session."""
        super().close()
        self._intake.close()


class KombuTransport(virtual.Transport):
    """popmq://[ACCESS_KEY:SECRET@]HOST[:PORT][/NAMESPACE]

    Options, as kombu's `transport_options` (Celery: `broker_transport_options`):
    group: the consumer group of all workers ("celery").
    invisible_duration: seconds that the server keeps a message for a worker that does not renew its hold (30): so long
        after the end of a killed worker its tasks run again. Workers renew when a third has passed.
    `ssl` (Celery: `broker_use_ssl`): True, or a dict of the fields of `popclient.Tls`.
    """

    Channel = KombuChannel
    default_port = DEFAULT_PORT
    driver_type = driver_name = "popmq"
    implements = virtual.Transport.implements.extend(asynchronous=True, exchange_type=frozenset({"direct"}))
    # A new connection may help; all other errors are raised to the caller.
    connection_errors = recoverable_connection_errors = (
        *virtual.Transport.connection_errors,
        Unreachable,
        ServerError,
        ServerTimeout,
        RequestTimeout,
        TooManyRequests,
    )
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.config = config_of(client)
        self.producer = ForkingProducer(self.config)
        self.with_priorities: set[str] = set()  # names of queues

    def driver_version(self) -> str:
        """The version of PopMQ."""
        return VERSION

    def establish_connection(self) -> Any:
        """Raises Unreachable, Unauthorized and so on."""
        self.producer.start()
        self._bell, self._button = socket.socketpair()
        self._button.setblocking(False)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Closes its channels and its producer."""
        super().close_connection(connection)
        self.producer.close()
        self._bell.close()
        self._button.close()

    def wake(self) -> None:
        """Has the loop that waits in `drain_events`, or an event loop, deliver what has arrived."""
        with contextlib.suppress(OSError):  # it is awake already, or closed
            self._button.send(b"\0")

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Delivers in this loop."""
        loop.add_reader(self._bell.fileno(), self.on_readable, connection, loop)

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Delivers what has arrived."""
        self._is_awake(0)
        self._deliver_all()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Waits for a message, up to `timeout` seconds, and delivers all that have arrived.

        Raises TimeoutError, which is socket.timeout, if none comes.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._deliver_all():
            left = None if until is None else max(until - time.monotonic(), 0)
            if not self._is_awake(left) and left == 0:
                raise TimeoutError(f"no message within {timeout} s")

    def _deliver_all(self) -> int:
        return sum(channel.deliver() for channel in list(self.channels))

    def _is_awake(self, timeout: float | None) -> bool:
        self._bell.settimeout(timeout)
        try:
            return bool(self._bell.recv(4096))
        except (TimeoutError, BlockingIOError):
            return False


Transport = KombuTransport
TRANSPORT_ALIASES["popmq"] = f"{__name__}:Transport"


def config_of(client: Any) -> ClientConfig:
    """The config of kombu's `Connection`."""
    given = client.ssl
    return ClientConfig(
        endpoints=str(Endpoint(client.hostname or "127.0.0.1", int(client.port or DEFAULT_PORT))),
        namespace=(client.virtual_host or "").strip("/"),
        access_key=client.userid or "",
        access_secret=client.password or "",
        tls=Tls(**given) if isinstance(given, Mapping) else bool(given),
    )


def message_of(queue: str, message: Mapping[str, Any], *, has_priorities: bool = False) -> Message:
    """The message that carries a message of kombu's: with an `eta` in its headers it is delivered then."""
    headers, properties = message["headers"], message["properties"]
    due = due_of(headers)
    priority = properties.get("priority") or (0 if has_priorities else None)
    return Message(
        queue,
        dumps(message),
        tag=headers.get("task"),
        keys=properties.get("correlation_id") or (),
        message_group=properties.get("message_group"),
        delivery_timestamp=due,
        priority=priority if due is None else None,
    )


def due_of(headers: Mapping[str, Any]) -> datetime | None:
    """When a task is due. Without a time zone only the worker knows when that is, so the worker waits."""
    eta = headers.get("eta")
    if not eta:
        return None
    due = datetime.fromisoformat(eta)
    if due.tzinfo is None:
        log.warning("eta %s has no time zone, so a worker holds the task until then; give an aware datetime", eta)
        return None
    return due


def payload_of(view: MessageView, tag: str) -> dict[str, Any]:
    """The message of kombu's that a message carries. Raises ValueError for any other message."""
    try:
        payload: dict[str, Any] = loads(view.body)
        properties = payload["properties"]
        properties["delivery_tag"] = tag
        properties["delivery_info"]["redelivered"] = view.delivery_attempt > 1
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the body is no message of kombu's: {error!r}") from None
    return payload
