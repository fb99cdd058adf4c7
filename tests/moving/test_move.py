"""`popmq move` between two PopMQ servers: plans, topics with and without message groups, back, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from popclient import Forbidden
from popclient.moving.moves import MoveFile, Stage
from tests.moving.moved import Moved, gets_nothing, receive, send, two_servers
from tests.support.scripted_server import until_in_thread

TOPIC, GROUP = "orders", "billing"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Moved]:
    with two_servers(tmp_path) as both:
        yield both


def prepare(servers: Moved, types: str, *groups: str) -> None:
    with servers.admin(servers.old) as admin:
        admin.create_topic(TOPIC, queue_count=2, accept_message_types=types)
        for name in groups or (GROUP,):
            admin.create_group(name)


def planned(servers: Moved, *groups: str) -> None:
    servers.plan("--topic", TOPIC, *[word for each in groups or (GROUP,) for word in ("--group", each)])


def numbers(first: int, end: int) -> list[str]:
    return [str(each) for each in range(first, end)]


def test_a_plan_changes_nothing_and_names_what_it_will_do(servers: Moved) -> None:
    prepare(servers, "FIFO")
    send(servers.old, TOPIC, "a", message_group="g")
    found = servers.plan("--topic", TOPIC, "--group", GROUP)
    assert found["topics"] == [{"topic": TOPIC, "in_order": True}]
    assert (found["topics_to_create"], found["groups_to_prepare"]) == ([TOPIC], [GROUP])
    with servers.admin(servers.new) as admin:
        assert admin.list_topics() == []
    send(servers.old, TOPIC, "b", message_group="g")
    assert servers.done("status")["next"] == ["popmq move start"]
    assert servers.move.stage is Stage.PLANNED


@pytest.mark.row("O9")
def test_a_topic_without_message_groups(servers: Moved) -> None:
    prepare(servers, "NORMAL", GROUP, "audit")
    send(servers.old, TOPIC, *numbers(0, 20))
    assert len(receive(servers.old, "audit", TOPIC, 15)) == 15
    planned(servers, GROUP, "audit")
    with servers.running():
        servers.until(lambda move: move.stage is Stage.RUNNING)
        send(servers.old, TOPIC, *numbers(20, 25))  # producers change sides when they like
        at_new = receive(servers.new, GROUP, TOPIC, 25)
        send(servers.new, TOPIC, *numbers(25, 30))
        at_new += receive(servers.new, GROUP, TOPIC, 5)
    lines = servers.done("finish")["lines"]
    assert sorted(at_new, key=int) == numbers(0, 30)
    assert len(receive(servers.new, "audit", TOPIC, 15)) == 15
    assert "group billing: 25 messages were handed over, 25 came in" in lines
    with pytest.raises(
        Forbidden, match=f"topic 'orders' is closed for producers: it has moved to {servers.new.endpoint}"
    ):
        send(servers.old, TOPIC, "late")
    assert servers.move.stage is Stage.FINISHED
    assert "plan another one" in servers.run("start").stderr


@pytest.mark.row("O9")
def test_message_groups_keep_their_order(servers: Moved) -> None:
    prepare(servers, "FIFO", GROUP, "audit")
    send(servers.old, TOPIC, *numbers(0, 5), message_group="g")
    planned(servers, GROUP, "audit")
    with servers.running():
        servers.until_switched()
        with pytest.raises(Forbidden, match="it has moved to"):
            send(servers.old, TOPIC, "late", message_group="g")
        send(servers.new, TOPIC, *numbers(5, 9), message_group="g")
        assert gets_nothing(servers.new, GROUP, TOPIC), "held back while the old side has messages"
        (part, _) = servers.done("status")["parts"]
        assert (part["gets_it_at"], part["old_left"], part["new_left"]) == ("the old side", 5, 4)
        assert receive(servers.old, GROUP, TOPIC, 5) == numbers(0, 5)
        servers.until_finished(GROUP)
        assert receive(servers.new, GROUP, TOPIC, 4) == numbers(5, 9)
        assert gets_nothing(servers.new, "audit", TOPIC), "another group has not finished"
        assert receive(servers.old, "audit", TOPIC, 5) == numbers(0, 5)
        servers.until_finished("audit")
    servers.done("finish")
    assert receive(servers.new, "audit", TOPIC, 4) == numbers(5, 9)


def test_back_before_a_producer_has_changed_sides(servers: Moved) -> None:
    prepare(servers, "FIFO")
    send(servers.old, TOPIC, *numbers(0, 5), message_group="g")
    planned(servers)
    with servers.running():
        servers.until_switched()
    with servers.running("back"):
        servers.until(lambda move: move.is_turned)
        send(servers.old, TOPIC, "5", message_group="g")
        with pytest.raises(Forbidden, match=f"send to {servers.old.endpoint}"):
            send(servers.new, TOPIC, "late", message_group="g")
        assert receive(servers.old, GROUP, TOPIC, 6) == numbers(0, 6)
    servers.done("finish")
    with servers.admin(servers.new) as admin:
        assert admin.get_group(GROUP).pauses == (), "no group is held back for ever"


def test_back_after_it_waits_for_both_sides_in_order(servers: Moved) -> None:
    prepare(servers, "FIFO")
    send(servers.old, TOPIC, *numbers(0, 5), message_group="g")
    planned(servers)
    with servers.running():
        servers.until_switched()
        send(servers.new, TOPIC, *numbers(5, 9), message_group="g")
    with servers.running("back"):
        assert receive(servers.old, GROUP, TOPIC, 5) == numbers(0, 5)
        servers.until(lambda move: move.is_turned and all(each.is_switched for each in move.in_order))
        send(servers.old, TOPIC, *numbers(9, 12), message_group="g")
        assert gets_nothing(servers.old, GROUP, TOPIC)
        assert receive(servers.new, GROUP, TOPIC, 4) == numbers(5, 9)
        servers.until_finished(GROUP)
        assert receive(servers.old, GROUP, TOPIC, 3) == numbers(9, 12)
    servers.done("finish")


def test_back_without_message_groups_after_an_unfinished_end(servers: Moved) -> None:
    prepare(servers, "NORMAL")
    send(servers.old, TOPIC, *numbers(0, 5))
    planned(servers)
    with servers.running():
        servers.until(lambda move: move.stage is Stage.RUNNING)
        send(servers.new, TOPIC, *numbers(5, 9))
        assert len(receive(servers.new, GROUP, TOPIC, 5)) == 5
    with servers.running("back"):
        servers.until(lambda move: move.is_turned)
        send(servers.old, TOPIC, *numbers(9, 12))
        rest = receive(servers.old, GROUP, TOPIC, 7)
    servers.done("finish")
    assert len(rest) == 7
    with pytest.raises(Forbidden):
        send(servers.new, TOPIC, "late")


def test_after_its_end_another_move_opens_what_it_has_closed(servers: Moved) -> None:
    prepare(servers, "NORMAL")
    planned(servers)
    servers.done("finish")
    servers.old, servers.new = servers.new, servers.old
    planned(servers)
    with servers.running():
        servers.until(lambda move: move.stage is Stage.RUNNING)
        until_in_thread(lambda: not closed_because(servers))
        send(servers.new, TOPIC, "1")
    servers.done("finish")


def closed_because(servers: Moved) -> str:
    """At the new side."""
    with servers.admin(servers.new) as admin:
        return admin.get_topic(TOPIC).closed_because


def test_a_stop_inside_a_close_leaves_nothing_closed_after_going_back(servers: Moved) -> None:
    prepare(servers, "FIFO")
    planned(servers)
    with servers.running():
        servers.until_switched()
    move = servers.move
    move.topics[0].is_closed = move.topics[0].is_switched = False  # killed before it noted what it had done
    MoveFile(servers.file).save(move)
    with servers.running("back"):
        servers.until(lambda move: move.is_turned)
        send(servers.old, TOPIC, "1", message_group="g")


def test_a_move_that_is_being_turned_only_goes_back(servers: Moved) -> None:
    prepare(servers, "NORMAL")
    planned(servers)
    move = servers.move
    move.stage, move.is_turning = Stage.RUNNING, True
    MoveFile(servers.file).save(move)
    for action in ("start", "finish"):
        assert "go on with popmq move back" in servers.run(action).stderr


def test_a_group_that_has_never_received_waits_for_the_old_side(servers: Moved) -> None:
    prepare(servers, "FIFO")
    send(servers.old, TOPIC, "0", message_group="g")
    planned(servers)
    with servers.running():
        servers.until_switched()
        send(servers.new, TOPIC, "1", message_group="g")
        assert gets_nothing(servers.new, GROUP, TOPIC)
        assert any("start a consumer of billing at" in each for each in servers.done("status")["next"])
        assert receive(servers.old, GROUP, TOPIC, 1) == ["0"]
        servers.until_finished(GROUP)
        assert receive(servers.new, GROUP, TOPIC, 1) == ["1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--topic", "none", "--group", GROUP), "topic none does not exist at"),
        (("--topic", TOPIC, "--group", "none"), "consumer group none does not exist at"),
        (("--topic", TOPIC, "--group", GROUP, "--without-order", "x"), "--without-order x is none of the topics"),
        (("--topic", TOPIC), "one of the arguments --group --all-groups is required"),
    ],
)
def test_a_plan_that_cannot_be(servers: Moved, words: tuple[str, ...], said: str) -> None:
    prepare(servers, "NORMAL")
    done = servers.run("plan", *servers.sides, *words)
    assert done.returncode and said in done.stderr + done.stdout
    assert not servers.file.exists()


def test_commands_out_of_turn(servers: Moved) -> None:
    prepare(servers, "NORMAL")
    assert "plan the move first with: popmq move plan" in servers.run("start").stderr
    planned(servers)
    assert "the move has not begun" in servers.run("back").stderr
    with servers.running():
        servers.until(lambda move: move.stage is Stage.RUNNING)
        assert "another command runs the move" in servers.run("finish").stderr
        assert (
            "another command runs the move"
            in servers.run("plan", *servers.sides, "--topic", TOPIC, "--group", GROUP).stderr
        )
    assert "has a move that has begun" in servers.run("plan", *servers.sides, "--topic", TOPIC, "--group", GROUP).stderr
    servers.file.write_text("{}")
    assert "is no file of a move" in servers.run("status").stderr
