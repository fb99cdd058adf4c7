"""popmq client list, stack, verify, reconnect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popclient import ConsumeResult, MessageView, PushConsumer
from tests.support.scripted_server import until_in_thread
from tests.support.shell import Shell


def listener(message: MessageView) -> ConsumeResult:
    return ConsumeResult.SUCCESS if message.text == "good" else ConsumeResult.FAILURE


@pytest.fixture
def client_id(shell: Shell) -> Iterator[str]:
    shell.ok("topic", "create", "flights")
    shell.ok("group", "create", "counters")
    with PushConsumer(shell.endpoint, "counters", "flights", listener):
        until_in_thread(lambda: len(shell.json("client", "list", "--group", "counters")) == 1)
        (found,) = shell.json("client", "list", "--group", "counters")
        assert (found["client_type"], found["group"], found["connected"]) == ("PUSH_CONSUMER", "counters", True)
        yield found["client_id"]


def test_clients_are_listed(shell: Shell, client_id: str) -> None:
    headings, *rows = shell.ok("client", "list").lines
    assert headings.split() == ["CLIENT", "ID", "TYPE", "GROUP", "LIBRARY", "LAST", "SEEN", "SESSION"]
    assert any(row.split()[:4] == [client_id, "PUSH_CONSUMER", "counters", "PYTHON"] for row in rows)
    assert shell.ok("client", "list", "--group", "others").lines == ["no clients"]


def test_a_clients_threads_are_shown(shell: Shell, client_id: str) -> None:
    said = shell.ok("client", "stack", client_id)
    assert "MainThread" in said.out
    assert "popclient" in said.out
    assert shell.json("client", "stack", client_id)["client_id"] == client_id


def test_a_message_is_tried_out(shell: Shell, client_id: str) -> None:
    shell.ok("topic", "create", "elsewhere")
    ids = {
        text: shell.json("message", "send", "elsewhere", text)["messages"][0]["message_id"] for text in ("good", "bad")
    }
    good = shell.ok("client", "verify", client_id, ids["good"], "--topic", "elsewhere")
    assert good.out.startswith("OK: consumed in ")
    bad = shell("client", "verify", client_id, ids["bad"])
    assert (bad.status, bad.lines) == (1, ["FAILED_TO_CONSUME_MESSAGE: the listener ended with FAILED"])


def test_a_client_is_told_to_reconnect(shell: Shell, client_id: str) -> None:
    assert shell.ok("client", "reconnect", client_id).lines == [f"asked {client_id} to open a new session"]


@pytest.mark.parametrize("words", [("stack",), ("reconnect",)])
def test_who_is_not_there(shell: Shell, words: tuple[str, ...]) -> None:
    said = shell("client", *words, "nobody")
    assert said.status == 4
    assert "client 'nobody' has no session with this server" in said.err
    assert "popmq client list" in said.err
