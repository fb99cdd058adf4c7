"""`popmq size` as it is typed."""

from __future__ import annotations

import json

import pytest

import popclient.cli
from popserver.sizing.units import measured


def size(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    try:
        status = popclient.cli.main(["size", *words])
    except SystemExit as ended:
        status = int(ended.code or 0)
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_it_answers_in_plain_words(capsys: pytest.CaptureFixture[str], database: str) -> None:
    words = ("--rate", "100", "--groups", "3", "--dead", "0.1", "--idle-polls", "20000", "--database", database)
    status, out, _ = size(capsys, *words)
    assert status == 0
    assert out.startswith(f"100 messages a second, stored for 3 days, to 3 groups, on {database}:\n")
    for each in ("disk ", "dead letters, until they are deleted", "processors ", "memory ", "servers ", "first limit "):
        assert each in out
    assert "--max-connections" in out
    assert measured().machine in out
    assert ("for Postgres" in out) == (database == "postgres")


def test_it_answers_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = size(capsys, "--rate", "1e3", "--retention", "1h", "--json", "--database", "postgres")
    document = json.loads(out)
    assert status == 0
    assert document["load"]["retention_ms"] == 3_600_000
    assert document["load"]["hold_ms"] == 1_000
    assert document["load"]["average_rate"] == 1_000
    assert document["stored"] == 3_600_000
    assert document["fits"]
    assert document["limits"][0]["advice"]
    assert document["measured_on"]["at"] == measured().at


def test_a_load_that_does_not_fit_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = size(capsys, "--rate", "1000000")
    assert status == 0
    assert "this load does not fit one server on SQLite, which has one core: use Postgres and --workers" in out
    assert "divide the topics among several brokers" in out
    assert "more than was measured, so it is computed: " in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rate", "0"), "popmq: --rate 0: at least 0.001"),
        (("--rate", "many"), "'many' is no number"),
        (("--rate", "1,5"), "'1,5' is no number; write 1.5"),
        (("--rate", "1000,25"), "'1000,25' is no number; write 1000.25"),
        (("--rate", "5", "--groups", "1,5"), "'1,5' is no whole number; write 10000"),
        (("--rate", "5", "--average-rate", "6"), "--average-rate 6 is more than --rate 5"),
        (("--rate", "5", "--groups", "1.5"), "'1.5' is no whole number"),
        (("--rate", "5", "--retention", "3 weeks"), "'3 weeks' is not a duration"),
        ((), "the following arguments are required: --rate"),
    ],
)
def test_nonsense_is_wrong_usage(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str) -> None:
    status, out, err = size(capsys, *words)
    assert status == 2
    assert out == ""
    assert sentence in err


def test_numbers_may_have_thousands(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rate", "1,234,567.5", "--average-rate", "1_000", "--groups", "1,000", "--json")
    status, out, _ = size(capsys, *words)
    load = json.loads(out)["load"]
    assert status == 0
    assert (load["rate"], load["average_rate"], load["groups"]) == (1_234_567.5, 1_000, 1_000)


def test_one_of_each_is_said_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = size(capsys, "--rate", "1", "--database", "postgres")
    assert "to 1 group, on postgres" in out
    assert "1 process on one Postgres\n" in out
    assert "--workers 1" not in out


def test_a_load_with_several_limits_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = size(capsys, "--rate", "1000000", "--idle-polls", "50000", "--database", "postgres")
    assert "this load does not fit connections to Postgres" in out
    assert "this load does not fit connections of clients" in out


def test_a_light_load_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = size(capsys, "--rate", "100", "--json")
    found = json.loads(out)
    assert found["server_cores"] < found["server_cores_max"] <= 1
    _, out, _ = size(capsys, "--rate", "100")
    assert f"up to {found['server_cores_max']:.2f} cores for the server, if each request comes alone" in out


def test_the_help_says_each_default_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = size(capsys, "--help")
    words = " ".join(out.split())
    assert "how long messages are stored (72h)" in words
    assert "messages in a receive (32)" in words
    assert "messages sent in a second, at the peak --average-rate" in words
