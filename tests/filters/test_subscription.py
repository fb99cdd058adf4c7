"""Subscriptions as people read them, and how two of them differ; and what the cost of a filter is made of."""

from __future__ import annotations

import pytest

from popserver.filters import SqlFilter, TagFilter, sql, tags
from popserver.filters.subscription import (
    ClientKind,
    DeclaredSubscription,
    Role,
    Subscription,
    TopicFilter,
    difference,
    shown_filter,
    subscription,
    topic_filters,
)
from popserver.model.group import Model
from popserver.model.names import Resource

A, B, C = (Resource("", name) for name in "abc")


def test_kinds_of_clients_have_the_names_that_administrators_read() -> None:
    assert [*ClientKind] == ["PUSH", "SIMPLE", "PULL", "LITE_PUSH", "LITE_SIMPLE"]


# Parsed by the tests, not by the import of this file: then a mutant of a parser need not be imported to be judged.
def by_tags() -> TagFilter:
    return tags.parse("x || y")


def by_price() -> SqlFilter:
    return sql.parse(" price > 5 ")


def test_filters_are_text_sorted_by_topic() -> None:
    expected = (TopicFilter(A, "SQL", "price > 5"), TopicFilter(B, "TAG", "x || y"), TopicFilter(C, "TAG", "*"))
    assert topic_filters([(C, tags.parse("*")), (B, by_tags()), (A, by_price())]) == expected
    assert shown_filter(A, by_price()) == expected[0]
    assert (
        str(subscription([(B, by_tags()), (A, by_price())]))
        == "topic 'a' by SQL 'price > 5', topic 'b' by TAG 'x || y'"
    )
    assert str(subscription([])) == "nothing"


def test_the_first_64_topics_are_kept() -> None:
    many = [(Resource("", f"t{at:03}"), by_tags()) for at in range(66)]
    kept = subscription(many[:64])
    assert (len(kept.filters), kept.more) == (64, 0)
    cut = subscription(many)
    assert (cut.filters, cut.more) == (kept.filters, 2)
    assert str(cut).endswith(", 2 more topics")


def test_a_long_expression_is_shortened_with_a_checksum() -> None:
    longest = "p = '" + "x" * 250 + "'"
    assert len(longest) == 256
    assert shown_filter(A, sql.parse(longest)).expression == longest
    one, other = (shown_filter(A, sql.parse(f"p = '{'x' * 251}{end}'")) for end in "yz")
    assert one.expression.startswith(f"p = '{'x' * 251}… (258 characters, ")
    assert one != other


def test_how_two_subscriptions_differ() -> None:
    one, other = (
        subscription([(A, by_price()), (B, by_tags())]),
        subscription([(A, by_tags()), (B, by_tags()), (C, by_tags())]),
    )
    assert difference(one, other) == (
        "topic 'a' by SQL 'price > 5', nothing of topic 'c'",
        "topic 'a' by TAG 'x || y', topic 'c' by TAG 'x || y'",
    )
    assert difference(other, one) == difference(one, other)[::-1]
    assert difference(Subscription((), 1), Subscription((), 2)) == ("1 more topics", "2 more topics")


@pytest.mark.parametrize("kind", ClientKind)
def test_what_a_consumer_declares(kind: ClientKind) -> None:
    role = Role(A, kind, subscription([(B, by_tags())]), {B: by_tags()})
    assert role.subscribes_to(B)
    assert not role.subscribes_to(C)
    assert role.filter_of(B) == by_tags()
    assert role.shares
    assert Role(A, kind, subscription([])).shares == (kind is not ClientKind.PULL)
    assert kind.is_lite == kind.name.startswith("LITE")
    assert kind.value == kind.name
    assert role.declared == DeclaredSubscription(subscription([(B, by_tags())]), Model.CLUSTERING)
    assert role.subscription_version == 0, "it did not say when"


def test_a_role_without_filters_subscribes_to_nothing() -> None:
    role = Role(A, ClientKind.PULL, Subscription(()))
    assert role.filter_of(B) is None
    assert role.subscription.more == 0


def test_a_filter_finds_the_keys_of_its_messages() -> None:
    messages = [(1, "x", {"price": "6"}), (2, "x", {"price": "5"}), (3, None, {"price": "six"}), (4, None, {})]
    assert by_price().keys_of(messages) == [1]
    assert sql.parse("TAGS = 'x'").keys_of(messages) == [1, 2]


def test_units_of_cost() -> None:
    """20 for a message, 1 for each operand and operator, 1 for each 16 characters of each read of a property."""
    assert by_price().cost(None, {"price": "9" * 15}) == 20 + 3
    assert by_price().cost(None, {"price": "9" * 33}) == 20 + 3 + 2
    twice = sql.parse("a = 'x' OR a = 'y'")
    assert twice.cost(None, {"a": "9" * 31}) == 20 + 7 + 3
    assert twice.cost_of_all(2, 31) == 2 * (20 + 7) + 3


def test_the_memory_that_a_sql_filter_is_said_to_need() -> None:
    assert sql.size_of("") == 800
    assert by_price().memory == sql.size_of(" price > 5 ") == 800 + 11 * 64


def test_a_filter_costs_more_for_each_message_and_for_long_values() -> None:
    assert by_price().cost(None, {}) == by_price().cost_of_all(1, 0)
    assert by_price().cost_of_all(3, 0) == 3 * by_price().cost_of_all(1, 0)
    assert sql.parse("TRUE").cost_of_all(2, 1_600) == 2 * 21, "it reads no property"
    long = "9" * 100_000
    assert by_price().cost(None, {"price": long}) == by_price().cost_of_all(1, len(long)) > by_price().cost(None, {})
    assert by_price().cost(None, {"other": long}) == by_price().cost(long, {}) == by_price().cost(None, {})
