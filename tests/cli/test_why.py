"""popmq why …"""

from __future__ import annotations

from tests.cli.shell import Shell


def test_one_sentence_and_what_it_rests_on(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "counters", "--history", "all")
    (sent,) = shell.json("message", "send", "flights", "hello")["messages"]
    shell.ok("message", "receive", "flights", "--group", "counters")
    sentence, *rest = shell.ok("why", sent["message_id"], "--group", "counters").lines
    assert sentence.startswith("INFLIGHT: client '")
    assert "attempt 1 of 17" in sentence
    assert any(line.startswith("attempt") for line in rest)
    assert any("RECEIVE" in line for line in rest)
    document = shell.json("why", sent["message_id"], "--group", "counters", "--topic", "flights")
    assert document["sentence"] == sentence
    assert document["evidence"]["state"] == "INFLIGHT"
    assert [step["event"] for step in document["history"]] == ["RECEIVE"]


def test_a_message_that_is_nowhere(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    said = shell("why", "gone", "--group", "counters")
    assert said.status == 4
    assert "is not in any topic" in said.err
