"""popmq lite …, and what topics and groups say about lite topics"""

from __future__ import annotations

from popclient import LiteSimpleConsumer, Message, Producer
from tests.support.shell import Shell


def test_list_and_show(shell: Shell) -> None:
    made = shell.json("topic", "create", "sessions", "--type", "lite", "--lite-expires", "1d")
    assert (made["message_types"], made["lite_topic_count"], made["lite_expiry_s"]) == (["LITE"], 0, 86_400.0)
    shell.ok("group", "create", "owners", "--lite", "exclusive")
    assert shell.ok("lite", "list", "sessions").lines == ["no lite topics"]
    with (
        Producer(shell.endpoint, "sessions") as producer,
        LiteSimpleConsumer(shell.endpoint, "owners", "sessions", "ada") as consumer,
    ):
        producer.send_many([Message("sessions", "x", lite_topic=name) for name in ("ada", "ada", "ben")])
        (held,) = consumer.receive(1, await_duration=1)
        assert held.lite_topic == "ada"
        listed = shell.json("lite", "list", "sessions")
        assert [each["name"] for each in listed] == ["ada", "ben"]
        assert [each["name"] for each in shell.json("lite", "list", "sessions", "--prefix", "b")] == ["ben"]
        assert [each["name"] for each in shell.json("lite", "list", "sessions", "--after", "ada")] == ["ben"]
        assert [each["name"] for each in shell.json("lite", "list", "sessions", "--after", "ada", "--max", "1")] == [
            "ben"
        ]
        (group,) = shell.json("lite", "show", "sessions", "ada")["groups"]
        assert (group["group"], group["lite"], group["ready"], group["inflight"]) == ("owners", "EXCLUSIVE", 1, 1)
        assert group["client_ids"] == [consumer.client_id]
        assert any(line.split()[:4] == ["owners", "EXCLUSIVE", "1", "1"] for line in _shown(shell))
    assert "lite topics  2" in shell.ok("topic", "show", "sessions").lines
    assert "lite            EXCLUSIVE" in shell.ok("group", "show", "owners").lines


def _shown(shell: Shell) -> list[str]:
    return shell.ok("lite", "show", "sessions", "ada").lines


def test_refusals(shell: Shell) -> None:
    shell.ok("topic", "create", "flights")
    assert "has no lite topics" in shell("lite", "list", "flights").err
    nowhere = shell("lite", "list", "nowhere")
    assert (nowhere.status, "popmq topic create nowhere --type LITE, or see" in nowhere.err) == (4, True)
    shell.ok("topic", "create", "sessions", "--type", "lite")
    unknown = shell("lite", "show", "sessions", "ada").err
    assert "has no lite topic 'ada', or it has expired; list them with: popmq lite list sessions\n" in unknown
    both = shell("message", "send", "sessions", "x", "--lite-topic", "ada", "--delay", "5s")
    assert (both.status, "--delay: not allowed with argument --lite-topic" in both.err) == (2, True), both.err
    no_lite_topic = shell("message", "send", "sessions", "x").err
    assert "give the message a lite topic (lite_topic, in popmq message send --lite-topic NAME)" in no_lite_topic
    assert "takes LITE messages only" in shell("topic", "create", "both", "--type", "lite", "--type", "fifo").err


def test_the_lite_model_of_a_group(shell: Shell) -> None:
    made = shell.ok("group", "create", "owners").lines
    assert "lite model" not in made[0]
    assert shell.ok("group", "update", "owners", "--lite", "exclusive").lines[0].endswith(", lite model EXCLUSIVE")
    assert shell.ok("group", "create", "every", "--lite", "wildcard").lines[0].endswith(", lite model WILDCARD")
    listed = {each["name"]: each["lite"] for each in shell.json("group", "list")}
    assert listed == {"owners": "EXCLUSIVE", "every": "WILDCARD"}
    heading, *rows = shell.ok("group", "list").lines
    assert "  MODE    LITE       PAUSED  " in heading
    assert any("  EXCLUSIVE  " in row for row in rows)
    shell.ok("topic", "create", "sessions", "--type", "lite")
    shell.ok("message", "receive", "sessions", "--group", "owners", "--lite-topic", "ada", "--wait", "0s")
    refused = shell("group", "update", "owners", "--lite", "shared")
    assert (refused.status, "has received messages as a group of the lite model EXCLUSIVE" in refused.err) == (1, True)


def test_a_wildcard_group_gets_all(shell: Shell) -> None:
    shell.ok("topic", "create", "sessions", "--type", "lite")
    shell.ok("group", "create", "every", "--lite", "wildcard")
    shell.ok("message", "send", "sessions", "x", "--lite-topic", "ada")
    refused = shell("message", "receive", "sessions", "--group", "every", "--lite-topic", "ada", "--wait", "0s")
    assert (refused.status, "its clients get all lite topics" in refused.err) == (1, True), refused.err
    with LiteSimpleConsumer(shell.endpoint, "every", "sessions") as consumer:
        (held,) = consumer.receive(1, await_duration=1)
        consumer.ack(held)
        assert _shown(shell)[-1].split() == ["every", "WILDCARD", "0", "0", "0", "all"]


def test_lite_topics_in_tables_and_options(shell: Shell) -> None:
    shell.ok("topic", "create", "sessions", "--type", "lite")
    shell.ok("group", "create", "agents", "--lite", "shared", "--max-attempts", "1")
    for name in ("ada", "ben"):
        shell.ok("message", "send", "sessions", f"for {name}", "--lite-topic", name)
    peeked = shell.ok("message", "peek", "sessions").lines
    assert "  LITE TOPIC  TAG" in peeked[0]
    assert sorted(line.split()[-3:] for line in peeked[1:]) == [["ada", "for", "ada"], ["ben", "for", "ben"]]
    taken = shell.ok("message", "receive", "sessions", "--group", "agents", "--lite-topic", "ada", "--ack")
    assert "  LITE TOPIC  TAG" in taken.lines[0]
    assert [line.split()[-3:] for line in taken.lines[1:]] == [["ada", "for", "ada"]]
    paused = shell.ok("group", "pause", "agents", "--topic", "sessions", "--lite-topic", "ada").lines
    assert paused[0].startswith("paused: lite topic ada in topic sessions, since ")
    assert shell.ok("group", "resume", "agents", "--topic", "sessions", "--lite-topic", "ada").lines == [
        "consumer group agents is not paused"
    ]
    with LiteSimpleConsumer(shell.endpoint, "agents", "sessions", "ben") as consumer:
        (held,) = consumer.receive(1, await_duration=1)
        consumer.forward_to_dead_letter_queue(held)
    letters = shell.ok("dlq", "list", "--group", "agents").lines
    assert "  LITE TOPIC  ATTEMPTS  " in letters[0]
    assert "  sessions  ben " in letters[1]


def test_find_in_a_lite_topic(shell: Shell) -> None:
    shell.ok("topic", "create", "sessions", "--type", "lite")
    shell.ok("topic", "create", "flights")
    for number in range(3):
        for name in ("ada", "ben"):
            shell.ok("message", "send", "sessions", "x", "--lite-topic", name, "--key", f"k{number}", "--tag", name)

    def found(*words: str) -> list[tuple[str, list[str]]]:
        listed = shell.json("message", "find", *words)["messages"]
        return [(each["tag"], each["keys"]) for each in listed]

    of_ada = ["--topic", "sessions", "--lite-topic", "ada"]
    assert found(*of_ada) == [("ada", ["k2"]), ("ada", ["k1"]), ("ada", ["k0"])]
    first = shell.json("message", "find", *of_ada, "--max", "2")
    assert (first["examined"], first["complete"]) == (2, False)
    assert found(*of_ada, "--page", first["next_page"]) == [("ada", ["k0"])]
    assert found("--key", "k1", "--lite-topic", "ben") == [("ben", ["k1"])]
    assert found(*of_ada, "--tag", "ben") == []
    assert "has no lite topics" in shell("message", "find", "--topic", "flights", "--lite-topic", "ada").err
    assert "the character ' '" in shell("message", "find", "--topic", "sessions", "--lite-topic", "a b").err
