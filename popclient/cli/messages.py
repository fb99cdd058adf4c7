"""`popmq message …`"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from popclient._sync.producer import Producer
from popclient._sync.simple_consumer import SimpleConsumer
from popclient.admin import Admin, MessageFacts
from popclient.cli import UsageError
from popclient.cli.arguments import client_config
from popclient.cli.history import history_document, history_lines
from popclient.cli.ids import in_any_case
from popclient.cli.output import excerpt, fields, local, message_document, message_fields, say, table, utc, whole
from popclient.errors import PopError
from popclient.message import FilterExpression, Message, MessageView, SendReceipt

SENT_TOGETHER = 1_000


def send(arguments: Namespace) -> int:
    """Send the message `--count` times; stops at the first refusal, saying how many are stored."""
    message = Message(
        arguments.topic,
        sys.stdin.buffer.read() if arguments.body == "-" else os.fsencode(arguments.body),
        tag=arguments.tag,
        keys=arguments.key,
        properties=dict(arguments.property),
        delay=arguments.delay,
    )
    # The topic is looked up first: where nobody listens, or it is missing, nothing is tried again and again.
    with Producer(client_config(arguments), arguments.topic) as producer:
        receipts = list(_sent(producer, message, arguments.count))
    document = {
        "topic": arguments.topic,
        "sent": len(receipts),
        "messages": [{"message_id": each.message_id, "queue_offset": each.offset} for each in receipts],
    }
    if len(receipts) == 1:
        lines = [f"sent {receipts[0].message_id} to {arguments.topic} at offset {receipts[0].offset}"]
    else:
        lines = [f"sent {len(receipts)} messages to {arguments.topic}"]
    return say(arguments, document, lines)


def receive(arguments: Namespace) -> int:
    """Print what is received, then ack it if asked to: what nobody could read is not lost."""
    wanted = FilterExpression(arguments.filter) if arguments.sql is None else FilterExpression.sql(arguments.sql)
    topics = {arguments.topic: wanted}
    with SimpleConsumer(client_config(arguments), arguments.group, topics) as consumer:
        received = consumer.receive(arguments.max, arguments.invisible, arguments.wait)
        status = say(
            arguments,
            [_held_document(each) for each in received],
            _held_lines(received, with_handles=not arguments.ack),
        )
        sys.stdout.flush()
        if arguments.ack and received:
            consumer.ack(received)
    return status


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
    columns = ["message id", "queue", "offset", "stored", "tag", "keys", "body"]
    rows = [
        (
            each.message_id,
            each.queue_id,
            each.queue_offset,
            local(each.store_timestamp),
            each.tag,
            ",".join(each.keys),
            excerpt(each),
        )
        for each in found
    ]
    return say(arguments, [message_document(each) for each in found], table(columns, rows, "no messages"))


def get(arguments: Namespace) -> int:
    with Admin(client_config(arguments)) as admin:
        facts = in_any_case(lambda each: admin.get_message(each, arguments.topic), arguments.message_id)
    return say(arguments, _facts_document(facts), _facts_lines(facts))


def _sent(producer: Producer, message: Message, count: int) -> Iterator[SendReceipt]:
    for start in range(0, count, SENT_TOGETHER):
        results = producer.send_many([message] * min(SENT_TOGETHER, count - start))
        if results.failures:
            raise _with_count(results.failures[0][1], start + len(results.receipts), count)
        yield from results.receipts


def _with_count(failure: PopError, stored: int, count: int) -> PopError:
    """The failure, saying how many were stored in spite of it."""
    if count > 1:
        failure.sentence += f" ({stored} of {count} messages were stored)"
    return failure


def _held_document(message: MessageView) -> dict[str, Any]:
    return {
        **message_document(message),
        "delivery_attempt": message.delivery_attempt,
        "receipt_handle": message.receipt_handle,
        "invisible_until": utc(message.invisible_until),
    }


def _held_lines(received: Sequence[MessageView], *, with_handles: bool) -> list[str]:
    columns = ["message id", "attempt", "stored", "tag", "keys", "body"]
    rows: list[tuple[Any, ...]] = [
        (
            each.message_id,
            each.delivery_attempt,
            local(each.store_timestamp),
            each.tag,
            ",".join(each.keys),
            excerpt(each),
        )
        for each in received
    ]
    if with_handles:
        columns.append("receipt handle")
        rows = [(*row, each.receipt_handle) for row, each in zip(rows, received, strict=True)]
    return table(columns, rows, "no messages")


def _facts_document(facts: MessageFacts) -> dict[str, Any]:
    states = [
        {
            "group": each.group,
            "state": each.state,
            "delivery_attempt": each.delivery_attempt,
            "visible_at": utc(each.visible_at),
            "client_id": each.client_id,
        }
        for each in facts.states
    ]
    return {**message_document(facts.message), "states": states, "history": history_document(facts.history)}


def _facts_lines(facts: MessageFacts) -> list[str]:
    states = [
        (each.group, each.state, each.delivery_attempt or "", local(each.visible_at), each.client_id)
        for each in facts.states
    ]
    return [
        *fields(message_fields(facts.message)),
        "",
        *table(["group", "state", "attempt", "visible at", "client"], states, "no group has met its topic"),
        "",
        *history_lines(facts.history),
        "",
        *whole(facts.message),
    ]
