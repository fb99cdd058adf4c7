"""What servers tell each other."""

from __future__ import annotations

import pytest

from popserver.store import notices
from popserver.store.notices import EVERYTHING, GROUP, SERVERS, TOPIC, Notice, Outdated

NAMES = {Outdated(TOPIC, "north|%", "%DLQ%a-b_c"), Outdated(GROUP, "", "g")}


def test_a_notice_arrives_as_it_was_said() -> None:
    said = notices.encode("a1", {7, 5}, NAMES, {SERVERS})
    assert notices.decode(said) == Notice("a1", frozenset({5, 7}), frozenset(NAMES), frozenset({SERVERS}))


def test_nothing_to_say_is_not_said() -> None:
    assert notices.encode("a1", (), (), ()) == ""


def test_what_would_be_too_long_is_everything() -> None:
    said = notices.encode("a1", range(10**6, 10**6 + 2_000), (), {SERVERS})
    assert notices.decode(said) == Notice("a1", words=frozenset({EVERYTHING, SERVERS}))


def test_a_notice_can_stand_in_a_statement() -> None:
    assert not set(notices.encode("a1", {1}, NAMES, {SERVERS})) & set("'\\")


@pytest.mark.parametrize("word", ["due", "pending"])
def test_a_users_transaction_says_one_word(word: str) -> None:
    assert notices.decode(word) == Notice("", words=frozenset({word}))


@pytest.mark.parametrize(
    "rubbish", ["", "hello", "{}", "[]", "[1,2]", '["a",5,[],[]]', '["a",[],[[1]],[]]', "[" * 5_000]
)
def test_rubbish_is_everything(rubbish: str) -> None:
    assert notices.decode(rubbish) == Notice("", words=frozenset({EVERYTHING}))
