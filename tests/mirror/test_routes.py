"""How messages travel, and in which rounds: decided without a server."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popclient.admin.facts import ExponentialBackoff
from popclient.mirror.outgoing import BYTES_MAX, in_requests
from popclient.mirror.records import NAME_MAX, record_name
from popclient.mirror.routes import GroupFacts, Handover, TopicFacts, Way, differences, handovers
from popclient.mirror.side import in_rounds

TOPIC, GROUP, MIXED = Way


@pytest.mark.parametrize(
    ("accepts", "groups", "ways"),
    [
        (("NORMAL",), (), [(None, TOPIC)]),
        (("NORMAL",), ("a",), [("a", GROUP)]),
        (("NORMAL",), ("a", "b"), [("a", GROUP), ("b", GROUP)]),
        (("DELAY",), ("a",), [("a", GROUP)]),
        (("TRANSACTION",), ("a", "b"), [("a", GROUP), ("b", GROUP)]),
        (("FIFO",), (), [(None, TOPIC)]),
        (("FIFO",), ("a",), [("a", TOPIC)]),
        (("NORMAL", "FIFO", "DELAY", "TRANSACTION"), ("a",), [("a", MIXED)]),
        (("NORMAL", "FIFO", "DELAY", "TRANSACTION"), ("a", "b"), [("a", GROUP), ("b", GROUP)]),
        (("MIXED",), ("a",), [("a", MIXED)]),
    ],
)
def test_order_needs_the_topic_and_one_group_alone_does_not(
    accepts: tuple[str, ...], groups: tuple[str, ...], ways: list[tuple[str | None, Way]]
) -> None:
    expected = [Handover("t", group, way) for group, way in ways]
    assert handovers(TopicFacts("t", accepts, 8), groups) == expected


@pytest.mark.parametrize(
    ("accepts", "groups", "said"),
    [(("FIFO",), ("a", "b"), "each of the 2 groups (a, b) would get"), (("LITE",), ("a",), "has lite topics")],
)
def test_what_cannot_be_handed_over_is_said(accepts: tuple[str, ...], groups: tuple[str, ...], said: str) -> None:
    refusal = handovers(TopicFacts("t", accepts, 8), groups)
    assert isinstance(refusal, str)
    assert said in refusal


def test_other_ladders_are_named() -> None:
    here = GroupFacts("g", 5, (timedelta(seconds=1), timedelta(seconds=5)), in_order=True)
    assert differences(here, here) == []
    there = GroupFacts("g", 17, (), ExponentialBackoff(), in_order=False)
    attempts, ladder, order = differences(here, there)
    assert attempts == "17 attempts, not 5"
    assert ladder == "it retries after 0:00:05 × 2 up to 2:00:00, not after 1 s, 5 s"
    assert order == "its consumers do not read message groups in order"


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=40))
def test_rounds_keep_each_message_group_in_order(groups: list[str]) -> None:
    rounds = in_rounds(groups)
    assert sorted(number for each in rounds for number in each) == list(range(len(groups)))
    for each in rounds:
        named = [groups[number] for number in each if groups[number]]
        assert len(named) == len(set(named))
    for group in {"a", "b", "c"}:
        sent = [number for each in rounds for number in each if groups[number] == group]
        assert sent == sorted(sent)


@given(st.lists(st.integers(1, BYTES_MAX + 5), max_size=30), st.integers(1, 10))
def test_requests_are_small_and_keep_the_order(sizes: list[int], count_max: int) -> None:
    parts = list(in_requests(range(len(sizes)), sizes, count_max))
    assert [each for part in parts for each in part] == list(range(len(sizes)))
    for part in parts:
        assert 1 <= len(part) <= count_max
        assert len(part) == 1 or sum(sizes[each] for each in part) <= BYTES_MAX


@given(st.text(max_size=80), st.one_of(st.none(), st.text(max_size=80)))
def test_names_of_records_are_names(topic: str, group: str | None) -> None:
    name = record_name("127.0.0.1:1", "127.0.0.1:2", topic, group)
    assert len(name) <= NAME_MAX
    assert name.replace("-", "a").replace("_", "a").isalnum()
    assert name.isascii()
    assert name != record_name("127.0.0.1:1", "127.0.0.1:3", topic, group)
