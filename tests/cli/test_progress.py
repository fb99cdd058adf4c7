"""popmq group lag, reset, skip, clone, offsets …"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from popclient import PullConsumer
from popclient.admin import Admin
from popserver.administration import flow as administration_flow
from tests.support.shell import Shell


@pytest.fixture(autouse=True)
def _flights(shell: Shell) -> None:
    """A topic of two queues with five messages each, and a group that pulls."""
    shell.ok("topic", "create", "flights", "--queues", "2")
    shell.ok("group", "create", "reports")
    for _ in range(2):
        shell.ok("message", "send", "flights", "x", "--count", "5")


def consume(shell: Shell, group: str = "reports", count: int = 4) -> None:
    """The group pulls some messages of the first queue, and commits."""
    with PullConsumer(shell.endpoint, group, consume_from="CONSUME_FROM_FIRST_OFFSET") as consumer:
        queue = consumer.queues("flights")[0]
        consumer.assign(queue)
        consumer.commit({queue: 0})
        left = count
        while left:
            left -= len(consumer.poll(timeout=5, max_messages=left))
        consumer.commit()


def test_lag_is_a_line_for_each_queue_and_the_sum(shell: Shell) -> None:
    assert shell.ok("group", "lag", "reports").lines == ["no progress in any topic"]
    consume(shell)
    headings, row, empty, total = shell.ok("group", "lag", "reports").lines
    assert headings.split() == "TOPIC QUEUE MIN MAX OFFSET READY INFLIGHT WAITING RETRY LOCKED BY OLDEST READY".split()
    assert row.split() == ["flights", "0", "0", "5", "4", "1", "0", "0", "2025-01-01T00:00:00+00:00"]
    assert (empty, total) == ("", "1 ready, 0 inflight, 0 waiting retry in 1 queues")
    shown = shell.json("group", "lag", "reports", "--topic", "flights")
    assert (shown["ready"], [each["offset"] for each in shown["queues"]]) == (1, [4])
    assert shell("group", "lag", "nobody").status == 4


@pytest.mark.row("H13")
def test_reset_goes_anywhere_and_says_from_where(shell: Shell) -> None:
    consume(shell)
    tried = shell.json("group", "reset", "reports", "flights", "--to", "end", "--dry-run")
    assert tried["dry_run"]
    assert [(each["from_offset"], each["to_offset"]) for each in tried["moved"]] == [(4, 5), (None, 5)]
    assert shell.json("group", "lag", "reports")["queues"][0]["offset"] == 4, "nothing is changed"
    headings, *rows, empty, said = shell.ok("group", "reset", "reports", "flights", "--to", "beginning", "--yes").lines
    assert (empty, said) == ("", "moved reports in flights to the beginning")
    assert headings.split() == ["TOPIC", "QUEUE", "FROM", "TO"]
    assert [each.split() for each in rows] == [["flights", "0", "4", "0"], ["flights", "1", "none", "0"]]
    shell.ok("group", "reset", "reports", "flights", "--offset", "3", "--queue", "1", "--yes")
    shell.ok("group", "reset", "reports", "flights", "--to", "2026-11-20T10:00+01:00", "--queue", "0", "--yes")
    assert [each["offset"] for each in shell.json("group", "lag", "reports")["queues"]] == [5, 3]
    shell.ok("group", "reset", "reports", "flights", "--to", "2020-11-20T10:00", "--yes")
    assert [each["offset"] for each in shell.json("group", "lag", "reports")["queues"]] == [0, 0]


@pytest.mark.parametrize(
    ("position", "counts"),
    [
        (
            "2020-01-01T10:00:05+01:00",
            "2020-01-01T09:00:05Z: 4 messages of 2 queues will be delivered again, 0 messages",
        ),
        (
            "2100-01-01T00:00",
            "2099-12-31T22:00:00Z, which is in the future, so to the end:"
            " 0 messages of 2 queues will be delivered again, 6 messages",
        ),
        ("end", "the end: 0 messages of 2 queues will be delivered again, 6 messages"),
    ],
)
def test_a_dry_run_says_what_the_question_says(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, position: str, counts: str
) -> None:
    """And which moment it understood; a time without a zone is local."""
    monkeypatch.setenv("TZ", "Europe/Helsinki")
    time.tzset()
    try:
        consume(shell)
        words = ("group", "reset", "reports", "flights", "--to", position)
        *_, sentence, nothing = shell.ok(*words, "--dry-run").lines
        asked = shell(*words)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert sentence == f"this moves reports in flights to {counts} will not be delivered, and holds and retries end"
    assert nothing == "nothing has changed; run it without --dry-run to change it"
    assert asked.status == 2
    assert sentence in asked.err


def test_a_reset_goes_to_a_duration_ago_or_to_an_offset(shell: Shell) -> None:
    """The clock of the server stands in 2025, so all its messages are older than that by the shell's clock."""
    words = ("group", "reset", "reports", "flights", "--force")
    before = datetime.now(UTC) - timedelta(hours=2, seconds=1)
    said = shell.ok(*words, "--to", "2h", "--yes").lines[-1]
    moment = datetime.fromisoformat(said.removeprefix("moved reports in flights to "))
    assert before <= moment <= before + timedelta(seconds=60)
    assert [each["offset"] for each in shell.json("group", "lag", "reports")["queues"]] == [5, 5]
    moved = shell.ok(*words, "--offset", "3", "--queue", "1", "--yes").lines[-1]
    assert moved == "moved reports in flights to offset 3 of queue 1"
    assert "to the beginning of queue 0: 5 mess" in shell(*words, "--to", "beginning", "--queue", "0").err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--to", "yesterday"), 2, "'yesterday' is not a valid position; write beginning, end, 2026-11-20T10:00"),
        (("--offset", "3"), 2, "offset 3 is an offset of one queue; name it with --queue ID"),
        (
            ("--offset", "6", "--queue", "0", "--force"),
            1,
            "offset 6 is not in queue 0 of topic 'flights', which stores 0 to 5",
        ),
        (("--to", "end", "--queue", "7"), 1, "topic 'flights' has no queue 7; it has 2, numbered 0 to 1"),
        ((), 2, "one of the arguments --to --offset is required"),
    ],
)
def test_a_reset_to_nowhere_is_refused(shell: Shell, words: tuple[str, ...], status: int, said: str) -> None:
    refused = shell("group", "reset", "reports", "flights", *words, "--yes")
    assert refused.status == status
    assert said in refused.err


def test_skip(shell: Shell) -> None:
    shell.ok("group", "create", "workers")
    shell.ok("topic", "create", "jobs", "--queues", "1")
    shell.ok("message", "send", "jobs", "x", "--count", "3")
    with Admin(shell.endpoint) as admin:
        first, second, _ = (each.message_id for each in admin.peek_messages("jobs"))
    shell.ok("message", "receive", "jobs", "--group", "workers", "--max", "1")
    held = shell("group", "skip", "workers", first, "--yes")
    assert held.status == 1
    assert "is not skipped for group 'workers': it is INFLIGHT: client" in held.err
    assert "wait until its holder acks it or its hold ends, or end the hold with: popmq group skip --force" in held.err
    assert shell.ok("group", "skip", "workers", second.lower(), "--topic", "jobs", "--yes").out.endswith(
        "it was READY\n"
    )
    assert shell("group", "skip", "workers", second, "--yes").err.count("there is nothing left to skip") == 1
    assert shell("group", "skip", "workers", "0" * 34, "--yes").status == 4
    (left,) = shell.json("message", "receive", "jobs", "--group", "workers")
    assert left["message_id"] not in {first, second}


def test_clone(shell: Shell) -> None:
    consume(shell)
    shell.ok("group", "create", "copy")
    cloned = shell.json("group", "clone", "reports", "copy")
    assert cloned["moved"] == [{"topic": "flights", "queue_id": 0, "from_offset": None, "to_offset": 4}]
    again = shell("group", "clone", "reports", "copy", "--topic", "flights")
    assert again.status == 1
    assert "'copy' has progress in topic 'flights' already; move it with: popmq group reset copy flights" in again.err


def test_nothing_to_clone(shell: Shell) -> None:
    nothing = shell("group", "clone", "reports", "copy")
    assert nothing.status == 1
    assert "consumer group 'reports' has no progress in any topic; there is nothing to clone" in nothing.err


@pytest.mark.row("H6")
def test_what_is_exported_is_imported(shell: Shell, tmp_path: Path) -> None:
    consume(shell)
    shell.ok("group", "reset", "reports", "flights", "--offset", "2", "--queue", "1", "--yes")
    file = tmp_path / "offsets.json"
    text = shell.ok("group", "offsets", "export", "reports").out
    assert json.loads(text) == {"offsetTable": {"flights@reports": {"0": 4, "1": 2}}}
    assert shell.ok("group", "offsets", "export", "reports", str(file)).lines == [
        f"wrote the offsets of 2 queues to {file}"
    ]
    assert file.read_text() == text
    shell.ok("group", "reset", "reports", "flights", "--to", "end", "--yes")
    shell.ok("group", "offsets", "import", "reports", str(file), "--yes")
    assert shell.ok("group", "offsets", "export", "reports").out == text, "back as well as ahead"
    shell.ok("group", "create", "heirs")
    shell.ok("group", "offsets", "import", "heirs", "-", "--as", "reports", "--yes", stdin=text.encode())
    assert [each["offset"] for each in shell.json("group", "lag", "heirs")["queues"]] == [4, 2]


@pytest.mark.row("H6")
def test_the_classic_writers_file_is_read(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "consumerOffset.json"
    file.write_text('{\n\t"offsetTable":{"flights@reports":{0:3,1:5},"flights@others":{0:1}}\n}')
    moved = shell.json("group", "offsets", "import", "reports", str(file), "--yes")["moved"]
    assert [(each["queue_id"], each["to_offset"]) for each in moved] == [(0, 3), (1, 5)]


@pytest.mark.row("H6")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"offsetTable": {"flights@reports": {"0": 3', "at line 1, column 44 (character 43 of 43)"),
        ('{"offsetTable": {"flights@others": {"0": 3}}}', "has no offsets of group reports; its groups are: others;"),
        ('{"offsetTable": {"flights@reports": {"0": 6}}}', "offset 6 is not in queue 0 of topic 'flights'"),
        ('{"offsetTable": {"flights@reports": {"0": 3, "2": 0}}}', "topic 'flights' has no queue 2; it has 2"),
        ('{"offsetTable": {"nosuch@reports": {"0": 3}}}', "topic 'nosuch' does not exist"),
        ('{"offsetTable": {"flights@reports": {"4294967296": 3}}}', "at most offset 9223372036854775807 and queue"),
        ("", "at line 1, column 1 (character 0 of 0)"),
        ("[" * 100_000, "lists or objects stand in each other too deeply"),
        (f'{{"offsetTable": {{"flights@reports": {{"0": {"1" * 5_000}}}}}}}', "value has 5000 digits"),
        (f'{{"offsetTable": {{"flights@reports": {{"{"1" * 5_000}": 3}}}}}}', "a queue id is a whole number"),
        ('{"offsetTable": {"flights@\\u001b[2Jothers": {"0": 3}}}', "its groups are: \\x1b[2Jothers;"),
        ('{"offsetTable": {"flights\\u009b2J@reports": {"0": 3}}}', "\\x9b2J"),
    ],
)
def test_a_file_that_is_torn_or_wrong_changes_nothing(shell: Shell, tmp_path: Path, text: str, said: str) -> None:
    consume(shell)
    file = tmp_path / "offsets.json"
    file.write_text(text)
    before = shell.ok("group", "lag", "reports").out
    refused = shell("group", "offsets", "import", "reports", str(file), "--yes")
    assert refused.status in {1, 2, 4}
    assert said in refused.err
    assert refused.err.replace("\n", "").isprintable()
    assert shell.ok("group", "lag", "reports").out == before


def test_offsets_are_for_groups_that_own_whole_queues(shell: Shell, tmp_path: Path) -> None:
    shell.ok("group", "create", "workers")
    shell.ok("message", "receive", "flights", "--group", "workers", "--max", "1")
    refused = shell("group", "offsets", "export", "workers")
    assert refused.status == 2
    assert "consumer group workers consumes message by message" in refused.err
    file = tmp_path / "offsets.json"
    file.write_text('{"offsetTable": {"flights@workers": {"0": 3}}}')
    refused = shell("group", "offsets", "import", "workers", str(file), "--yes")
    assert refused.status == 1
    assert "'workers' consumes in mode POP" in refused.err
    missing = shell("group", "offsets", "import", "workers", str(tmp_path / "none.json"))
    assert (missing.status, "cannot be read: No such file" in missing.err) == (2, True)
    unwritable = shell("group", "offsets", "export", "reports", str(tmp_path))
    assert (unwritable.status, "cannot be written" in unwritable.err) == (2, True)
    file.write_bytes(b"\xff\xfe")
    assert "is no text: byte 0 is not UTF-8" in shell("group", "offsets", "import", "workers", str(file), "--yes").err


def test_pauses_that_are_left_out_are_counted(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration_flow, "LISTED_PAUSES_MAX", 1)
    shell.ok("group", "pause", "reports")
    shell.ok("group", "pause", "reports", "--topic", "flights")
    assert "all topics, and 1 more" in shell.ok("group", "list").lines[1]
    assert shell.json("group", "list")[0]["more_pauses"] == 1
    monkeypatch.setattr(administration_flow, "PAGE_MAX", 1)
    assert ["paused", "and 1 more"] in [line.split(maxsplit=1) for line in shell.ok("group", "show", "reports").lines]
    assert shell.ok("group", "pause", "reports").lines[1:] == ["paused: and 1 more"]


def test_pause_and_resume(shell: Shell) -> None:
    since = "since 2025-01-01T00:00:00+00:00"
    assert shell.ok("group", "pause", "reports").lines == [f"paused: all topics, {since}"]
    shell.ok("group", "pause", "reports", "--topic", "flights")
    shown = shell.ok("group", "show", "reports").lines
    assert [line.split(maxsplit=1) for line in shown if line.startswith("paused")] == [
        ["paused", f"all topics, {since}"],
        ["paused", f"topic flights, {since}"],
    ]
    assert "all topics, topic flights" in shell.ok("group", "list").lines[1]
    assert [each["topic"] for each in shell.json("group", "show", "reports")["pauses"]] == [None, "flights"]
    resumed = shell.json("group", "resume", "reports")
    assert resumed["pauses"] == [
        {"topic": "flights", "message_group": None, "paused_at": "2025-01-01T00:00:00.000Z", "paused_by": ""}
    ]
    last = shell.ok("group", "resume", "reports", "--topic", "flights")
    assert last.lines == ["consumer group reports is not paused"]
    refused = shell("group", "pause", "reports", "--message-group", "LH400")
    assert refused.status == 1
    assert "has not received from any topic with message groups" in refused.err
    assert shell("group", "pause", "nobody").status == 4


def test_a_pause_is_shown_where_messages_are_counted(shell: Shell) -> None:
    consume(shell)
    hint = "group 'reports' is paused, and 1 message waits"
    assert not any(hint in line for line in shell.ok("status").lines)
    shell.ok("group", "pause", "reports", "--topic", "flights")
    assert any(hint in line for line in shell.ok("status").lines)
    *_, last = shell.ok("group", "lag", "reports").lines
    assert last.startswith("paused: topic flights, since ")


def test_a_pause_is_no_reason_why_a_message_cannot_be_skipped(shell: Shell) -> None:
    shell.ok("topic", "create", "jobs", "--queues", "1")
    shell.ok("group", "create", "workers")
    shell.ok("message", "send", "jobs", "x")
    shell.ok("message", "receive", "jobs", "--group", "workers", "--ack")
    first, second = (
        each["message_id"] for each in shell.json("message", "send", "jobs", "x", "--count", "2")["messages"]
    )
    shell.ok("group", "pause", "workers")
    refused = shell("group", "skip", "workers", second, "--yes")
    assert "it is READY: group 'workers' has 1 message to read before it; only the next message" in refused.err
    assert "paused" not in refused.err
    shell.ok("group", "skip", "workers", first, "--yes")


def test_a_held_message_is_skipped_by_force(shell: Shell) -> None:
    shell.ok("topic", "create", "jobs", "--queues", "1")
    shell.ok("group", "create", "workers")
    shell.ok("message", "send", "jobs", "x")
    (held,) = shell.json("message", "receive", "jobs", "--group", "workers")
    refused = shell("group", "skip", "workers", held["message_id"], "--yes")
    assert "popmq group skip --force" in refused.err
    said = shell.ok("group", "skip", "workers", held["message_id"], "--force", "--yes").lines[0]
    assert f"skipped {held['message_id']} for workers; it was INFLIGHT, held by client " in said
    assert said.endswith(" until 2025-01-01T00:00:30+00:00")
