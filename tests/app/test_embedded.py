"""A broker inside a program: its options, its clock, and what the package shows of it."""

from __future__ import annotations

import importlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import popserver


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"min_invisble": "1s"}, "^min_invisble: no such setting; did you mean min_invisible"),
        ({"min_invisible": 0.5}, "^min_invisible=0.5: 0.5 is not a duration; write '500ms', '10s'"),
        ({"http_port": 1, "workers": 2}, "an embedded broker is one process; .*http_port: no such setting"),
        ({"alert_secret": ["s3cret"]}, "^alert_secret: (?!.*s3cret)"),
    ],
)
def test_a_wrong_option_is_refused_in_the_words_of_a_settings_file(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence), popserver.embedded(**options):
        pass


def test_durations_may_be_timedeltas() -> None:
    with popserver.embedded(manual_clock=True, min_invisible=timedelta(seconds=10)) as broker:
        assert broker.app.config.min_invisible == 10_000
        before = broker.clock.now_ms()
        broker.clock.advance(timedelta(hours=1))
        assert broker.clock.now_ms() - before == 3_600_000
        with pytest.raises(ValueError, match=r"^0\.5 is not a duration; .* a number is whole milliseconds"):
            broker.clock.advance(0.5)  # type: ignore[arg-type]


def test_waiting_ends_with_the_condition_or_after_the_timeout() -> None:
    with popserver.embedded(manual_clock=True) as broker:
        answers = iter([False, False, True])
        broker.wait_for(lambda: next(answers))
        with pytest.raises(TimeoutError, match=r"not become true in 0\.02 s"):
            broker.wait_for(lambda: False, timeout=0.02)


@pytest.mark.parametrize(
    ("package", "names"),
    [("popserver", "embedded EmbeddedBroker EmbeddedClock"), ("popclient.sql", "Relay"), ("popclient.aio", "Relay")],
)
def test_a_package_lists_what_it_loads_late(package: str, names: str) -> None:
    assert {*names.split()} <= {*dir(importlib.import_module(package))}


def test_a_type_checker_knows_the_names_of_the_package(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "program.py").write_text("import popserver; popserver.EmbeddedClock; popserver.Nonsense")
    files = [str(tmp_path / "program.py"), popserver.__file__]
    said, _, _ = api.run(["--config-file=", "--follow-imports=skip", "--cache-dir=/dev/null", *files])
    assert 'Module has no attribute "Nonsense"' in said
    assert "EmbeddedClock" not in said
