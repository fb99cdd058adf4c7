"""popmq dlq …, popmq status"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from popserver import embedded
from tests.support.shell import Shell, installed
from tests.support.waiting import soon


@pytest.fixture
def dead(shell: Shell) -> list[str]:
    """The ids of two messages that failed at their only attempt."""
    shell.ok("topic", "create", "flights", "--queues", "1")
    shell.ok("group", "create", "counters", "--max-attempts", "1")
    sent = shell.json("message", "send", "flights", "hello", "--tag", "UA", "--count", "2")
    shell.ok("message", "receive", "flights", "--group", "counters")
    shell.broker.clock.advance("31s")
    return [each["message_id"] for each in sent["messages"]]


@pytest.mark.row("L7")
def test_list(shell: Shell, dead: list[str]) -> None:
    headings, *rows = shell.ok("dlq", "list", "--group", "counters").lines
    assert headings.split()[:4] == ["ID", "MESSAGE", "ID", "TOPIC"]
    assert [row.split()[1] for row in rows] == dead
    assert all(row.endswith("hello") for row in rows)
    first, second = shell.json("dlq", "list", "--group", "counters")
    assert [first["message_id"], second["message_id"]] == dead
    assert (first["topic"], first["delivery_attempt"], first["group"]) == ("flights", 1, "counters")
    assert first["dead_at"] == "2025-01-01T00:00:30.000Z"
    assert first["message"]["dead_letter_of"] == {"topic": "flights", "message_id": dead[0]}
    assert first["message"]["tag"] == "UA"
    assert shell.json("dlq", "list", "--group", "counters", "--max", "1") == [first]
    assert shell.json("dlq", "list", "--group", "counters", "--after", str(first["id"])) == [second]
    assert shell.json("dlq", "list", "--group", "counters", "--topic", "flights") == [first, second]


def test_show(shell: Shell, dead: list[str]) -> None:
    assert (
        shell.json("dlq", "show", "--group", "counters", dead[1]) == shell.json("dlq", "list", "--group", "counters")[1]
    )
    lines = shell.ok("dlq", "show", "--group", "counters", dead[1]).lines
    assert "came from       flights" in lines
    assert f"dead letter of  flights {dead[1]}" in lines
    assert lines[-1] == "hello"


def test_what_is_not_there(shell: Shell) -> None:
    shell.ok("group", "create", "counters")
    assert shell.ok("dlq", "list", "--group", "counters").lines == ["no dead letters"]
    assert shell("dlq", "list", "--group", "nobody").status == 4
    assert shell("dlq", "list", "--group", "counters", "--topic", "nowhere").status == 4
    missing = shell("dlq", "show", "--group", "counters", "nope")
    assert missing.status == 4
    assert "popmq dlq list --group counters" in missing.err


def test_status(shell: Shell, dead: list[str]) -> None:
    shell.ok("message", "send", "flights", "again")
    status = shell.json("status")
    assert status["endpoint"] == shell.endpoint
    assert (status["topics"], status["groups"], status["dead_letters"]) == (1, 1, 2)
    assert status["messages"] == 3  # without dead letters, as the topic of dead letters is none of the topics
    assert status["now"] == "2025-01-01T00:00:31.000Z"
    (lag,) = status["lag"]
    assert (lag["group"], lag["topic"], lag["ready"], lag["dead_letters"]) == ("counters", "flights", 1, 2)
    lines = shell.ok("status").lines
    assert lines[0].endswith(f"at {shell.endpoint}, up 31s")
    assert any(line.split() == ["messages", "3"] for line in lines)
    assert lines[-1].split()[:6] == ["counters", "flights", "1", "0", "0", "2"]


@pytest.mark.usefixtures("dead")
def test_every_table_counts_the_dead_letters_of_deleted_topics(shell: Shell) -> None:
    shell.ok("topic", "create", "trains", "--queues", "1")
    shell.ok("message", "send", "trains", "late")
    shell.ok("message", "receive", "trains", "--group", "counters", "--wait", "1s")
    shell.broker.clock.advance("31s")
    shell.ok("topic", "delete", "flights", "--yes")
    shell.ok("group", "create", "others")

    status, shown = shell.json("status"), shell.json("group", "show", "counters")
    assert status["dead_letters"] == 3
    for document in (status, shown):
        assert [(each["topic"], each["dead_letters"]) for each in document["lag"]] == [("trains", 1)]
        assert document["dead_elsewhere"] == [{"group": "counters", "topic": None, "dead_letters": 2}]
    for said in (shell.ok("status"), shell.ok("group", "show", "counters")):
        *_, alive, deleted = said.lines
        assert (alive.split()[1:6], deleted.split()) == (
            ["trains", "0", "0", "0", "1"],
            ["counters", "(deleted)", "0", "0", "0", "2"],
        )
    assert shell.json("group", "show", "others")["dead_elsewhere"] == []
    rows = shell.json("top", "--once", "--sort", "d")
    assert [(row["topic"], row["dlq"]) for row in rows] == [(None, 2), ("trains", 1)]
    assert "(deleted)" in shell.ok("top", "--once").out
    assert "deletes 3 dead letters of counters" in shell("dlq", "purge", "--group", "counters").err
    asked = shell("group", "delete", "counters").err
    assert "deletes consumer group counters with its progress in 1 topic and 3 dead letters" in asked


def test_the_status_shows_the_space_of_the_database(shell: Shell) -> None:
    """The server of these tests is in memory."""
    storage = shell.json("status")["storage"]
    assert storage.pop("database_bytes") > 100_000
    assert storage == {"wal_bytes": None, "disk_free_bytes": None, "disk_bytes": None}
    assert shell.json("status")["servers"] == []
    (line,) = [line for line in shell.ok("status").lines if line.startswith("space")]
    assert re.fullmatch(r"space +database \d+\.\d [KM]iB", line)


def test_the_status_of_a_file_shows_its_disk(tmp_path: Path) -> None:
    with embedded(tmp_path / "popmq.db") as broker:
        lines = installed("--endpoint", broker.endpoint, "status").lines
    (line,) = [line for line in lines if line.startswith("space")]
    assert re.fullmatch(r"space +database .*, WAL .*B, \d.*B of \d.*B are free on its disk", line)


def test_the_status_shows_the_servers_of_a_postgres(postgres_url: str) -> None:
    with embedded(postgres_url) as one, embedded(postgres_url) as other:
        soon(lambda: len(json.loads(installed("--json", "--endpoint", one.endpoint, "status").out)["servers"]) == 2)
        said = installed("--endpoint", one.endpoint, "status")
    rows = [line.split() for line in said.lines if " running " in line]
    assert sorted(row[0] for row in rows) == sorted([one.endpoint, other.endpoint])


def test_the_status_shows_the_budgets(shell: Shell) -> None:
    """All of them in JSON, and to people those that were or may soon be exhausted."""
    budget = shell.broker.app.broker.engine.budgets["send backlog"]
    assert "--send-backlog" not in "\n".join(shell.ok("status").lines)
    budget.take(budget.limit)
    budget.take(7)
    budget.give_back(budget.limit)
    shown = next(each for each in shell.json("status")["budgets"] if each["name"] == "send backlog")
    mib = 128 * 1024 * 1024
    assert shown == {
        "name": "send backlog",
        "option": "send_backlog",
        "unit": "bytes",
        "limit": mib,
        "used": 0,
        "peak": mib,
        "refused": 1,
    }
    (line,) = [line for line in shell.ok("status").lines if "--send-backlog" in line]
    assert line.split() == ["send", "backlog", "bytes", "0", str(mib), str(mib), "1", "--send-backlog"]
