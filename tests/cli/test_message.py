"""popmq message …"""

from __future__ import annotations

import base64
import re

import pytest

from tests.support.shell import Shell


@pytest.fixture(autouse=True)
def furnished(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "counters", "--history", "all")


@pytest.mark.row("H12")
@pytest.mark.row("N9")
def test_send_says_where_it_stands(shell: Shell) -> None:
    options = ["--tag", "UA", "--key", "k1", "--key", "k2", "--property", "origin=JFK", "--property", "note=a=b"]
    (line,) = shell.ok("message", "send", "flights", "hello", *options).lines
    sent = re.fullmatch(r"sent (01[0-9A-F]{32}) to flights, queue [0-7], at offset 0", line)
    assert sent
    shown = shell.json("message", "get", sent[1])
    assert (shown["tag"], shown["keys"]) == ("UA", ["k1", "k2"])
    assert shown["properties"] == {"origin": "JFK", "note": "a=b"}
    assert (shown["body"], shown["size"], shown["queue_id"], shown["queue_offset"]) == ("hello", 5, 0, 0)


def test_send_with_what_else_a_message_has(shell: Shell) -> None:
    shell.ok("topic", "create", "orders", "--type", "FIFO")
    shell.ok("topic", "create", "urgent", "--type", "PRIORITY", "--queues", "1")
    shell.ok("message", "send", "orders", "x", "--message-group", "customer-1")
    assert shell.json("message", "peek", "orders")[0]["message_group"] == "customer-1"
    shell.ok("message", "send", "urgent", "x", "--priority", "7")
    (urgent,) = shell.json("message", "peek", "urgent")
    assert urgent["priority"] == 7
    assert "priority    7" in shell.ok("message", "get", urgent["message_id"]).lines
    first, again = (shell.json("message", "send", "flights", "x", "--idempotency-key", "paid-1") for _ in range(2))
    assert first["messages"] == again["messages"]
    assert shell("message", "send", "orders", "x", "--message-group", "a", "--priority", "1").status == 2


def test_send_many(shell: Shell) -> None:
    assert shell.ok("message", "send", "flights", "x", "--count", "3").lines == ["sent 3 messages to flights"]
    sent = shell.json("message", "send", "flights", "x", "--count", "2")
    assert (sent["topic"], sent["sent"]) == ("flights", 2)
    assert [each["queue_offset"] for each in sent["messages"]] == [3, 4]
    assert len({each["message_id"] for each in sent["messages"]}) == 2


def test_send_what_stands_at_standard_input(shell: Shell) -> None:
    shell.ok("message", "send", "flights", "-", stdin="grüße\n".encode())
    shell.ok("message", "send", "flights", "-", stdin=b"\xff\x00\x01")
    text, binary = shell.json("message", "peek", "flights")
    assert text["body"] == "grüße\n"
    assert binary["body"] is None
    assert base64.b64decode(binary["body_base64"]) == b"\xff\x00\x01"


@pytest.mark.row("N3")
def test_a_topic_must_exist_and_the_refusal_says_how(shell: Shell) -> None:
    refused = shell("message", "send", "nowhere", "x")
    assert (refused.status, refused.out) == (4, "")
    command = re.search(r"popmq (topic create nowhere)", refused.err)
    assert command, refused.err
    shell.ok(*command[1].split())
    shell.ok("message", "send", "nowhere", "x")


def test_what_breaks_a_rule_is_refused(shell: Shell) -> None:
    empty = shell("message", "send", "flights", "")
    assert (empty.status, empty.err) == (1, "popmq: the message's body is empty; send at least one byte\n")
    several = shell("message", "send", "flights", "x", "--tag", "a|b", "--count", "2")
    assert several.status == 1
    assert several.err.endswith("(0 of 2 messages were stored)\n")
    assert shell.json("message", "peek", "flights") == []


def test_receive_holds_and_shows_the_handle(shell: Shell) -> None:
    shell.ok("message", "send", "flights", "hello", "--tag", "UA", "--count", "3")
    headings, row = shell.ok("message", "receive", "flights", "--group", "counters", "--max", "1").lines
    assert headings.endswith("RECEIPT HANDLE")
    assert re.search(r" 1 .* UA .* hello  \S{40}$", row)
    held, _ = shell.json("message", "receive", "flights", "--group", "counters", "--invisible", "1m")
    assert (held["delivery_attempt"], len(held["receipt_handle"])) == (1, 40)
    assert held["body"] == "hello"
    assert held["invisible_until"].endswith("Z")
    state = shell.json("message", "get", held["message_id"])["states"]
    assert [(each["group"], each["state"]) for each in state] == [("counters", "INFLIGHT")]
    # Not acked: it comes again.
    shell.broker.clock.advance("1m")
    again = shell.json("message", "receive", "flights", "--group", "counters")
    assert held["message_id"] in {each["message_id"] for each in again}
    assert {each["delivery_attempt"] for each in again} == {2}


def test_receive_and_ack(shell: Shell) -> None:
    shell.ok("message", "send", "flights", "hello", "--count", "2")
    headings, *rows = shell.ok("message", "receive", "flights", "--group", "counters", "--ack").lines
    assert "RECEIPT HANDLE" not in headings
    assert len(rows) == 2
    shell.broker.clock.advance("1h")
    nothing = ["message", "receive", "flights", "--group", "counters", "--wait", "0s"]
    assert shell.ok(*nothing).lines == ["no messages"]
    assert shell.json(*nothing) == []


def test_receive_what_the_filter_wants(shell: Shell) -> None:
    for tag in ("UA", "AA", "DL"):
        shell.ok("message", "send", "flights", tag, "--tag", tag)
    received = shell.json("message", "receive", "flights", "--group", "counters", "--filter", "UA || DL")
    assert {each["tag"] for each in received} == {"UA", "DL"}


def test_receive_within_the_servers_limits(shell: Shell) -> None:
    said = shell("message", "receive", "flights", "--group", "counters", "--invisible", "999ms")
    assert (said.status, said.out) == (1, "")
    assert "999 ms" in said.err
    assert "at least 1000 ms" in said.err
    assert shell("message", "receive", "flights", "--group", "nobody", "--wait", "0s").status == 4
    assert shell("message", "receive", "nowhere", "--group", "counters", "--wait", "0s").status == 4


def test_peek_holds_nothing(shell: Shell) -> None:
    assert shell.ok("message", "peek", "flights").lines == ["no messages"]
    for body in (b"one", b"\x1b[31mtwo\nlines", b"\xde\xad\xbe\xef", b"x" * 500):
        shell.ok("message", "send", "flights", "-", stdin=body)
    headings, *rows = shell.ok("message", "peek", "flights").lines
    assert headings.split() == ["MESSAGE", "ID", "QUEUE", "OFFSET", "STORED", "TAG", "KEYS", "BODY"]
    assert [row[headings.index("BODY") :] for row in rows] == [
        "one",
        r"\x1b[31mtwo\nlines",
        "0xdeadbeef (4 bytes)",
        "x" * 59 + "…",
    ]
    some = shell.json("message", "peek", "flights", "--queue", "0", "--from", "1", "--max", "2")
    assert [each["queue_offset"] for each in some] == [1, 2]
    assert len(shell.json("message", "receive", "flights", "--group", "counters")) == 4


def test_peek_refuses_what_is_not_there(shell: Shell) -> None:
    assert shell("message", "peek", "nowhere").status == 4
    assert shell("message", "peek", "flights", "--queue", "1").status == 1
    assert shell("message", "peek", "flights", "--from", "1").status == 2


def test_get_tells_a_messages_life(shell: Shell) -> None:
    message_id = shell.json("message", "send", "flights", "hello\n\x1bworld", "--key", "k1")["messages"][0][
        "message_id"
    ]
    shell.ok("message", "receive", "flights", "--group", "counters", "--ack")
    found = shell.json("message", "get", message_id, "--topic", "flights")
    assert [(each["group"], each["state"]) for each in found["states"]] == [("counters", "COMMIT")]
    assert [each["event"] for each in found["history"]] == ["RECEIVE", "ACK"]
    lines = shell.ok("message", "get", message_id).lines
    assert f"message id  {message_id}" in lines
    assert "keys        k1" in lines
    assert any(line.split()[:2] == ["counters", "COMMIT"] for line in lines)
    assert lines[-2:] == ["hello", r"\x1bworld"]


def test_no_output_steers_a_terminal(shell: Shell) -> None:
    """Escape sequences, also of one character beyond ASCII, and what turns the direction of writing."""
    hostile = "a\x1b[2J\x7f\x9b2J\u202egnp"
    shell.ok("message", "send", "flights", hostile, "--key", "k1")
    (found,) = shell.json("message", "peek", "flights")
    assert found["body"] == hostile, "JSON says what it is"
    for words in (("--json", "message", "peek", "flights"), ("message", "peek", "flights"), ("message", "get", "-")):
        said = shell(*words)
        for line in (*said.lines, *said.err.splitlines()):
            assert line.isprintable(), words


def test_get_what_is_not_there(shell: Shell) -> None:
    said = shell("message", "get", "nope")
    assert said.status == 4
    assert (
        "message 'nope' is not in any topic: it was never stored there; was recalled, cancelled or rolled" in said.err
    )
    assert shell("message", "get", "nope", "--topic", "nowhere").status == 4
