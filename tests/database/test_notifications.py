"""What servers tell each other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popserver.database import notifications
from popserver.database.notifications import EVERYTHING, GROUP, SERVERS, TOPIC, Invalidation, Notification

NAMES = {Invalidation(TOPIC, "north|%", "%DLQ%a-b_c"), Invalidation(GROUP, "", "g")}


def test_a_notice_arrives_as_it_was_said() -> None:
    said = notifications.encode("a1", {7, 5}, NAMES, {SERVERS})
    assert notifications.decode(said) == Notification("a1", frozenset({5, 7}), frozenset(NAMES), frozenset({SERVERS}))


def test_nothing_to_say_is_not_said() -> None:
    assert notifications.encode("a1", (), (), ()) == ""


def test_what_would_be_too_long_is_everything() -> None:
    said = notifications.encode("a1", range(10**6, 10**6 + 2_000), (), {SERVERS})
    assert notifications.decode(said) == Notification("a1", signals=frozenset({EVERYTHING, SERVERS}))


def test_a_notice_can_stand_in_a_statement() -> None:
    assert not set(notifications.encode("a1", {1}, NAMES, {SERVERS})) & set("'\\")


@pytest.mark.parametrize("word", ["due", "pending"])
def test_a_users_transaction_says_one_word(word: str) -> None:
    assert notifications.decode(word) == Notification("", signals=frozenset({word}))


@pytest.mark.parametrize(
    "rubbish",
    [
        "",
        "hello",
        "{}",
        "[]",
        "[1,2]",
        '["a",5,[],[]]',
        '["a",[],[[1]],[]]',
        "[" * 5_000,
        '["x",[Infinity],[],[]]',
        '["x",[1.5],[],[]]',
        '["x",["1"],[],[]]',
        '["x",[true],[],[]]',
        '["x",[],[["topic","",7]],[]]',
        '["x",[],[],[7]]',
        '["x",[],[],[["due"]]]',
        "[7,[],[],[]]",
    ],
)
def test_rubbish_is_everything(rubbish: str) -> None:
    assert notifications.decode(rubbish) == Notification("", signals=frozenset({EVERYTHING}))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.one_of(_json, st.lists(_json, min_size=4, max_size=4)).map(json.dumps) | st.text(max_size=60))
def test_no_payload_breaks_the_reader(payload: str) -> None:
    notice = notifications.decode(payload)
    assert all(type(each) is int for each in notice.ready_topics)
    assert all(type(each) is str for each in (notice.sender, *notice.signals))
    assert all(type(text) is str for each in notice.invalidations for text in each)
