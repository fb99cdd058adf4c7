"""Faults planted in the product, one at a time; each has to be found by its target."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from unittest import mock

from uvicorn.protocols.http.h11_impl import H11Protocol

from popclient import offset_file
from popconsole import desk, visits
from popport.connections import HttpConnection
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import flow, rules
from popserver.database import notifications
from popserver.filters import conditions, grammar, sql
from popserver.filters.conditions import Operand
from popserver.http2 import frames
from popserver.model import handles
from popserver.model.errors import BadRequest, ClientIdRequired
from popserver.model.handles import Receipt
from popserver.producing import rpc as producing
from popserver.pulling import flow as pulling
from popserver.transport import convert, status
from popserver.transport.call import Call
from popserver.transport.calls import Caller
from popserver.web import readers
from proof.fuzz import handles as handles_target


@dataclass(frozen=True)
class FuzzFault:
    """What is put in the place of `owner.attribute`; it must be found within so many inputs of seed 1."""

    target: str
    owner: Any
    attribute: str
    wrong: Any
    within: int = 4_000

    @contextmanager
    def planted(self) -> Iterator[None]:
        # Filters are cached by their text, with the right meaning or the wrong one.
        sql.parse.results.clear()
        try:
            with mock.patch.object(self.owner, self.attribute, self.wrong):
                yield
        finally:
            sql.parse.results.clear()


def _negated_unknown(at: int, operand: Operand) -> conditions.Condition:
    said = conditions.as_condition(operand).evaluate
    return conditions.Condition(at, lambda properties: not said(properties), operand.depth + 1)


def _unchecked_recall(handle: str) -> handles.RecallHandle:
    found = base64.urlsafe_b64decode(handle).decode().split(" ", 4)
    return handles.RecallHandle(found[1], found[2], int(found[3]), found[4])


def _receipt_of_any_message(handle: str, message_id: str = "") -> Receipt:
    return _DECODE_RECEIPT(handle)


def _lenient_receipt(handle: str, message_id: str = "") -> Receipt:
    return _DECODE_RECEIPT(handle.strip().replace("-", "+"), message_id)


def _trusting(payload: str) -> notifications.Notification:
    sender, ready, changed, signals, _lite = json.loads(payload)
    invalidations = frozenset(notifications.Invalidation(*each) for each in changed)
    return notifications.Notification(sender, frozenset(ready), invalidations, frozenset(signals))


def _strict_date(date_time: str) -> int:
    return int(datetime.fromisoformat(date_time).timestamp())


def _strict_duration_ms(duration: convert.Moment) -> int:
    if duration.seconds < 0:
        raise OverflowError("the duration is negative")
    return duration.seconds * 1_000


def _each_field_with_each_other(header: str) -> rules.Signature | None:
    fields = header.split(",")
    if any(fields.count(each) > len(fields) for each in fields):
        return None
    return _READ_AUTHORIZATION(header)


def _remembered(handle: str, message_id: str = "") -> Receipt:
    _KEPT.append(bytes(59))  # 100 with what Python needs for it and for its place in the list
    return _DECODE_RECEIPT(handle, message_id)


def _remembered_caller(caller: Caller, call: Call) -> None:
    _KEPT.append(bytes(1_959))
    _NEW_CALLER(caller, call)


async def _refused_afterwards(
    methods: producing.ProducerMethods, request: wire.SendMessageRequest, caller: Caller
) -> wire.SendMessageResponse:
    await _SEND(methods, request, caller)
    raise BadRequest("the message is stored")


_SEND = producing.ProducerMethods.send_message
_DECODE_RECEIPT: Callable[..., Receipt] = handles.decode_receipt

_READ_AUTHORIZATION = rules.read_authorization
_NEW_CALLER = Caller.__init__
_KEPT: list[bytes] = []

# Leaks show when the same inputs come again and again.
LEAKS: Mapping[str, FuzzFault] = {
    "each handle leaves 100 bytes": FuzzFault("handles", handles_target, "decode_receipt", _remembered),
    "each call leaves 2,000 bytes": FuzzFault("calls", Caller, "__init__", _remembered_caller),
}
FAULTS: Mapping[str, FuzzFault] = {
    "NOT of unknown is true": FuzzFault("filters", conditions, "negated", _negated_unknown),
    "any depth of nesting is parsed": FuzzFault("filters", grammar, "_check_depth", lambda _at, _levels: None),
    "numbers are ordered as texts": FuzzFault(
        "filters", conditions, "_ORDERS", {**conditions._ORDERS, "<": lambda one, other: str(one) < str(other)}
    ),
    "BETWEEN leaves its upper limit out": FuzzFault(
        "filters", conditions, "_ORDERS", {**conditions._ORDERS, "<=": lambda one, other: one < other}
    ),
    "STARTSWITH finds text anywhere": FuzzFault(
        "filters", conditions, "_TEXT_TESTS", {**conditions._TEXT_TESTS, "STARTSWITH": str.__contains__}
    ),
    "a handle's message is not compared": FuzzFault(
        "handles", handles_target, "decode_receipt", _receipt_of_any_message
    ),
    "a handle is repaired": FuzzFault("handles", handles_target, "decode_receipt", _lenient_receipt),
    "a recall handle is not checked": FuzzFault("handles", handles_target, "decode_recall", _unchecked_recall),
    "a transaction id is compared in part": FuzzFault(
        "handles", handles_target, "is_transaction_of", lambda text, *_: text[:16] == "0001020304050607"
    ),
    "an offset may be negative": FuzzFault("offsets", offset_file, "_offset", lambda _key, _queue, offset: offset),
    "a queue stands twice": FuzzFault("offsets", offset_file, "_without_doubles", dict),
    "a queue stands there as 1 and as 01": FuzzFault(
        "offsets", offset_file, "_once", lambda _key, _queue, _found: None
    ),
    "a queue id may be any text": FuzzFault("offsets", offset_file, "_queue_id", lambda _key, queue: int(queue)),
    "a notification without a field raises": FuzzFault("notifications", notifications, "decode", _trusting),
    "the kinds of a notification's fields are not looked at": FuzzFault(
        "notifications", notifications, "_are", lambda _kind, _values: True
    ),
    "an illegal topic is refused after its group is created": FuzzFault(
        "calls", pulling, "check_topic", lambda _: None
    ),
    "a sentence repeats a name of any length": FuzzFault("calls", status, "_SENTENCE_LENGTH_MAX", 1 << 30),
    "a refusal has the code of a failure": FuzzFault(
        "calls", status, "CODES", {**status.CODES, ClientIdRequired: pb.INTERNAL_SERVER_ERROR}
    ),
    "a negative duration raises": FuzzFault("calls", convert, "duration_ms", _strict_duration_ms),
    "a refused send is stored": FuzzFault("calls", producing.ProducerMethods, "send_message", _refused_afterwards),
    "a refusal after a HEAD raises": FuzzFault(
        "web", HttpConnection, "send_400_response", H11Protocol.send_400_response
    ),
    "a client that leaves before its form is a failure": FuzzFault("web", visits, "ClientDisconnect", KeyError),
    "a page fails without a header": FuzzFault(
        "web", readers.Readers, "may_read", lambda _, request: request.headers["authorization"] != ""
    ),
    "frames of any length are taken": FuzzFault("frames", frames, "check", lambda *_: None),
    "a form needs no token": FuzzFault("web", desk, "check", lambda _visit, acts: None),
    "a date that cannot be read raises": FuzzFault("authorization", flow, "_epoch_ms", _strict_date),
    "each field of a header is compared with each other": FuzzFault(
        "authorization", rules, "read_authorization", _each_field_with_each_other
    ),
    "a signature is compared in part": FuzzFault(
        "authorization", rules, "is_signed", lambda _secret, _date, digest: digest[:1] in "4f"
    ),
}
