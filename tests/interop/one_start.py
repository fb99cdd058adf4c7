"""One start of an official client, in a process of its own: what its user is told, by an error or by its log.

Python and Node are driven through the pipe of `official.py`; Java, Go and Rust have a small program each, which is
built once per version of its sources and kept beside the environment that runs the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.interop.official import HERE, PATIENCE_S, Program
from tests.support.built import Build, CannotBuild, built, do, do_without

LOOKS_EVERY_S = 0.05


class Start(NamedTuple):
    """Who starts, and with what."""

    language: str
    kind: str  # push, simple, lite or producer
    group: str
    expression: str = "*"  # anything but this is SQL
    topic: str = "flights"

    @property
    def is_sql(self) -> bool:
        return self.expression != "*"


# ---- Building ----


def _go(sources: Path, made: Path) -> list[str]:
    do(["go", "build", "-o", str(made / "refusals"), "."], sources)
    return [str(made / "refusals")]


def _rust(sources: Path, made: Path) -> list[str]:
    # Cargo writes its lock beside the sources.
    shutil.copytree(sources, made / "sources", dirs_exist_ok=True)
    do(["cargo", "build", "--quiet", "--target-dir", str(made / "target")], made / "sources")
    shutil.copy(made / "target" / "debug" / "refusals", made)
    shutil.rmtree(made / "target")  # half a gigabyte
    return [str(made / "refusals")]


def _java(sources: Path, made: Path) -> list[str]:
    jars = made / "jars"
    pom = str(sources / "pom.xml")
    do(["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"], made)
    do(["javac", "-cp", f"{jars}/*", "-d", str(made), str(sources / "Refusals.java")], made)
    return ["java", "-cp", f"{jars}/*:{made}", "-Drocketmq.log.root={log}", "Refusals"]


BUILDS: dict[str, Build] = {"go": _go, "rust": _rust, "java": _java}


def _built(language: str) -> list[str]:
    """The command that runs the language's program; raises CannotBuild."""
    return built(f"interop-{language}", HERE / language, BUILDS[language])


# ---- Running ----

Line = dict[str, Any]  # outcome ("started", "refused" or "served") and words


def told(start: Start, words: str, where: str, endpoint: str, home: Path, signing: Mapping[str, str]) -> None:
    """Returns once the user was told the words, where: by an "error" or in the "log".

    Raises AssertionError with all that was said instead.
    """
    said = ""
    for lines, has_ended in _runs(start, endpoint, home, signing):
        said = "\n".join(line["words"] for line in lines) if where == "error" else _log_below(home)
        if words in said:
            return
        if has_ended:
            break
    raise AssertionError(f"{start} was not told {words!r} by its {where} but: {said[-3_000:]}")


def outcomes(start: Start, endpoint: str, home: Path, signing: Mapping[str, str]) -> list[str]:
    """What became of the start, and of the first call after it."""
    *_, (lines, _) = _runs(start, endpoint, home, signing)
    return [line["outcome"] for line in lines]


@contextlib.contextmanager
def started(start: Start, endpoint: str, home: Path) -> Iterator[None]:
    """The client has started, and lives as long as the block; one that has no call to make (a push consumer)."""
    with contextlib.closing(_runs(start, endpoint, home, {})) as runs:
        lines, has_ended = next(runs)
        while not lines:
            assert not has_ended, f"{start} has not started: {_log_below(home)[-3_000:]}"
            lines, has_ended = next(runs)
        assert lines[0]["outcome"] == "started", lines
        yield


def _runs(start: Start, endpoint: str, home: Path, signing: Mapping[str, str]) -> Generator[tuple[list[Line], bool]]:
    """What the start has said so far, again and again, and whether that is all."""
    environment = {**os.environ, "HOME": str(home), **signing}
    run = _through_a_pipe if start.language in ("python", "node") else _in_a_program
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.closing(run(start, endpoint, home, environment)) as running:
        for lines, has_ended in running:
            is_over = has_ended or time.monotonic() > deadline
            yield lines, is_over
            if is_over:
                return
            time.sleep(LOOKS_EVERY_S)


def _log_below(home: Path) -> str:
    text = "".join(path.read_text(errors="replace") for path in home.rglob("*") if path.is_file())
    return text.replace("\\'", "'")  # as Java quotes it


def _in_a_program(
    start: Start, endpoint: str, home: Path, environment: dict[str, str]
) -> Generator[tuple[list[Line], bool]]:
    filter_type = "sql" if start.is_sql else "tag"
    command = [part.format(log=home) for part in _built(start.language)]
    command += [endpoint, start.kind, start.group, start.topic, filter_type, start.expression, str(home)]
    output = home.parent / f"{home.name}.out"
    with output.open("w") as stdout, (home / "stderr").open("w") as stderr:
        process = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
    try:
        while True:
            has_ended = process.poll() is not None
            yield [json.loads(line) for line in output.read_text().splitlines(keepends=True) if "\n" in line], has_ended
    finally:
        process.kill()
        process.wait()


def _through_a_pipe(
    start: Start, endpoint: str, home: Path, environment: dict[str, str]
) -> Generator[tuple[list[Line], bool]]:
    program = Program(start.language, endpoint, environment)
    options: dict[str, Any] = {"group": start.group, "topics": {start.topic: start.expression}, "sql": start.is_sql}
    options |= {"fail": 0, "poison": "", "how": "return", "waits": False, "namespace": "", "await_s": 20}
    try:
        answer = program.ask("open", kind=start.kind, client="it", **options)
        while not answer.done():
            yield [], False
        if answer.exception() is None and start.kind == "simple":
            answer = program.ask("receive", client="it", count=1, invisible_s=15)
        while not answer.done() or answer.exception() is None:
            yield [], False
        yield [{"outcome": "refused", "words": str(answer.exception())}], True
    finally:
        program.kill()


def have(language: str, request: pytest.FixtureRequest) -> None:
    """The client, installed or built; the test is skipped without it, but not in CI."""
    if language == "node":
        request.getfixturevalue("node_modules")
    if language in BUILDS:
        try:
            _built(language)
        except CannotBuild as missing:
            do_without(str(missing))
