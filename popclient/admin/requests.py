"""The arguments of the administration, as parts of popmq.v1.Admin's requests."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from popclient._arguments import as_timedelta
from popclient._session import convert
from popclient.admin.facts import ExponentialBackoff
from popclient.admin.redrive_facts import DeadLetterSelection, RedriveOrder, Repair
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb

PAGE: Final = 100  # how many entries of a list one request asks for


def new_secret() -> str:
    """256 random bits as 43 characters, which headers and shells take unquoted."""
    return secrets.token_urlsafe(32)


def new_plan_id() -> str:
    """`20261120T140211-9f3a5c`: by this machine's clock, to the second, and 24 random bits."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"


def order_request(order: RedriveOrder) -> wire.RedriveOrder:
    return wire.RedriveOrder(
        dead_letter_id=order.dead_letter_id,
        repair=None if order.repair is None else _repair_request(order.repair),
        reason=order.reason,
    )


def _repair_request(repair: Repair) -> wire.Repair:
    return wire.Repair(
        body=repair.body.encode() if isinstance(repair.body, str) else repair.body,
        tag=repair.tag,
        keys=None if repair.keys is None else wire.Words(words=repair.keys),
        properties=None if repair.properties is None else wire.Pairs(pairs=repair.properties),
    )


def selection_request(of: str | DeadLetterSelection, namespace: str) -> wire.DeadLetterSelection:
    selection = DeadLetterSelection.of(of)
    written = wire.DeadLetterSelection(
        group=convert.resource(selection.group, namespace),
        topic=None if selection.topic is None else convert.resource(selection.topic, namespace),
        where=selection.where,
        ids=selection.ids,
        redriven_too=selection.redriven_too,
    )
    _set_time(written.dead_from, selection.dead_from)
    _set_time(written.dead_until, selection.dead_until)
    return written


def _set_time(written: Any, moment: datetime | None) -> None:
    if moment is not None:
        written.FromDatetime(moment.astimezone(UTC))


def message_types(names: str | Iterable[str]) -> list[pb.MessageType.ValueType]:
    known = [name for name, number in pb.MessageType.items() if number]
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in known:
            raise ValueError(f"message type {name!r} is not known; choose from {', '.join(known)}")
    return [pb.MessageType.Value(name) for name in wanted]


def set_intervals(request: Any, intervals: Iterable[float | timedelta] | ExponentialBackoff) -> None:
    if isinstance(intervals, ExponentialBackoff):
        backoff = request.exponential_retry
        backoff.initial.FromTimedelta(as_timedelta("initial", intervals.initial))
        backoff.max.FromTimedelta(as_timedelta("longest", intervals.longest))
        backoff.multiplier = intervals.multiplier
        return
    for interval in intervals:
        request.retry_intervals.add().FromTimedelta(as_timedelta("retry interval", interval))


def set_interval(request: Any, interval: float | timedelta | None) -> None:
    if interval is not None:
        request.fifo_retry_interval.FromTimedelta(as_timedelta("retry interval in order", interval))


def set_expiry(request: Any, expiry: float | timedelta | None) -> None:
    if expiry is not None:
        request.lite_expiry.FromTimedelta(as_timedelta("lite expiry", expiry))
