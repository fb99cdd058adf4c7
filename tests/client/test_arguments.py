"""Wrong arguments: each refusal names the argument, what was given, and what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from popclient import (
    ClientConfig,
    ConsumeResult,
    FilterExpression,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    QueuePushConsumer,
    SimpleConsumer,
    Tls,
)
from popclient._session.convert import outbound
from popclient.admin import Admin

HALF = "a\ud83d"  # of a surrogate pair


def sent(**fields: Any) -> None:
    outbound(Message(**{"topic": "t", "body": "x"} | fields), "")


@pytest.mark.parametrize(
    ("field", "given", "named", "wanted"),
    [
        ("topic", None, "topic is None", "a str"),
        ("topic", 5, "topic is 5", "a str"),
        ("body", None, "body is None", "bytes or str"),
        ("body", {"a": 1}, "body is {'a': 1}", "bytes or str"),
        ("body", bytearray(b"x"), r"body is bytearray(b'x')", "bytes or str"),
        ("tag", 5, "tag is 5", "a str"),
        ("keys", 5, "keys is 5", "a str, or several"),
        ("keys", b"ab", "keys is b'ab'", "a str, or several"),
        ("keys", ["a", 5], "keys[1] is 5", "a str"),
        ("properties", 5, "properties is 5", "a mapping"),
        ("properties", {5: "a"}, "property 5", "str"),
        ("properties", {"a": 5}, "property 'a' is 5", "a str"),
        ("message_group", 7, "message_group is 7", "a str"),
        ("lite_topic", 7, "lite_topic is 7", "a str"),
        ("trace_context", 7, "trace_context is 7", "a str"),
        ("message_id", 7, "message_id is 7", "a str"),
        ("idempotency_key", 7, "idempotency_key is 7", "a str"),
        ("priority", "1", "priority is '1'", "a whole number, from 0 to 32767"),
        ("priority", 1.5, "priority is 1.5", "a whole number"),
        ("priority", True, "priority is True", "a whole number"),
        ("delivery_timestamp", "2030-01-01", "delivery_timestamp is '2030-01-01'", "an aware datetime"),
        ("delay", "10s", "delay is '10s'", "seconds or a timedelta"),
    ],
)
def test_a_field_of_a_wrong_type(field: str, given: object, named: str, wanted: str) -> None:
    with pytest.raises(TypeError) as refusal:
        sent(**{field: given})
    assert named in str(refusal.value)
    assert wanted in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "given", "named"),
    [
        ("topic", HALF, "topic is"),
        ("body", HALF, "body is"),
        ("body", "x" * 100 + HALF, "body is 'xxx"),
        ("tag", HALF, "tag is"),
        ("keys", ["b", HALF], "keys[1] is"),
        ("properties", {"n": HALF}, "property 'n' is"),
        ("properties", {HALF: "n"}, "the name of a property is"),
        ("message_group", HALF, "message_group is"),
        ("message_id", HALF, "message_id is"),
        ("idempotency_key", HALF, "idempotency_key is"),
    ],
)
def test_half_of_a_surrogate_pair_in_a_field(field: str, given: object, named: str) -> None:
    with pytest.raises(ValueError, match="half of a surrogate pair") as refusal:
        sent(**{field: given})
    assert not isinstance(refusal.value, UnicodeError)
    assert named in str(refusal.value)
    assert len(str(refusal.value)) < 300


def done(_: object) -> ConsumeResult:
    return ConsumeResult.SUCCESS


WRONG: list[tuple[Callable[[Any], object], object, str]] = [
    (ClientConfig, 5, "endpoints is of type int; it must be a str"),
    (ClientConfig, ["a:1"], "endpoints is of type list"),
    (ClientConfig, HALF, "endpoints is"),
    (Producer, b"a:1", "endpoints is of type bytes"),
    (Admin, 5, "endpoints is of type int"),
    (lambda given: ClientConfig(namespace=given), 5, "namespace is of type int"),
    (lambda given: ClientConfig(access_key="k", access_secret=given), 1234, "access_secret is of type int"),
    (lambda given: ClientConfig(session_token=given), b"x", "session_token is of type bytes"),
    (lambda given: ClientConfig(request_timeout=given), "3", "request_timeout is '3'"),
    (lambda given: ClientConfig(on_disconnect=given), 5, "on_disconnect is 5"),
    (lambda given: SimpleConsumer("a", "g", "t", on_reconnect=given), 5, "on_reconnect is 5"),
    (lambda given: Tls(ca=given), 5, "ca is of type int"),
    (lambda given: Tls(insecure=given), "no", "insecure is 'no'"),
    (lambda given: Tls(server_name=given), 5, "server_name is 5"),
    (lambda given: Producer("a", topics=given), 5, "topics is 5"),
    (lambda given: Producer("a", topics=given), [5], "a topic is 5"),
    (lambda given: Producer("a", checker=given), 5, "checker is 5"),
    (lambda given: SimpleConsumer("a", given, "t"), 5, "group is 5"),
    (lambda given: SimpleConsumer("a", given, "t"), HALF, "group is"),
    (lambda given: SimpleConsumer("a", "g", given), HALF, "a topic is"),
    (lambda given: SimpleConsumer("a", "g", {"t": given}), HALF, "expression is"),
    (lambda given: PushConsumer("a", given, "t", done), HALF, "group is"),
    (lambda given: PushConsumer("a", "g", "t", given), 5, "listener is 5"),
    (lambda given: PullConsumer("a", "g", filters=given), 5, "filters is 5"),
    (lambda given: PullConsumer("a", "g", filters={"t": given}), 0, "expression is 0"),
    (lambda given: QueuePushConsumer("a", "g", "t", given), 5, "listener is 5"),
    (FilterExpression.of, 0, "expression is 0"),
    (lambda given: Admin("a", connect_timeout=given), "1", "connect_timeout is '1'"),
]


@pytest.mark.parametrize(("make", "given", "named"), WRONG)
def test_a_wrong_argument_of_a_client(make: Callable[[Any], object], given: object, named: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refusal:
        make(given)
    assert named in str(refusal.value)
    assert "1234" not in str(refusal.value)  # a secret


@pytest.mark.parametrize(
    "condition",
    [
        "amount >= 37",
        "amount>=37",
        "a = 5",
        "kind='x'",
        "a is not null",
        "a IN ('x')",
        "a LIKE 'x%'",
        "a BETWEEN 1 AND 2",
        "NOT a <> b",
    ],
)
def test_a_condition_is_no_tag(condition: str) -> None:
    """It would select nothing, and all messages that pass it would count as done."""
    with pytest.raises(ValueError, match=r"reads as a SQL condition; write FilterExpression\.sql\("):
        SimpleConsumer("a", "g", {"t": condition})
    assert FilterExpression(condition).expression == condition


@pytest.mark.parametrize("tags", ["*", "a || b", "v=1", "made in china", "between", "is this like that", "a->b"])
def test_tags_are_tags(tags: str) -> None:
    assert FilterExpression.of(tags).expression == tags
