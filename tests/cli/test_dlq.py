"""popmq dlq classify, redrive, plans, plan, cancel, purge"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shell import Said, Shell

FLIGHTS = [("UA", "2300"), ("UA", "80"), ("AA", "2475"), ("UA", "719"), ("DL", "762")]
FIXES = """
from popclient.admin import Repair

def carrier(letter):
    return {"UA": "United", "AA": "American"}.get(letter.message.tag)

def body(letter):
    return "even" if len(letter.message.body) % 2 == 0 else "odd"

def metres(letter):
    miles = int(letter.message.properties["distance"])
    if letter.message.tag == "DL":
        return None
    if miles < 100:
        return Repair()
    properties = {**letter.message.properties, "metres": str(miles * 1609)}
    return Repair(body=letter.message.text + "!", keys="mended", properties=properties)

def badly(letter):
    return Repair(tag="a|b")

def breaks_late(letter):
    if letter.message.tag == "DL":
        raise KeyError("gate")
    return Repair()
"""


@pytest.fixture
def dead(shell: Shell) -> list[str]:
    """The message ids of five flights that failed at their only attempt, a minute apart."""
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "counters", "--max-attempts", "1")
    ids = []
    for number, (carrier, distance) in enumerate(FLIGHTS):
        sent = shell.json(
            "message", "send", "flights", f"flight {number}", "--tag", carrier, "--property", f"distance={distance}"
        )
        ids.append(sent["messages"][0]["message_id"])
        shell.ok("message", "receive", "flights", "--group", "counters")
        shell.broker.clock.advance("60s")
    return ids


@pytest.fixture
def fixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user's module, in the directory of the command."""
    (tmp_path / "fixes.py").write_text(FIXES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("fixes", None)


def listed(shell: Shell, *options: str) -> list[str]:
    return [each["message_id"] for each in shell.json("dlq", "list", "--group", "counters", *options)]


def received(shell: Shell) -> list[str]:
    """The bodies of what the group gets now."""
    got = shell.json("message", "receive", "flights", "--group", "counters", "--wait", "0s", "--ack")
    return sorted(each["body"] for each in got)


def told(said: Said, status: int = 0) -> Said:
    """What a command said that also tells how far it has come."""
    assert said.status == status, said
    return said


# ---- Which ones ----


@pytest.mark.user("U21")
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], [0, 1, 2, 3, 4]),
        (["--topic", "flights"], [0, 1, 2, 3, 4]),
        (["--where", "TAGS = 'UA' AND distance > 100"], [0, 3]),
        (["--where", "REASON CONTAINS 'attempt' AND ATTEMPT = 1 AND TOPIC = 'flights'"], [0, 1, 2, 3, 4]),
        (["--from", "2025-01-01T00:02:00+00:00"], [2, 3, 4]),
        (["--until", "2025-01-01T00:02:00+00:00"], [0, 1]),
        (["--from", "2025-01-01T00:01+00:00", "--until", "2025-01-01T00:02+00:00", "--where", "TAGS = 'UA'"], [1]),
        (["--from", "1h"], []),
    ],
)
def test_one_selection(shell: Shell, dead: list[str], options: list[str], wanted: list[int]) -> None:
    assert listed(shell, *options) == [dead[each] for each in wanted]
    counted = shell.json("dlq", "classify", "--group", "counters", *options)
    assert counted["count"] == len(wanted)


def test_a_selection_by_number(shell: Shell, dead: list[str]) -> None:
    numbers = [str(each["id"]) for each in shell.json("dlq", "list", "--group", "counters")]
    assert listed(shell, "--id", numbers[3], "--id", f"{numbers[0]},{numbers[1]}") == [dead[0], dead[1], dead[3]]
    assert shell.json("dlq", "show", "--group", "counters", numbers[2])["message_id"] == dead[2]


def test_a_selection_that_is_no_filter(shell: Shell, dead: list[str]) -> None:
    said = shell("dlq", "list", "--group", "counters", "--where", "distance >")
    assert (said.status, "line 1" in said.err) == (1, True), said


# ---- Counted ----


@pytest.mark.user("U21")
def test_classes_by_a_fact(shell: Shell, dead: list[str]) -> None:
    counted = shell.json("dlq", "classify", "--group", "counters", "--by", "tag")
    assert [(each["class"], each["count"], each["share"]) for each in counted["classes"]] == [
        ("UA", 3, 0.6),
        ("AA", 1, 0.2),
        ("DL", 1, 0.2),
    ]
    united = counted["classes"][0]
    assert united["example_id"] == dead[0]
    assert (united["oldest_at"], united["newest_at"]) == ("2025-01-01T00:00:30.000Z", "2025-01-01T00:03:30.000Z")
    headings, row, *_, total = shell.ok("dlq", "classify", "--group", "counters", "--by", "tag").lines
    assert headings.split() == ["CLASS", "COUNT", "SHARE", "OLDEST", "NEWEST", "EXAMPLE"]
    assert row.split()[:3] == ["UA", "3", "60.0%"]
    assert total == "5 dead letters in 3 classes"
    *_, total = shell.ok("dlq", "classify", "--group", "counters", "--by", "tag", "--where", "TAGS = 'AA'").lines
    assert total == "1 dead letter in 1 class"


@pytest.mark.parametrize(
    ("by", "classes"),
    [
        ("topic", {"flights": 5}),
        ("attempt", {1: 5}),
        ("message_group", {None: 5}),
        ("property:distance", {distance: 1 for _, distance in FLIGHTS}),
        ("property:gate", {None: 5}),
    ],
)
def test_other_facts(shell: Shell, dead: list[str], by: str, classes: dict[object, int]) -> None:
    counted = shell.json("dlq", "classify", "--group", "counters", "--by", by)
    assert {each["class"]: each["count"] for each in counted["classes"]} == classes


@pytest.mark.usefixtures("fixes")
def test_classes_by_a_function(shell: Shell, dead: list[str]) -> None:
    counted = shell.json("dlq", "classify", "--group", "counters", "--with", "fixes:carrier")
    assert {each["class"]: each["count"] for each in counted["classes"]} == {"United": 3, "American": 1, None: 1}
    assert "(none)" in shell.ok("dlq", "classify", "--group", "counters", "--with", "fixes:carrier").out
    by_body = shell.json("dlq", "classify", "--group", "counters", "--with", "fixes:body")
    assert {each["class"]: each["count"] for each in by_body["classes"]} == {"even": 5}


def test_nothing_to_count(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    assert shell.ok("dlq", "classify", "--group", "counters").lines == ["no dead letters"]


# ---- Sent back ----


@pytest.mark.user("U21")
@pytest.mark.row("L12")
def test_a_dry_run_moves_nothing_and_is_run_by_its_name(shell: Shell, dead: list[str]) -> None:
    planned = shell.json(
        "dlq", "redrive", "--group", "counters", "--where", "TAGS = 'UA'", "--reason", "mended", "--dry-run"
    )
    assert (planned["dry_run"], planned["state"], planned["planned"], planned["redriven"]) == (True, "PLANNED", 3, 0)
    assert [(each["message_id"], each["change"], each["target"]) for each in planned["redrives"]] == [
        (dead[each], "NONE", None) for each in (0, 1, 3)
    ]
    assert len(listed(shell)) == 5
    assert received(shell) == []
    plan_id = planned["plan_id"]
    done = told(shell("--json", "dlq", "redrive", "--plan", plan_id, "--rate", "1000/s"))
    assert (done.document["state"], done.document["planned"], done.document["redriven"]) == ("DONE", 0, 3)
    assert f"plan {plan_id}: 3 dead letters of counters to send back" in done.err
    assert received(shell) == ["flight 0", "flight 1", "flight 3"]
    assert listed(shell) == [dead[2], dead[4]]
    assert len(listed(shell, "--redriven-too")) == 5
    again = told(shell("--json", "dlq", "redrive", "--plan", plan_id))
    assert again.document == done.document
    assert received(shell) == []


def test_what_a_dry_run_shows(shell: Shell, dead: list[str]) -> None:
    lines = shell.ok("dlq", "redrive", "--group", "counters", "--dry-run", "--max", "2").lines
    assert lines[0].split() == ["ID", "MESSAGE", "ID", "FROM", "TARGET", "CHANGE", "REASON"]
    assert dead[0] in lines[1]
    assert "flights  group counters  NONE" in lines[1]
    assert lines[3] == "… and 3 more; --max shows them"
    assert lines[-2].startswith("nothing was sent; run the plan: popmq dlq redrive --plan ")
    plan_id = lines[-2].rpartition(" ")[2]
    assert lines[-1] == f"or cancel it: popmq dlq cancel {plan_id}"


@pytest.mark.user("U21")
def test_what_was_sent_back_is_on_record(shell: Shell, dead: list[str]) -> None:
    said = told(shell("dlq", "redrive", "--group", "counters", "--topic", "flights", "--reason", "mended"))
    assert said.out.endswith(": 5 sent back, 0 skipped, 0 not sent yet\n")
    [plan] = shell.json("dlq", "plans", "--group", "counters")
    assert (plan["group"], plan["state"], plan["redriven"], plan["reason"]) == ("counters", "DONE", 5, "mended")
    assert shell.ok("dlq", "plans").lines[1].split()[:3] == [plan["plan_id"], "counters", "DONE"]
    assert len(received(shell)) == 5
    shown = shell.json("dlq", "plan", plan["plan_id"])
    assert [each["message_id"] for each in shown["redrives"]] == dead
    assert {(each["state"], each["outcome"], each["topic"]) for each in shown["redrives"]} == {
        ("REDRIVEN", "COMMIT", "flights")
    }
    lines = shell.ok("dlq", "plan", plan["plan_id"], "--max", "3").lines
    assert "state         DONE" in lines
    assert "sent back     5" in lines
    assert lines[-1] == "… and 2 more; --max shows them"


def test_a_plan_of_ones_own_name_is_made_once(shell: Shell, dead: list[str]) -> None:
    nightly = ("dlq", "redrive", "--group", "counters", "--plan", "nightly-1", "--where", "TAGS = 'UA'")
    assert told(shell("--json", *nightly)).document["redriven"] == 3
    assert told(shell("--json", *nightly)).document["redriven"] == 3
    assert [each["plan_id"] for each in shell.json("dlq", "plans")] == ["nightly-1"]
    assert len(received(shell)) == 3


def test_to_another_topic(shell: Shell, dead: list[str]) -> None:
    shell.ok("topic", "create", "mended", "--queues", "1")
    shell.ok("group", "create", "readers")
    done = told(shell("--json", "dlq", "redrive", "--group", "counters", "--id", "1", "--to", "mended")).document
    assert (done["target"], done["redriven"]) == ("mended", 1)
    got = shell.json("message", "receive", "mended", "--group", "readers", "--wait", "0s")
    assert [each["body"] for each in got] == ["flight 0"]
    elsewhere = shell("dlq", "redrive", "--plan", done["plan_id"], "--to", "flights")
    assert elsewhere.status == 2
    assert f"plan {done['plan_id']} sends to topic mended, not to topic flights" in elsewhere.err


def test_the_rest_of_a_cancelled_plan_stays(shell: Shell, dead: list[str]) -> None:
    plan_id = shell.json("dlq", "redrive", "--group", "counters", "--dry-run")["plan_id"]
    cancelled = shell.ok("dlq", "cancel", plan_id)
    assert cancelled.lines == [f"plan {plan_id} is CANCELLED: 0 sent back, 0 skipped, 5 stay dead"]
    assert "not sent yet  5" in shell.ok("dlq", "plan", plan_id).lines
    headings, row = shell.ok("dlq", "plans").lines
    assert headings.split()[3:9] == ["SENT", "BACK", "SKIPPED", "NOT", "SENT", "YET"]
    assert row.split()[2:6] == ["CANCELLED", "0", "0", "5"]
    said = shell("dlq", "redrive", "--plan", plan_id)
    assert (said.status, received(shell), len(listed(shell))) == (1, [], 5), said


# ---- Repaired ----


@pytest.mark.usefixtures("fixes")
@pytest.mark.row("O7")
def test_repaired_sent_back_or_left(shell: Shell, dead: list[str]) -> None:
    words = ("dlq", "redrive", "--group", "counters", "--repair", "fixes:metres", "--reason", "miles")
    tried = shell.json(*words, "--dry-run")
    assert (tried["dry_run"], tried["repaired"], tried["unchanged"], tried["left"]) == (True, 3, 1, 1)
    assert [(each["message_id"], each["change"]) for each in tried["redrives"]] == [
        (dead[0], "REPAIR body,keys,properties"),
        (dead[1], "NONE"),
        (dead[2], "REPAIR body,keys,properties"),
        (dead[3], "REPAIR body,keys,properties"),
        (dead[4], "LEFT"),
    ]
    *rows, _, ends = shell.ok(*words, "--dry-run").lines
    assert ends == "3 would be sent back repaired, 1 without a change, 1 stays dead; nothing was sent"
    assert "stays dead" in rows[-1]
    assert shell.json("dlq", "plans") == []
    done = told(shell("--json", *words)).document
    assert (done["redriven"], done["skipped"], done["left"]) == (4, 0, 1)
    assert listed(shell) == [dead[4]]
    again = told(shell(*words, "--plan", done["plan_id"]))
    assert again.out == f"plan {done['plan_id']}: 0 sent back, 0 skipped, 1 stays dead\n"
    got = shell.json("message", "receive", "flights", "--group", "counters", "--wait", "0s")
    mended = {each["body"]: each for each in got}
    assert sorted(mended) == ["flight 0!", "flight 1", "flight 2!", "flight 3!"]
    assert mended["flight 0!"]["keys"] == ["mended"]
    assert mended["flight 0!"]["properties"]["metres"] == str(2300 * 1609)
    record = shell.json("dlq", "plan", done["plan_id"])
    assert [each["change"] for each in record["redrives"]] == ["REPAIR", "NONE", "REPAIR", "REPAIR"]


@pytest.mark.usefixtures("fixes")
def test_a_repair_that_fails_says_where_and_how_to_go_on(shell: Shell, dead: list[str]) -> None:
    words = ("dlq", "redrive", "--group", "counters", "--repair", "fixes:breaks_late", "--rate", "10/s")
    said = shell(*words, "--plan", "mine")
    assert said.status == 1
    assert f"(message {dead[4]}), raised KeyError: 'gate'" in said.err
    assert "stopped; the same command continues here, and sends nothing twice" in said.err
    assert len(listed(shell)) == 1, "what was judged before went back"
    went_on = told(shell("--json", "dlq", "redrive", "--group", "counters", "--repair", "fixes:metres"))
    assert went_on.document["left"] == 1


@pytest.mark.usefixtures("fixes")
def test_a_repair_that_the_server_refuses(shell: Shell, dead: list[str]) -> None:
    said = shell("dlq", "redrive", "--group", "counters", "--repair", "fixes:badly")
    assert said.status == 1
    assert "the repair of dead letter 1: " in said.err
    assert "stopped" not in said.err, "there is nothing to go on with"
    assert len(listed(shell)) == 5


# ---- Stopped ----


@pytest.mark.user("U21")
def test_ctrl_c_and_then_on(shell: Shell, dead: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from popclient.admin import pace

    waits = 0

    def interrupted(_self: pace.Pace) -> None:
        nonlocal waits
        waits += 1
        if waits > 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pace.Pace, "await_turn", interrupted)
        said = shell("dlq", "redrive", "--group", "counters", "--rate", "5/s")
    assert said.status == 130
    [plan] = shell.json("dlq", "plans")
    assert (plan["state"], plan["planned"], plan["redriven"]) == ("RUNNING", 3, 2)
    with_plan = f"the same command with --plan {plan['plan_id']} continues here, and sends nothing twice"
    assert with_plan in said.err
    done = told(shell("--json", "dlq", "redrive", "--group", "counters", "--plan", plan["plan_id"])).document
    assert (done["state"], done["redriven"]) == ("DONE", 5)
    assert len(received(shell)) == 5


# ---- Removed ----


@pytest.mark.user("U21")
def test_purge(shell: Shell, dead: list[str]) -> None:
    words = ("dlq", "purge", "--group", "counters", "--where", "TAGS = 'UA'")
    said = shell(*words)
    assert (said.status, said.out) == (2, "")
    assert "deletes 3 dead letters of counters with their copies; it cannot be undone" in said.err
    assert len(listed(shell)) == 5
    assert shell.ok(*words, "--yes").lines == ["removed 3 dead letters of counters"]
    assert listed(shell) == [dead[2], dead[4]]
    assert shell.json(*words, "--yes")["purged"] == 0
    assert shell(*words).status == 0


# ---- What is not there ----


@pytest.mark.parametrize(
    "words",
    [
        ["classify", "--group", "nobody"],
        ["redrive", "--group", "nobody"],
        ["purge", "--group", "nobody", "--yes"],
        ["redrive", "--plan", "none-of-that-name"],
        ["plan", "none-of-that-name"],
        ["cancel", "none-of-that-name"],
    ],
    ids=" ".join,
)
def test_what_is_not_there(shell: Shell, words: list[str]) -> None:
    said = shell("dlq", *words)
    assert (said.status, said.out) == (4, ""), said


def test_a_namespace_is_a_world_of_its_own(shell: Shell, dead: list[str]) -> None:
    shell.ok("--namespace", "shop", "group", "create", "counters")
    assert shell.json("--namespace", "shop", "dlq", "list", "--group", "counters") == []
    said = shell("--namespace", "shop", "dlq", "redrive", "--group", "counters")
    assert (said.status, len(listed(shell))) == (0, 5)


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_nothing_to_send_back_makes_no_plan(shell: Shell, dead: list[str], more: list[str]) -> None:
    nothing = ["dlq", "redrive", "--group", "counters", "--where", "TAGS = 'ZZ'", *more]
    assert shell.ok(*nothing).lines == ["no dead letter of counters is selected: nothing to send back"]
    assert shell.json(*nothing)["plan_id"] is None
    assert shell.json("dlq", "plans") == []


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--repair", "fixes:metres"]])
def test_a_named_plan_of_nothing_is_there_and_done(shell: Shell, dead: list[str], fixes: None, more: list[str]) -> None:
    said = shell("dlq", "redrive", "--group", "counters", "--where", "TAGS = 'ZZ'", "--plan", "zero", *more)
    assert (said.status, "run the plan" in str(said)) == (0, False)
    plan = shell.json("dlq", "plan", "zero")
    assert (plan["state"], plan["planned"], plan["redriven"]) == ("DONE", 0, 0)
    assert "zero: 0 sent back" in shell("dlq", "redrive", "--plan", "zero").lines[-1]


def test_no_plans(shell: Shell) -> None:
    assert shell.ok("dlq", "plans").lines == ["no redrive plans"]
