"""popmq message scheduled|cancel"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import popserver
from tests.support.builders import START
from tests.support.shell import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    with popserver.embedded(auto_create=False, manual_clock=START) as broker:
        yield Shell(broker.endpoint, capsys, monkeypatch, broker)


@pytest.fixture(autouse=True)
def furnished(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--type", "NORMAL", "--type", "DELAY")


def later(shell: Shell, body: str, delay: str, *options: str) -> str:
    """The message id."""
    sent = shell.json("message", "send", "flights", body, "--delay", delay, *options)
    message_id: str = sent["messages"][0]["message_id"]
    return message_id


def test_what_is_scheduled_by_due_time(shell: Shell) -> None:
    assert shell.ok("message", "scheduled", "--topic", "flights").lines == ["no scheduled messages"]
    assert shell.json("message", "scheduled", "--topic", "flights") == []
    second, first = later(shell, "second", "2h"), later(shell, "first", "1h", "--tag", "UA", "--key", "k1")
    heading, *rows = shell.ok("message", "scheduled", "--topic", "flights").lines
    assert heading.split() == ["MESSAGE", "ID", "KIND", "DUE", "CHECKS", "TAG", "KEYS", "BODY"]
    assert [row.split()[0] for row in rows] == [first, second]
    assert re.search(r"DELAY  \S+  .*UA +k1 +first", rows[0])
    documents = shell.json("message", "scheduled", "--topic", "flights")
    assert [(each["message_id"], each["body"], each["kind"]) for each in documents] == [
        (first, "first", "DELAY"),
        (second, "second", "DELAY"),
    ]
    assert documents[0]["due_at"] == documents[0]["deliver_at"]
    assert documents[0]["queue_id"] is None
    assert len(shell.json("message", "scheduled", "--topic", "flights", "--max", "1")) == 1


def test_nothing_of_it_can_be_received(shell: Shell) -> None:
    later(shell, "x", "1h")
    shell.ok("group", "create", "g")
    assert shell.json("message", "receive", "flights", "--group", "g", "--wait", "0s") == []
    assert shell.json("message", "peek", "flights") == []


def test_cancel_by_id(shell: Shell) -> None:
    kept, first, second = (later(shell, "x", "1h") for _ in range(3))
    said = shell.ok("message", "cancel", first, second, "--topic", "flights", "--yes")
    assert said.lines == [f"cancelled {first}", f"cancelled {second}"]
    assert [each["message_id"] for each in shell.json("message", "scheduled", "--topic", "flights")] == [kept]
    again = shell("message", "cancel", first, "--topic", "flights", "--yes")
    assert (again.status, again.out) == (4, "")
    assert first in again.err


@pytest.mark.user("U26")
def test_cancel_by_key(shell: Shell) -> None:
    later(shell, "x", "1h", "--key", "other")
    wanted = {later(shell, "x", "1h", "--key", "order-1", "--key", "more") for _ in range(2)}
    assert (
        set(shell.json("message", "cancel", "--topic", "flights", "--key", "order-1", "--yes")["cancelled"]) == wanted
    )
    assert len(shell.json("message", "scheduled", "--topic", "flights")) == 1
    assert shell("message", "cancel", "--topic", "flights", "--key", "order-1", "--yes").status == 4


@pytest.mark.parametrize("words", [[], ["id", "--key", "k"]], ids=["neither", "both"])
def test_an_id_or_a_key(shell: Shell, words: list[str]) -> None:
    said = shell("message", "cancel", *words, "--topic", "flights", "--yes")
    assert (said.status, "--key" in said.err) == (2, True)


@pytest.mark.parametrize("command", [["scheduled"], ["cancel", "x", "--yes"]], ids=lambda words: words[0])
def test_a_topic_that_is_not_there(shell: Shell, command: list[str]) -> None:
    said = shell("message", *command, "--topic", "nowhere")
    assert (said.status, "popmq topic create nowhere" in said.err) == (4, True)


def test_too_far_ahead(shell: Shell) -> None:
    said = shell("message", "send", "flights", "x", "--delay", "41d")
    assert (said.status, "--max-delay" in said.err) == (1, True)


def test_a_delayed_message_is_told_with_its_time(shell: Shell) -> None:
    shell.ok("topic", "create", "reminders", "--type", "DELAY")
    (line,) = shell.ok("message", "send", "reminders", "x", "--delay", "1h").lines
    due = datetime.fromtimestamp(shell.broker.clock.now_ms() / 1_000 + 3_600, UTC)
    assert line.endswith(f" to reminders, due at {due.astimezone().isoformat(timespec='seconds')}")
    (document,) = shell.json("message", "send", "reminders", "x", "--delay", "1h")["messages"]
    assert (document["queue_id"], document["deliver_at"]) == (None, "2025-01-01T01:00:00.000Z")
