"""What `popmq dlq` takes, and the sentence for what it does not."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from popclient.admin import DeadLetter, Repair
from popclient.cli.arguments import moment, rate
from popclient.cli.dead_letters.redrive import Repaired, batches
from popclient.cli.output import ProgressLog
from tests.support.shell import Shell

SELECTING = (["list"], ["classify"], ["redrive"], ["export", "--to", "x.jsonl"], ["purge"])


@pytest.mark.parametrize(("written", "a_second"), [("100/s", 100), ("30/m", 0.5), ("36/h", 0.01)])
def test_rates(written: str, a_second: float) -> None:
    assert rate(written) == pytest.approx(a_second)


def test_moments() -> None:
    assert moment("2026-11-20T10:00+01:00") == datetime.fromisoformat("2026-11-20T09:00+00:00")
    assert moment("2026-11-20T10:00") == datetime.fromisoformat("2026-11-20T10:00").astimezone()
    before = datetime.now().astimezone()
    assert before <= moment("2h") + timedelta(hours=2) <= datetime.now().astimezone()


@pytest.mark.parametrize("words", [each for each in SELECTING if each != ["redrive"]], ids=lambda words: words[0])
def test_a_group_is_needed(shell: Shell, words: list[str]) -> None:
    said = shell("dlq", *words)
    assert (said.status, "--group" in said.err) == (2, True)


@pytest.mark.parametrize("words", SELECTING, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--from", "yesterday"],
            "'yesterday' is no time; write 2026-11-20T10:00, 2026-11-20T10:00+01:00, or a duration ago",
        ),
        (["--until", "5"], "'5' is no time"),
        (["--id", "0"], "0 is not between 1 and"),
        (["--id", "4,x"], "'x' is no whole number"),
        (["--from", "2026-11-20", "--until", "2026-11-19"], "no message can have died between them"),
    ],
)
def test_a_selection_that_makes_no_sense(shell: Shell, words: list[str], options: list[str], said: str) -> None:
    answer = shell("dlq", *words, "--group", "till", *options)
    assert answer.status == 2
    assert said in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["classify", "--group", "g", "--by", "colour"],
            "'colour' is no class of dead letters; write reason, tag, topic, attempt",
        ),
        (["classify", "--group", "g", "--by", "property:"], "or property:NAME"),
        (["classify", "--group", "g", "--by", "tag", "--with", "a:b"], "not allowed with"),
        (["redrive"], "with --group GROUP, or a plan with --plan PLAN"),
        (["redrive", "--plan", "p", "--topic", "orders"], "--topic selects among the dead letters of a group"),
        (["redrive", "--plan", "p", "--id", "4"], "--id selects among the dead letters of a group"),
        (["redrive", "--plan", "p", "--repair", "a:b"], "--repair needs --group GROUP"),
        (["redrive", "--group", "g", "--rate", "100"], "'100' is no rate; write 100/s, 30/m or 500/h"),
        (["redrive", "--group", "g", "--rate", "0/s"], "'0/s' is no rate"),
        (["redrive", "--group", "g", "--repair", "nofunction"], "'nofunction' names no function"),
        (["export", "--group", "g", "--to", "letters.csv"], "letters.csv ends in neither .parquet nor .jsonl"),
        (["export", "--group", "g", "--to", "/no/such/place/x.jsonl"], "/no/such/place is no directory"),
    ],
)
def test_words_that_make_no_sense(shell: Shell, words: list[str], said: str) -> None:
    answer = shell("dlq", *words)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err


def letter(number: int) -> DeadLetter:
    return DeadLetter(number, "till", "orders", None, 1, "", datetime.now().astimezone(), "", f"m{number}")


def test_a_batch_is_bounded_in_what_goes_back_and_in_bytes() -> None:
    judged = [Repaired(letter(each), Repair() if each % 2 else None) for each in range(10)]
    assert [[each.letter.id for each in batch] for batch in batches(judged, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    large = [Repaired(letter(each), Repair(body=b"x" * 60)) for each in range(4)]
    assert [len(batch) for batch in batches(large, 1_000, 100)] == [2, 2]
    assert [len(batch) for batch in batches([Repaired(letter(1), Repair(body="é" * 30))] * 2, 1_000, 100)] == [1, 1]


def test_progress_is_told_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    progress_log = ProgressLog(lambda: now)
    progress_log.write("begun")
    for _ in range(12):
        now += 0.25
        progress_log.progress(f"at {now}")
    assert capsys.readouterr().err.splitlines() == ["begun", "at 1.0", "at 2.0", "at 3.0"]
