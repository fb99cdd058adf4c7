"""The plugin that counts requirements, in runs of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[2]
CONFTEST = """
from pathlib import Path
from tests.support.requirement_rows import Rows

def pytest_configure(config):
    config.pluginmanager.register(Rows(config, Path(__file__).with_name("rows.txt")))
"""
SUITE = """
import pytest

@pytest.mark.row("A1")
def test_passes():
    pass

@pytest.mark.row("A2")
@pytest.mark.skipif("{quick}" == "skipped", reason="told to")
def test_quick():
    pass

@pytest.mark.full
@pytest.mark.row("A2")
@pytest.mark.skipif("{full}" == "skipped", reason="told to")
def test_full():
    pass

@pytest.mark.slow
@pytest.mark.row("{slow}")
def test_slow():
    pass
"""
QUICK = ("-m", "not slow and not full")
FULL = ("-m", "full and not slow")


class Suite:
    """A small suite in a folder of its own; `run` says whether a run passed, and what it said."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        pytester.makeconftest(CONFTEST)
        pytester.makefile(
            ".ini",
            pytest="[pytest]\ntestpaths = test_suite.py\naddopts = --import-mode=importlib\n"
            "markers =\n  row(name): x\n  user(name): x\n  full: x\n  slow: x\n",
        )
        self.write()

    def write(self, *, claims: str = "A1 A2", quick: str = "", full: str = "", slow: str = "A2") -> None:
        (self._pytester.path / "rows.txt").write_text(claims)
        (self._pytester.path / "test_suite.py").write_text(SUITE.format(quick=quick, full=full, slow=slow))

    def run(self, *arguments: str, processes: int = 0) -> tuple[bool, str]:
        if processes:
            result = self._pytester.runpytest_subprocess("-p", "xdist", "-n", str(processes), *arguments)
        else:
            result = self._pytester.runpytest_inprocess(*arguments)
        assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), result.stdout.str()
        assert result.parseoutcomes().get("failed", 0) == 0
        return result.ret == pytest.ExitCode.OK, result.stdout.str()


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("CI", "true")
    return Suite(pytester)


@pytest.mark.parametrize("part", [(), QUICK, FULL, ("-m", "slow")], ids=["all", "quick", "full", "slow"])
@pytest.mark.parametrize("ci", ["true", ""])
def test_a_claimed_row_without_a_test_fails_every_run_of_the_suite(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, part: tuple[str, ...], ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    assert suite.run(*part)[0]
    suite.write(claims="A1 A2 B7")
    passed, said = suite.run(*part)
    assert not passed
    assert "rows.txt claims rows that no test carries: B7" in said


@pytest.mark.parametrize("some", [("test_suite.py",), ("-k", "passes"), ("--deselect", "test_suite.py::test_full")])
def test_a_run_of_named_tests_says_nothing_of_other_rows(suite: Suite, some: tuple[str, ...]) -> None:
    suite.write(claims="A1 A2 B7", quick="skipped", full="skipped")
    assert suite.run(*some)[0]


def test_a_row_whose_tests_were_all_skipped_fails_in_ci_alone(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write(quick="skipped", full="skipped")
    passed, said = suite.run("-m", "not slow")
    assert not passed
    assert "claimed, but every test of them was skipped, which fails in CI: A2" in said
    monkeypatch.delenv("CI")
    passed, said = suite.run("-m", "not slow")
    assert passed
    assert "claimed, but only skipped: A2" in said


@pytest.mark.parametrize(
    ("quick", "full", "expected"),
    [
        ("", "", (True, True)),
        ("skipped", "", (True, True)),
        ("", "skipped", (True, True)),
        ("skipped", "skipped", (True, False)),
    ],
)
def test_the_parts_of_a_divided_ci_run_know_of_each_other(
    suite: Suite, quick: str, full: str, expected: tuple[bool, bool]
) -> None:
    suite.write(quick=quick, full=full)
    assert (suite.run(*QUICK)[0], suite.run(*FULL)[0]) == expected


def test_without_a_cache_it_judges_by_the_run_alone(suite: Suite) -> None:
    suite.write(quick="skipped", full="skipped")
    assert suite.run(*QUICK, "-p", "no:cacheprovider")[0]
    assert not suite.run("-m", "not slow", "-p", "no:cacheprovider")[0]


def test_a_test_that_was_skipped_once_and_passes_now_shows_its_row(suite: Suite) -> None:
    suite.write(quick="skipped", full="skipped")
    suite.run(*QUICK)
    suite.write(full="skipped")
    assert suite.run(*QUICK)[0] and suite.run(*FULL)[0]


def test_a_row_that_only_slow_tests_show_fails_in_ci_alone(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write(claims="A1 A2 A3", slow="A3")
    passed, said = suite.run(*QUICK)
    assert not passed
    assert "claimed, but every test of them is slow, which fails in CI: A3" in said
    monkeypatch.delenv("CI")
    assert suite.run(*QUICK)[0]


@pytest.mark.full
def test_in_several_processes_it_is_the_same(suite: Suite) -> None:
    assert suite.run(*QUICK, processes=2)[0]
    suite.write(quick="skipped", full="skipped")
    assert suite.run(*QUICK, processes=2)[0]
    assert not suite.run(*FULL, processes=2)[0]
    suite.write(claims="A1 A2 B7")
    passed, said = suite.run(*QUICK, processes=2)
    assert not passed and "no test carries: B7" in said
