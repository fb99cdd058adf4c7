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
