"""`popmq message …` and `popmq why`: stored and scheduled messages."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from popclient._sync.lite_consumers import LiteSimpleConsumer
from popclient._sync.producer import Producer
from popclient._sync.simple_consumer import SimpleConsumer
from popclient.admin import Admin, HistoryEntry, MessageFacts, ScheduledMessage
from popclient.cli import REFUSED
from popclient.cli.arguments import UsageError, client_config, confirm, counted
from popclient.cli.output import (
    STORED,
    STORED_CELLS,
    Cell,
    body_lines,
    excerpt,
    fields,
    local,
    message_document,
    message_fields,
    picked,
    report,
    table_of,
    utc,
    with_lite_topics,
)
from popclient.errors import NotFound, PopError
from popclient.message import FilterExpression, Message, MessageView
from popclient.receipts import SendReceipt

SENT_TOGETHER = 1_000
CANCELLED_MAX = 1_000  # by a key, in one call


def send(arguments: Namespace) -> int:
    """Send the message `--count` times; stop at the first refusal and report how many are stored."""
    message = Message(
        arguments.topic,
        sys.stdin.buffer.read() if arguments.body == "-" else os.fsencode(arguments.body),
        tag=arguments.tag,
        keys=arguments.key,
        properties=dict(arguments.property),
        delay=arguments.delay,
        message_group=arguments.message_group,
        priority=arguments.priority,
        idempotency_key=arguments.idempotency_key,
        lite_topic=arguments.lite_topic,
    )
    # The producer looks the topic up first: without a server or the topic, no send is repeated.
    with Producer(client_config(arguments), arguments.topic) as producer:
        receipts = list(_sent(producer, message, arguments.count))
    document = {
        "topic": arguments.topic,
        "sent": len(receipts),
        "messages": [
            {
                "message_id": each.message_id,
                "queue_id": each.queue_id,
                "queue_offset": each.offset,
                "deliver_at": utc(each.delivery_timestamp),
            }
            for each in receipts
        ],
    }
    what = receipts[0].message_id if len(receipts) == 1 else f"{len(receipts)} messages"
    lines = [f"sent {what} to {arguments.topic}{_stored_at(receipts)}"]
    return report(arguments, document, lines)


def _stored_at(receipts: Sequence[SendReceipt]) -> str:
    """Queue and offset of a single message; the due time of delayed ones."""
    first = receipts[0]
    if first.delivery_timestamp is not None:
        return f", due at {local(first.delivery_timestamp)}"
    if len(receipts) > 1:
        return ""
    queue = "" if first.queue_id is None else f", queue {first.queue_id},"
    return f"{queue} at offset {first.offset}"


def receive(arguments: Namespace) -> int:
    """Prints the messages, then acks them with --ack: a message that could not be printed is not lost."""
    with _consumer(arguments) as consumer:
        received = consumer.receive(arguments.max, arguments.invisible, arguments.wait)
        status = report(
            arguments,
            [_held_document(each) for each in received],
            _held_lines(received, with_handles=not arguments.ack),
        )
        sys.stdout.flush()
        if arguments.ack and received:
            consumer.ack(received)
    return status


def _consumer(arguments: Namespace) -> SimpleConsumer:
    if arguments.lite_topic is not None:
        return LiteSimpleConsumer(client_config(arguments), arguments.group, arguments.topic, arguments.lite_topic)
    wanted = FilterExpression(arguments.filter) if arguments.sql is None else FilterExpression.sql(arguments.sql)
    return SimpleConsumer(client_config(arguments), arguments.group, {arguments.topic: wanted})


def peek(arguments: Namespace) -> int:
    if arguments.from_offset is not None and arguments.queue is None:
        raise UsageError("--from is an offset of one queue; name it with --queue")
    with Admin(client_config(arguments)) as admin:
        found = admin.peek_messages(
            arguments.topic,
            queue_id=arguments.queue,
            from_offset=arguments.from_offset,
            max_messages=arguments.max,
        )
    columns = with_lite_topics(f"{STORED} keys body", found, "tag")
    lines = table_of(found, columns, "no messages", **STORED_CELLS, keys=_keys, body=excerpt)
    return report(arguments, list(map(message_document, found)), lines)


def _keys(message: MessageView) -> str:
    return ",".join(message.keys)


def get(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        facts = in_any_case(lambda each: admin.get_message(each, arguments.topic), arguments.message_id)
    return report(arguments, _facts_document(facts), _facts_lines(facts))


def _sent(producer: Producer, message: Message, count: int) -> Iterator[SendReceipt]:
    for start in range(0, count, SENT_TOGETHER):
        results = producer.send_many([message] * min(SENT_TOGETHER, count - start))
        if results.failures:
            raise _with_count(results.failures[0][1], start + len(results.receipts), count)
        yield from results.receipts


def _with_count(failure: PopError, stored: int, count: int) -> PopError:
    """The failure, with the number of messages that were stored before it."""
    if count > 1:
        failure.sentence += f" ({stored} of {count} messages were stored)"
    return failure


def _held_document(message: MessageView) -> dict[str, Any]:
    return message_document(message) | picked(message, "delivery_attempt receipt_handle invisible_until")


def _held_lines(received: Sequence[MessageView], *, with_handles: bool) -> list[str]:
    columns = with_lite_topics("message_id attempt stored tag keys body", received, "tag")
    return table_of(
        received,
        f"{columns} receipt_handle" if with_handles else columns,
        "no messages",
        attempt="delivery_attempt",
        stored="store_timestamp",
        keys=_keys,
        body=excerpt,
    )


def _facts_document(facts: MessageFacts) -> dict[str, Any]:
    states = [picked(each, "group state delivery_attempt visible_at client_id") for each in facts.states]
    return {**message_document(facts.message), "states": states, "history": history_document(facts.history)}


def _facts_lines(facts: MessageFacts) -> list[str]:
    states_table = table_of(
        facts.states,
        "group state attempt visible_at client",
        "no group has received from its topic yet",
        attempt=lambda state: state.delivery_attempt or "",
        client="client_id",
    )
    return [
        *fields(message_fields(facts.message)),
        "",
        *states_table,
        "",
        *history_lines(facts.history),
        "",
        *body_lines(facts.message),
    ]


Found = TypeVar("Found")

# The layout that clients give their ids, in capitals; an id may be any other text as well.
_ID_V1 = re.compile(r"01[0-9A-F]{32}")


def in_any_case(find: Callable[[str], Found], written: str) -> Found:
    """The result for the id as it was typed, or else for the same digits in capitals; raises `NotFound`."""
    capitals = written.upper()
    if capitals == written or not _ID_V1.fullmatch(capitals):
        return find(written)
    try:
        return find(written)
    except NotFound:
        return find(capitals)


_STEP: Final = "at group event from_state to_state delivery_attempt client_id reason"


def history_document(steps: Iterable[HistoryEntry]) -> list[dict[str, Any]]:
    return [picked(each, _STEP) for each in steps]


def history_lines(steps: Iterable[HistoryEntry]) -> list[str]:
    cells: dict[str, Cell] = {
        "from": "from_state",
        "to": "to_state",
        "attempt": "delivery_attempt",
        "client": "client_id",
    }
    return table_of(steps, "at group event from to attempt client reason", "no history", **cells)


def explain(arguments: Namespace) -> int:
    """One sentence, then the evidence for it."""
    with Admin(client_config(arguments)) as admin:
        found = in_any_case(lambda each: admin.why(each, arguments.group, arguments.topic), arguments.message_id)
    document = {**picked(found, "sentence evidence"), "history": history_document(found.history)}
    lines = [found.sentence, "", *fields(found.evidence.items()), "", *history_lines(found.history)]
    return report(arguments, document, lines)


def list_scheduled(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        found = list(islice(admin.scheduled(arguments.topic), arguments.max))
    lines = table_of(
        found,
        "message_id kind due checks tag keys body",
        "no scheduled messages",
        message_id="message.message_id",
        due="due_at",
        checks=lambda each: each.checks if each.kind == "HALF" else "",
        tag="message.tag",
        keys=lambda each: _keys(each.message),
        body=lambda each: excerpt(each.message),
    )
    return report(arguments, list(map(_document, found)), lines)


def cancel(arguments: Namespace) -> int:
    """By id or by key; exit code 4 if no such message is scheduled."""
    if bool(arguments.message_id) == (arguments.key is not None):
        raise UsageError("give the ids of the messages, or --key KEY for all messages with that key")
    with Admin(client_config(arguments)) as admin:
        if not confirm(arguments, f"removes {_to_cancel(arguments, admin)} of {arguments.topic}"):
            return REFUSED
        cancelled = admin.cancel_scheduled(arguments.topic, arguments.message_id, key=arguments.key)
    if not cancelled:
        named = ", ".join(arguments.message_id) or f"with key {arguments.key}"
        raise NotFound(f"no such message is scheduled in {arguments.topic}: {named}")
    lines = [f"cancelled {each}" for each in cancelled]
    return report(arguments, {"topic": arguments.topic, "cancelled": cancelled}, lines)


def _to_cancel(arguments: Namespace, admin: Admin) -> str:
    if arguments.yes or arguments.key is None:
        return counted(len(arguments.message_id), "scheduled message")
    with_key = (each for each in admin.scheduled(arguments.topic) if arguments.key in each.message.keys)
    count = sum(1 for _ in islice(with_key, CANCELLED_MAX))
    return f"{counted(count, 'scheduled message')} with key {arguments.key}"


def _document(each: ScheduledMessage) -> dict[str, Any]:
    return {
        **message_document(each.message),
        # It is in no queue yet.
        "queue_id": None,
        "queue_offset": None,
        **picked(each, "kind due_at checks transaction_id"),
    }
