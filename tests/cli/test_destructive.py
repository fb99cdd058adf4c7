"""One rule for every command that removes or moves something: it says what it will do, and asks, or wants --yes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import popclient.cli
from popclient import Producer, PullConsumer, SimpleConsumer
from popclient.admin import Admin, MirrorReport
from tests.support.shell import Shell

FLIGHTS = 4  # messages


class Case(NamedTuple):
    words: tuple[str, ...]
    what: str  # it will do
    state: tuple[str, ...]  # the command that shows what it changes


CASES = {
    "topic delete": Case(
        ("topic", "delete", "flights"),
        "deletes topic flights with 4 messages, not yet consumed by readers (4)",
        ("topic", "list"),
    ),
    "group delete": Case(
        ("group", "delete", "workers"),
        "deletes consumer group workers with its progress in 1 topic and 0 dead letters",
        ("group", "list"),
    ),
    "group reset": Case(
        ("group", "reset", "workers", "flights", "--to", "beginning"),
        "moves workers in flights to the beginning: 4 messages of 1 queue will be delivered again, 0 messages will not",
        ("group", "lag", "workers"),
    ),
    "group skip": Case(
        ("group", "skip", "readers", "first"), "marks 1 message as consumed by readers", ("group", "lag", "readers")
    ),
    "group offsets import": Case(
        ("group", "offsets", "import", "readers", "file"),
        "moves readers: 0 messages of 1 queue will be delivered again, 4 messages will not be delivered",
        ("group", "lag", "readers"),
    ),
    "message cancel": Case(
        ("message", "cancel", "--topic", "flights", "--key", "later"),
        "removes 2 scheduled messages with key later of flights",
        ("message", "scheduled", "--topic", "flights"),
    ),
    "mirrors forget": Case(
        ("mirrors", "forget", "nightly"),
        "removes the record of mirror nightly, which has handed over 7 messages; a mirror of that name begins anew",
        ("mirrors", "list"),
    ),
    "acl user rotate": Case(
        ("acl", "user", "rotate", "alice"), "replaces the secret of user alice", ("acl", "user", "list")
    ),
    "acl user remove": Case(
        ("acl", "user", "remove", "alice"), "removes user alice with its policies (1)", ("acl", "user", "list")
    ),
    "acl policy remove": Case(("acl", "policy", "remove", "1"), "removes policy 1", ("acl", "policy", "list")),
}
# These have tests of their own: dead letters need a while to die, a backup has no server, a move has two, and a repair
# without --yes is a dry run, because supervisors ask for it.
ELSEWHERE = {"dlq purge", "backup", "restore", "db clock", "repair", "move start", "move finish", "move back"}


@pytest.fixture
def filled(shell: Shell, tmp_path: Path) -> dict[str, str]:
    """A topic with messages that one group has consumed and another one has not; names that commands need."""
    shell.ok("topic", "create", "flights", "--queues", "1", "--type", "NORMAL", "--type", "DELAY")
    shell.ok("group", "create", "workers")
    shell.ok("group", "create", "readers")
    with Producer(shell.endpoint) as producer:
        first = producer.send("flights", "0")
        for number in range(1, FLIGHTS):
            producer.send("flights", str(number))
        for number in range(2):
            producer.send("flights", "x", keys="later", delay=3_600 + number)
    with SimpleConsumer(shell.endpoint, "workers", "flights") as consumer:
        for _ in range(FLIGHTS):
            consumer.ack(consumer.receive(1))
    with PullConsumer(shell.endpoint, "readers", consume_from="CONSUME_FROM_FIRST_OFFSET") as reader:
        reader.assign("flights")
        reader.poll(1)
        reader.seek_to_beginning()
        reader.commit()
    with Admin(shell.endpoint) as admin:
        admin.report_mirror(MirrorReport("nightly", "a:1", "b:1", "flights", None, "one", "ship", "DONE", handed=7))
    shell.ok("acl", "user", "add", "alice")
    shell.ok("acl", "policy", "add", "alice", "allow", "PUB", "topic:flights")
    exported = shell.json("group", "offsets", "export", "readers")
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps(exported).replace(":0}", f":{FLIGHTS}}}").replace(": 0}", f": {FLIGHTS}}}"))
    return {"first": first.message_id, "file": str(file)}


@pytest.mark.parametrize("name", CASES)
def test_it_says_what_it_will_do_and_asks(shell: Shell, filled: dict[str, str], name: str) -> None:
    case = CASES[name]
    words = tuple(filled.get(each, each) for each in case.words)
    before = shell.json(*case.state)

    refused = shell(*words)
    assert (refused.status, refused.out) == (2, "")
    assert f"this {case.what}" in refused.err
    assert refused.err.endswith("it cannot be undone, confirm it with --yes\n")

    no = shell(*words, stdin=b"n\n", terminal=True)
    assert (no.status, no.out) == (1, "")
    assert f"This {case.what}" in no.err
    assert no.err.endswith("Continue? [y/N] nothing was changed\n")
    assert shell.json(*case.state) == before

    assert shell(*words, stdin=b"y\n", terminal=True).status == 0
    if name != "acl user rotate":  # a secret is not listed
        assert shell.json(*case.state) != before


def test_the_question_before_a_topic_goes_names_three_groups_at_most(shell: Shell) -> None:
    shell.ok("topic", "create", "trains", "--queues", "1")
    for group in ("done", "most", "c", "a", "b", "d"):
        shell.ok("group", "create", group)
        shell.ok("message", "receive", "trains", "--group", group, "--wait", "0s")
    assert shell("topic", "delete", "trains").err.startswith("popmq: this deletes topic trains with 0 messages; it")
    shell.ok("message", "send", "trains", "x", "--count", "1200")
    with Admin(shell.endpoint) as admin:
        admin.reset_offsets("done", "trains", "END")
        for group in ("a", "b", "c", "d"):
            admin.reset_offsets(group, "trains", 1_197, queue_id=0)
    shell.ok("message", "receive", "trains", "--group", "a", "--max", "3", "--ack")
    shell.ok("message", "receive", "trains", "--group", "b", "--max", "2")
    assert "1,200 messages, not yet consumed by most (1,200), b (3), c (3) and 1 more group; it" in (
        shell("topic", "delete", "trains").err
    )


def test_every_command_that_asks_is_here() -> None:
    asking = {name.removeprefix("popmq ") for name, parser in _commands() if "--yes" in parser._option_string_actions}
    assert asking == {*CASES, *ELSEWHERE}


def _commands() -> list[tuple[str, Any]]:
    found, waiting = [], [popclient.cli.parser()]
    while waiting:
        each = waiting.pop()
        found.append((each.prog, each))
        waiting += [
            parser for action in each._actions if isinstance(action.choices, dict) for parser in action.choices.values()
        ]
    return found
