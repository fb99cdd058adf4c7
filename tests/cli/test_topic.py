"""popmq topic …"""

from __future__ import annotations

import pytest

from popclient import NotFound
from popclient.admin import Admin, Topic
from tests.support.shell import Shell


def test_create(shell: Shell) -> None:
    assert shell.ok("topic", "create", "flights").lines == ["created topic flights with 8 queues"]
    made = shell.json("topic", "create", "airports", "--queues", "3", "--type", "normal", "--type", "NORMAL")
    assert made["name"] == "airports"
    assert made["queue_count"] == 3
    assert made["message_types"] == ["NORMAL"]
    assert made["message_count"] == 0
    assert made["created_at"] == "2025-01-01T00:00:00.000Z"


def test_list(shell: Shell) -> None:
    assert shell.ok("topic", "list").lines == ["no topics"]
    assert shell.json("topic", "list") == []
    shell.ok("topic", "create", "flights")
    shell.ok("topic", "create", "a", "--queues", "16")
    headings, first, second = shell.ok("topic", "list").lines
    assert headings.split() == ["TOPIC", "NAMESPACE", "QUEUES", "MESSAGES", "TYPES", "CREATED"]
    assert first.split()[:4] == ["a", "16", "0", "NORMAL"]
    assert second.split()[:4] == ["flights", "8", "0", "NORMAL"]
    end = headings.index("QUEUES") + len("QUEUES")
    assert (first[:end].split()[-1], second[:end].split()[-1]) == ("16", "8"), "numbers end where their heading ends"
    assert [each["name"] for each in shell.json("topic", "list")] == ["a", "flights"]


def test_show(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--queues", "2")
    shell.ok("message", "send", "flights", "x", "--count", "3")
    lines = shell.ok("topic", "show", "flights").lines
    assert lines[0].split() == ["topic", "flights"]
    assert "messages  3" in lines
    assert sum(int(line.split()[3]) for line in lines[-2:]) == 3
    shown = shell.json("topic", "show", "flights")
    assert [each["id"] for each in shown["queues"]] == [0, 1]
    assert sum(each["max_offset"] - each["min_offset"] for each in shown["queues"]) == 3


def test_update(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--queues", "2")
    said = shell.ok("topic", "update", "flights", "--queues", "4")
    assert said.lines == ["topic flights has 4 queues and accepts NORMAL"]
    assert shell.json("topic", "update", "flights", "--type", "NORMAL")["message_types"] == ["NORMAL"]
    fewer = shell("topic", "update", "flights", "--queues", "1")
    assert (fewer.status, fewer.out) == (1, "")
    assert fewer.err == "popmq: topic 'flights' has 4 queues, and their number only grows; 1 are too few\n"
    assert shell("topic", "update", "flights").status == 2


def test_delete(shell: Shell) -> None:
    shell.ok("topic", "create", "flights")
    assert shell.json("topic", "delete", "flights", "--yes") == {"name": "flights", "deleted": True}
    assert shell("topic", "show", "flights").status == 4


@pytest.mark.parametrize("action", [["show"], ["update", "--queues", "3"], ["delete", "--yes"]])
def test_a_missing_topic_is_not_found(shell: Shell, action: list[str]) -> None:
    said = shell("topic", action[0], "nowhere", *action[1:])
    assert (said.status, said.out) == (4, "")
    assert said.err.startswith("popmq: topic 'nowhere' does not exist; create it with: popmq topic create nowhere,")
    assert said.err.endswith(" or see popmq topic list\n")


@pytest.mark.row("G7")
def test_a_namespace_is_a_world_of_its_own(shell: Shell) -> None:
    shell.ok("topic", "create", "flights", "--namespace", "east")
    shell.ok("topic", "create", "flights", "--namespace", "west")
    assert [each["namespace"] for each in shell.json("topic", "list")] == ["east", "west"]
    assert [each["namespace"] for each in shell.json("--namespace", "west", "topic", "list")] == ["west"]
    missing = shell("topic", "show", "flights", "--namespace", "north")
    assert missing.status == 4
    assert "popmq topic create flights --namespace north" in missing.err
    shell.ok("message", "send", "flights", "east", "--namespace", "east")
    assert len(shell.json("message", "peek", "flights", "--namespace", "east")) == 1
    assert shell.json("message", "peek", "flights", "--namespace", "west") == []


def test_close_and_open(shell: Shell) -> None:
    shell.ok("topic", "create", "flights")
    said = "it has moved to 10.0.0.9:8081"
    closed = shell.ok("topic", "close", "flights", "--because", said)
    assert closed.lines == [f"topic flights is closed; its producers read: {said}"]
    refused = shell("message", "send", "flights", "x")
    assert refused.status and f"topic 'flights' is closed for producers: {said}" in refused.err
    assert f"closed    {said}" in shell.ok("topic", "show", "flights").lines
    assert shell.json("topic", "show", "flights")["closed_because"] == said
    assert shell.ok("topic", "open", "flights").lines == ["topic flights takes messages of producers"]
    shell.ok("message", "send", "flights", "x")


def test_created_unless_it_exists(shell: Shell) -> None:
    create = ["topic", "create", "flights", "--if-not-exists"]
    assert shell.ok(*create, "--queues", "2").lines == ["created topic flights with 2 queues"]
    assert shell.ok(*create, "--queues", "2", "--type", "normal").lines == ["topic flights exists and was not changed"]
    given = ["--queues", "4", "--type", "FIFO", "--lite-expires", "12h"]
    differs = ["--queues is 2, not 4", "--type is NORMAL, not FIFO", "--lite-expires is never, not 12h"]
    there = shell.ok(*create, *given).lines
    assert there[1:] == [f"it differs: {'; '.join(differs)}; see popmq topic update"]
    found = shell.json(*create, *given)
    assert (found["queue_count"], found["message_types"], found["differs"]) == (2, ["NORMAL"], differs)
    assert shell("topic", "create", "a b", "--if-not-exists").status == 1


def test_created_by_two_commands_at_one_time(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    find, early = Admin.get_topic, [True]

    def find_early(admin: Admin, name: str) -> Topic:
        """The other command is between the search and the creation of this one."""
        if early.pop():
            early.append(False)
            with Admin(shell.endpoint) as other:
                other.create_topic(name)
            raise NotFound
        return find(admin, name)

    monkeypatch.setattr(Admin, "get_topic", find_early)
    said = shell.ok("topic", "create", "flights", "--if-not-exists")
    assert said.lines == ["topic flights exists and was not changed"]
