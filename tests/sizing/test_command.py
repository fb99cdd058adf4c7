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
    assert document["load"]["retention"] == 3_600_000
    assert document["stored"] == 3_600_000
    assert document["fits"]
    assert document["limits"][0]["advice"]
    assert document["measured_on"]["at"] == measured().at


def test_a_load_that_does_not_fit_is_an_answer_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = size(capsys, "--rate", "1000000")
    assert status == 0
    assert "this load does not fit: use Postgres and --workers" in out
    assert "more than was measured, so it is computed: " in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rate", "0"), "popmq: --rate 0: at least 0.001"),
        (("--rate", "many"), "'many' is no number"),
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
