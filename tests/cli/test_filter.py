"""popmq filter …, and receiving by a SQL filter."""

from __future__ import annotations

import re

import pytest

from popserver.administration import find
from tests.support.shell import Shell


@pytest.fixture(autouse=True)
def furnished(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--queues", "1")
    for number in ("1", "5", "x"):
        shell.ok("message", "send", "flights", "hello", "--property", f"a={number}", "--tag", "UA")


def test_what_matches_and_what_cannot_be_compared(shell: Shell) -> None:
    said = shell.ok("filter", "test", "a > 3 AND TAGS = 'UA'", "--topic", "flights")
    assert said.lines[:3] == [
        "1 of 3 messages match (33.3%)",
        "1 cannot be compared: a property has not the type that the expression needs",
        "",
    ]
    assert re.split(r"\s{2,}", said.lines[3]) == ["MESSAGE ID", "QUEUE", "OFFSET", "STORED", "TAG", "PROPERTIES"]
    assert said.lines[4].endswith("UA   a=5")
    assert len(said.lines) == 5


def test_as_a_document(shell: Shell) -> None:
    found = shell.json("filter", "test", "a = 'x'", "--topic", "flights", "--max", "1")
    (message,) = found.pop("messages")
    assert found == {
        "topic": "flights",
        "expression": "a = 'x'",
        "examined": 3,
        "matched": 1,
        "incomparable": 0,
        "complete": True,
        "hints": [],
    }
    assert (message["queue_id"], message["queue_offset"], message["tag"]) == (0, 2, "UA")
    assert message["properties"] == {"a": "x"}
    assert message["stored_at"].endswith("Z")


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("NOT a = 1", "NOT binds more than =: this is (NOT a) = …; write NOT (a = …)"),
        ("b = 2 AND not  a <> 1", "NOT binds more than <>: this is (NOT a) <> …; write NOT (a <> …)"),
        ("NOT a is null", "NOT binds more than IS: this is (NOT a) IS …; write NOT (a IS …)"),
        ("NOT a CONTAINS 'x'", "NOT binds more than CONTAINS: this is (NOT a) CONTAINS …; write NOT (a CONTAINS …)"),
        ("NOT /* really */ a = 1", "NOT binds more than =: this is (NOT a) = …; write NOT (a = …)"),
        ("NOT a", "NOT a is true of every message that has a, with any value; compare a with a value"),
        ("NOT a AND b = 1", "NOT a is true of every message that has a, with any value; compare a with a value"),
    ],
)
def test_what_not_stands_before_is_hinted_at(shell: Shell, expression: str, hint: str) -> None:
    """Legal, and hardly ever meant (protocol 7.2)."""
    assert shell.json("filter", "test", expression, "--topic", "flights")["hints"] == [hint]
    assert f"hint: {hint}" in shell.ok("filter", "test", expression, "--topic", "flights").lines


@pytest.mark.parametrize(
    "expression",
    [
        "NOT (a = 1)",
        "a IS NOT NULL",
        "a NOT IN ('x')",
        "a NOT BETWEEN 1 AND 2",
        "a NOT CONTAINS 'NOT a = 1'",
        "b = 'it''s NOT a = 1' -- NOT a = 1",
        "NOT TRUE",
        "NOT NOT (a = 1)",
    ],
)
def test_a_not_that_means_what_it_says_has_no_hint(shell: Shell, expression: str) -> None:
    assert shell.json("filter", "test", expression, "--topic", "flights")["hints"] == []


def test_the_last_hour(shell: Shell) -> None:
    shell.broker.clock.advance("61m")
    said = shell.ok("filter", "test", "TRUE", "--topic", "flights", "--last", "1h")
    assert said.lines == ["0 of 0 messages match"]
    assert shell.json("filter", "test", "TRUE", "--topic", "flights", "--last", "2h")["matched"] == 3


def test_receiving_by_a_sql_filter(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    command = ["message", "receive", "flights", "--group", "counters", "--wait", "0s"]
    (held,) = shell.json(*command, "--sql", "a > 3")
    assert held["properties"] == {"a": "5"}
    assert shell(*command, "--sql", "a > 3", "--filter", "UA").status == 2
    assert shell(*command, "--sql", "a >").status == 1


def test_a_bad_expression_is_refused_with_its_place(shell: Shell) -> None:
    said = shell("filter", "test", "a > 'x'", "--topic", "flights")
    assert (said.status, said.out) == (1, "")
    assert "line 1, column 5, at the ^ in «a > ^'x'»" in said.err
    assert shell("filter", "test", "a > 3", "--topic", "nowhere").status == 4
    assert shell("filter", "test", "a > 3").status == 2


def test_find(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.ok("topic", "create", "orders", "--queues", "1")
    shell.ok("message", "send", "orders", "a", "--key", "o-1", "--key", "c-7", "--tag", "new", "--property", "a=1")
    shell.ok("message", "send", "orders", "b", "--key", "o-2", "--key", "c-7", "--property", "a=2")
    headings, row = shell.ok("message", "find", "--key", "o-1").lines
    assert headings.split() == ["TOPIC", "MESSAGE", "ID", "QUEUE", "OFFSET", "STORED", "TAG", "KEYS"]
    assert row.split()[0] == "orders"
    assert row.endswith("o-1, c-7")
    found = shell.json("message", "find", "--key", "c-7", "--where", "a > 1", "--since", "2024-12-31")
    assert [each["keys"] for each in found["messages"]] == [["o-2", "c-7"]]
    found = shell.json("message", "find", "--key", "c-7", "--until", "2024-12-31")
    assert found["messages"] == []
    lines = shell.ok("message", "find", "--key", "c-7", "--max", "1").lines
    assert lines[-1].startswith("1 messages were examined, and there are more; continue with --page")
    assert shell.ok("message", "find", "--topic", "orders", "--tag", "old").lines == ["no message matches"]
    monkeypatch.setattr(find, "EXAMINED_MAX", 1)
    first = shell.ok("message", "find", "--key", "c-7")
    page = re.search(r"--page (\S+),", first.lines[-1])
    assert page, first.lines
    assert first.lines[-1].startswith("1 messages were examined, and there are more; continue with --page")
    second = shell.json("message", "find", "--key", "c-7", "--page", page[1])
    assert [each["keys"] for each in second["messages"]] == [["o-1", "c-7"]]
    refused = shell("message", "find", "--tag", "new")
    assert refused.status == 2
    assert "name a key or a topic to search" in refused.err
    refused = shell("filter", "test", "KEYS = 'o-1'", "--topic", "orders")
    assert "popmq message find --key" in refused.err
