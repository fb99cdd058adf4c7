"""popmq group …"""

from __future__ import annotations

import pytest

from popclient import FilterExpression, SimpleConsumer
from popclient.cli import commands
from popserver.model.group import MAX_ATTEMPTS_MAX
from popserver.model.topic import QUEUE_COUNT_MAX
from tests.support.shell import Shell


def test_create(shell: Shell) -> None:
    (line,) = shell.ok("group", "create", "counters").lines
    assert line.startswith("created consumer group counters: 17 attempts, retry after 10s,30s,1m,2m,")
    assert line.endswith(",10m,20m,30m,1h,2h, in order after 3s, history errors")
    options = ["--max-attempts", "3", "--retry", "500ms,10s,1h30m", "--consume-from", "latest", "--history", "all"]
    made = shell.json("group", "create", "auditors", *options, "--fifo-retry", "1s")
    assert made["fifo_retry_interval_ms"] == 1_000
    assert made["max_attempts"] == 3
    assert made["retry_intervals_ms"] == [500, 10_000, 5_400_000]
    assert (made["consume_from"], made["history"], made["mode"]) == ("LATEST", "all", "")


@pytest.mark.row("L7")
def test_exponential_intervals(shell: Shell) -> None:
    (line,) = shell.ok("group", "create", "counters", "--retry", "exponential").lines
    assert "retry after exponential:initial=5s,max=2h,multiplier=2, in order" in line
    given = ["--retry", "exponential:initial=1s,multiplier=1.1"]
    changed = shell.json("group", "update", "counters", *given)
    assert changed["exponential_retry"] == {"initial_ms": 1_000, "max_ms": 7_200_000, "multiplier": 1.1}
    assert changed["retry_intervals_ms"] == []
    assert "exponential:initial=1s,max=2h,multiplier=1.1" in shell.ok("group", "show", "counters").out
    back = shell.json("group", "update", "counters", "--retry", "1s")
    assert (back["exponential_retry"], back["retry_intervals_ms"]) == (None, [1_000])
    refused = shell("group", "update", "counters", "--retry", "exponential:multiplier=101")
    assert (refused.status, "1 to 100, not 101" in refused.err) == (1, True)
    for wrong in ("exponential:first=1s", "exponential:initial", "exponential:multiplier=two"):
        assert shell("group", "update", "counters", "--retry", wrong).status == 2


def test_list(shell: Shell) -> None:
    assert shell.ok("group", "list").lines == ["no consumer groups"]
    shell.ok("group", "create", "counters")
    headings, row = shell.ok("group", "list").lines
    assert headings.split()[0] == "GROUP"
    assert row.split()[:5] == ["counters", "17", "EARLIEST", "errors", "unused"]
    assert [each["name"] for each in shell.json("group", "list")] == ["counters"]


def test_show_says_how_far_it_is_behind(shell: Shell) -> None:
    shell.ok("topic", "create", "flights")
    shell.ok("group", "create", "counters", "--retry", "1s")
    assert shell.ok("group", "show", "counters").lines[-1] == "no group has received from a topic yet"
    shell.ok("message", "send", "flights", "x", "--count", "5")
    shell.ok("message", "receive", "flights", "--group", "counters", "--max", "2")
    shown = shell.json("group", "show", "counters")
    (lag,) = shown["lag"]
    assert (lag["ready"], lag["inflight"], lag["waiting_retry"], lag["dead_letters"]) == (3, 2, 0, 0)
    assert lag["oldest_ready_at"] == "2025-01-01T00:00:00.000Z"
    assert shown["mode"] == "POP"
    lines = shell.ok("group", "show", "counters").lines
    assert "retry after     1s" in lines
    assert lines[-1].split()[:6] == ["counters", "flights", "3", "2", "0", "0"]


@pytest.mark.row("G5")
def test_show_says_who_works_for_it_and_that_they_disagree(shell: Shell) -> None:
    shell.ok("topic", "create", "flights")
    shell.ok("group", "create", "counters")
    wishes = {"flights": FilterExpression("A || B")}, {"flights": FilterExpression.sql("delay > 30")}
    with (
        SimpleConsumer(shell.endpoint, group="counters", topics=wishes[0]) as one,
        SimpleConsumer(shell.endpoint, group="counters", topics=wishes[1]) as other,
    ):
        shown = shell.json("group", "show", "counters")
        assert [
            (each["client_id"], each["kind"], each["connected"], each["subscriptions"]) for each in shown["consumers"]
        ] == [
            (one.client_id, "SIMPLE", True, [{"topic": "flights", "kind": "TAG", "expression": "A || B"}]),
            (other.client_id, "SIMPLE", True, [{"topic": "flights", "kind": "SQL", "expression": "delay > 30"}]),
        ]
        (hint,) = shown["hints"]
        assert hint == (
            "consumers of group 'counters' have different subscriptions, so each gets or skips messages of the others:"
            f" {one.client_id} has topic 'flights' by TAG 'A || B',"
            f" {other.client_id} has topic 'flights' by SQL 'delay > 30';"
            " give all of them the same subscription and model, or give each its own group"
        )
        assert shell.json("status")["hints"] == [hint]
        lines = shell.ok("group", "show", "counters").lines
        assert f"hint: {hint}" in lines
        rows = [line.split() for line in lines if line.startswith((one.client_id, other.client_id))]
        assert [(row[1], row[2], row[4:]) for row in rows] == [
            ("SIMPLE", "yes", ["flights", "TAG", "A", "||", "B"]),
            ("SIMPLE", "yes", ["flights", "SQL", "delay", ">", "30"]),
        ]
    shown = shell.json("group", "show", "counters")
    assert (shown["consumers"], shown["hints"]) == ([], [])


@pytest.mark.row("L16")
def test_show_says_how_many_deliveries_are_retries(shell: Shell) -> None:
    """Above a tenth a hint says what retries are for."""
    shell.ok("topic", "create", "flights")
    shell.ok("group", "create", "counters")
    assert shell.json("group", "show", "counters")["redeliveries"]["deliveries"] == 0
    shell.ok("message", "send", "flights", "x", "--count", "20")
    receive = ["message", "receive", "flights", "--group", "counters", "--invisible", "10s"]
    shell.ok(*receive, "--ack", "--max", "18")
    shell.ok(*receive, "--max", "2")
    shell.broker.clock.advance("10s")
    shell.ok(*receive, "--max", "2")
    shown = shell.json("group", "show", "counters")
    assert (shown["redeliveries"]["deliveries"], shown["redeliveries"]["retries"], shown["hints"]) == (22, 2, [])
    shell.broker.clock.advance("10s")
    shell.ok(*receive, "--max", "1")
    shown = shell.json("group", "show", "counters")
    assert shown["redeliveries"] == {"deliveries": 23, "retries": 3, "over_ms": 20_000}
    (hint,) = shown["hints"]
    assert hint.startswith("3 of the last 23 deliveries to group 'counters' (13%) were retries;")
    assert "not a throttle" in hint
    assert shell.json("status")["hints"] == [hint]
    lines = shell.ok("group", "show", "counters").lines
    assert "retries         3 of 23 deliveries (13%) of this server in the last 20s" in lines


def test_update(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    said = shell.ok("group", "update", "counters", "--max-attempts", "2", "--retry", "0s", "--history", "none")
    assert said.lines == ["consumer group counters: 2 attempts, retry after 0s, in order after 3s, history none"]
    assert shell.json("group", "update", "counters", "--retry", "1m")["max_attempts"] == 2
    assert shell.json("group", "update", "counters", "--fifo-retry", "0s")["fifo_retry_interval_ms"] == 0
    assert "retry in order  0s" in shell.ok("group", "show", "counters").lines
    nothing = shell("group", "update", "counters")
    assert (nothing.status, nothing.out) == (2, "")
    for what in (
        "--max-attempts N (",
        "--retry DURATIONS|exponential (",
        "--fifo-retry DURATION (",
        "--history none|errors|all (",
    ):
        assert what in nothing.err
    too_long = shell("group", "update", "counters", "--fifo-retry", "13h")
    assert too_long.err == "popmq: a retry interval is 0 s to 12 h, not 13 h\n"
    too_many = shell("group", "update", "counters", "--max-attempts", "1001")
    assert too_many.status == 2
    assert "--max-attempts: 1001 is not between 1 and 1,000 (" in too_many.err


def test_the_limits_of_the_parser_are_those_of_the_server() -> None:
    """The client does not import the server, so it has copies of them."""
    assert (commands.QUEUES_MAX, commands.ATTEMPTS_MAX) == (QUEUE_COUNT_MAX, MAX_ATTEMPTS_MAX)


def test_delete(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    assert shell("group", "delete", "counters").status == 2
    assert shell.ok("group", "delete", "counters", "--yes").lines == ["deleted consumer group counters"]
    assert shell("group", "show", "counters").status == 4


def test_what_exists_is_refused(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    said = shell("group", "create", "counters")
    assert said.status == 1
    assert "popmq group update" in said.err


@pytest.mark.parametrize("action", [["show"], ["update", "--history", "all"], ["delete", "--yes"]])
def test_a_missing_group_is_not_found(shell: Shell, action: list[str]) -> None:
    said = shell("group", action[0], "nobody", *action[1:])
    assert (said.status, said.out) == (4, "")
    assert said.err.startswith(
        "popmq: consumer group 'nobody' does not exist; create it with: popmq group create nobody,"
    )
    assert said.err.endswith(" or see popmq group list\n")


def test_a_deletion_names_the_consumers_that_would_make_it_again(shell: Shell) -> None:
    shell.ok("topic", "create", "flights")
    shell.ok("group", "create", "counters")
    with SimpleConsumer(shell.endpoint, "counters", "flights"):
        asked = shell("group", "delete", "counters").err
    assert "stop its 1 connected consumer first, because a server that creates groups on first use" in asked
    assert "counters" in shell.ok("group", "list").out


def test_created_unless_it_exists(shell: Shell) -> None:
    create = ["group", "create", "counters", "--if-not-exists"]
    options = ["--max-attempts", "3", "--retry", "10s,1m", "--fifo-retry", "1s", "--consume-from", "latest"]
    assert shell.ok(*create, *options).lines[0].startswith("created consumer group counters: 3 attempts")
    there = "consumer group counters exists and was not changed"
    for given in ([], options):
        assert shell.ok(*create, *given).lines == [there]
    others = ["--max-attempts", "4", "--retry", "exponential", "--history", "all", "--lite", "shared"]
    differs = (
        "--max-attempts is 3, not 4; --retry is 10s,1m, not exponential:initial=5s,max=2h,multiplier=2;"
        " --history is errors, not all; --lite is none, not SHARED"
    )
    assert shell.ok(*create, *others).lines == [there, f"it differs: {differs}; see popmq group update"]
    assert shell.json(*create, *others)["max_attempts"] == 3
