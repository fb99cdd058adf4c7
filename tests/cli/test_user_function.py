"""A user's function: found, called, and what it does wrong told with the dead letter it was given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from popclient.admin import DeadLetter
from popclient.cli.arguments import UsageError
from popclient.cli.dead_letters.selection import FunctionFailed, UserFunction

LETTER = DeadLetter(7, "till", "orders", None, 3, "it burnt", datetime(2026, 11, 20, tzinfo=UTC), "", "01ABC")
CODE = """
not_a_function = 3

def kind(letter):
    return letter.reason

def nothing(letter):
    return None

def number(letter):
    return letter.id

def breaks(letter):
    return {}["flight"]

async def later(letter):
    return "x"
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory with the user's modules, which is where the command is run."""
    (tmp_path / "sorting.py").write_text(CODE)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import a_library_of_theirs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("sorting", "broken", "needy"):
        sys.modules.pop(name, None)


def test_it_is_found_in_the_directory_of_the_command() -> None:
    assert UserFunction("sorting:kind", str)(LETTER) == "it burnt"
    assert UserFunction("sorting:nothing", str)(LETTER) is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("sorting", "'sorting' names no function; write module:function, such as fixes:repair"),
        (":kind", "names no function"),
        ("sorting:", "names no function"),
        ("nowhere:kind", "module 'nowhere' is not found, neither in /"),
        ("nowhere.at.all:kind", "module 'nowhere' is not found"),
        ("needy:kind", "module 'needy' needs 'a_library_of_theirs', which is not installed here"),
        ("broken:kind", "module 'broken' cannot be loaded: ZeroDivisionError: division by zero"),
        ("sorting:kinds", "module 'sorting' has no 'kinds'; define it there: def kinds(letter): ..."),
        ("sorting:not_a_function", "module 'sorting' has no callable 'not_a_function'"),
        ("sorting:later", "sorting:later is a coroutine function; it must be an ordinary one"),
    ],
)
def test_what_cannot_be_loaded(written: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        UserFunction(written, str)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("breaks", "raised KeyError: 'flight'"),
        ("number", "returned 7; it must be a str or None"),
    ],
)
def test_what_goes_wrong_in_it_names_the_dead_letter(name: str, said: str) -> None:
    with pytest.raises(FunctionFailed) as failure:
        UserFunction(f"sorting:{name}", str)(LETTER)
    assert failure.value.sentence == f"sorting:{name}, given dead letter 7 (message 01ABC), {said}"
