"""popmq why …"""

from __future__ import annotations

from popclient import Message, Producer
from tests.support.shell import Shell


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


def test_an_id_is_found_in_any_case(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "counters", "--max-attempts", "1")
    (sent,) = shell.json("message", "send", "flights", "hello")["messages"]
    typed = sent["message_id"].lower()
    assert typed != sent["message_id"]
    assert shell.json("message", "get", typed)["message_id"] == sent["message_id"]
    assert shell.json("message", "get", typed, "--topic", "flights")["message_id"] == sent["message_id"]
    told = [shell.ok("why", each, "--group", "counters").out for each in (typed, sent["message_id"])]
    assert told[0] == told[1]
    shell.json("message", "receive", "flights", "--group", "counters", "--invisible", "10s")
    shell.broker.clock.advance("11s")
    assert shell.json("dlq", "show", "--group", "counters", typed)["message_id"] == sent["message_id"]
    another = typed[:-1] + ("0" if typed[-1] != "0" else "1")
    assert shell("message", "get", another).status == 4


def test_an_id_that_was_chosen_in_small_letters_is_itself(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "counters")
    big, small = "01" + "A" * 32, "01" + "a" * 32
    with Producer(shell.endpoint) as producer:
        for message_id in (small, big):
            producer.send(Message("flights", message_id, message_id=message_id))
    for message_id in (small, big):
        assert shell.json("message", "get", message_id)["body"] == message_id


def test_a_message_that_is_nowhere(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    said = shell("why", "gone", "--group", "counters")
    assert said.status == 4
    assert "is not in any topic" in said.err
