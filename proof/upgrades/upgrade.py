"""One store of an earlier version: filled, upgraded with a kill before every statement, judged, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from popserver.database.migrate import FIRST
from proof.upgrades import stores
from proof.upgrades.aftermath import go_on
from proof.upgrades.servers import Served, refusal, serving, stepping
from proof.upgrades.versions import Version, this_one

PROGRAM = Path(__file__).with_name("client_program.py")
CLIENT_WITHIN_S = 120.0
STATEMENTS_MAX = 1_000
FUTURE = "9999"


@dataclass
class Result:
    """What was done and found."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def found(self, where: str, what: list[str]) -> None:
        self.violations += [f"{where}: {each}" for each in what]


def client(version: Version, verb: str, endpoint: str) -> dict[str, Any]:
    """What a client of that version says, as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), verb, endpoint],
        env=version.environment, cwd=version.folder, capture_output=True, text=True, check=False,
        timeout=CLIENT_WITHIN_S,
    )  # fmt: skip
    assert done.returncode == 0, f"a client of {version} failed at {verb}: {done.stderr[-2_000:]}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def fill(version: Version, database_url: str) -> dict[str, Any]:
    """A store of that version's own server, which is killed (-9) afterwards."""
    with serving(version, database_url) as server:
        return client(version, "fill", server.endpoint)


def upgrade(
    version: Version, database_url: str, to: Version | None = None, *, every: int = 1, fault: str = "none"
) -> Result:
    """Fill, kill before each `every`-th statement until the migration to version `to` is done, judge, go on.

    `to`: this checkout, unless given. `fault`: what `proof.upgrades.planted` breaks in the migration.
    """
    to = to or this_one()
    result = Result(Counter(stores=1))
    told = fill(version, database_url)
    before = stores.content(database_url)
    at = 1
    while True:
        if (said := _killed(to, database_url, at, fault)) is not None:
            result.found(f"going on to statement {at}", [said])
            return result
        after = stores.content(database_url)
        if stores.revision(after) == to.revision:
            result.counts["kills_after_the_commit"] += 1
            break
        result.counts["kills_in_mid_migration"] += 1
        if after != before:
            result.found(f"killed before statement {at}", stores.differences(before, after) or ["the schema changed"])
        at += every
        assert at < STATEMENTS_MAX, f"{version} is not upgraded after {at} statements"
    result.found("migrated", stores.differences(before, after))
    result.found("migrated", stores.unsound(database_url))
    if result.violations:
        return result
    _old_server(version, to, database_url, result)
    with serving(to, database_url) as server:
        result.found("gone on", go_on(server.endpoint, database_url, told))
    result.found("in the end", stores.unsound(database_url))
    return result


def _killed(to: Version, database_url: str, at: int, fault: str) -> str | None:
    """What a server said that did not get as far as to kill itself; None of one that did."""
    server = Served(to, database_url, under=stepping("kill", str(at), fault))
    code = server.ended()
    return None if code == -signal.SIGKILL else f"the server ended with {code}: {server.said()}"


def _old_server(version: Version, to: Version, database_url: str, result: Result) -> None:
    """The old server on the new store, and the new one on a store of the future: refused, and nothing is changed."""
    _refused(version, database_url, f"newer than this popmq's {version.revision}", result)
    stores.set_revision(database_url, FUTURE)
    _refused(to, database_url, f"has schema {FUTURE}, newer than this popmq's {to.revision}", result)
    stores.set_revision(database_url, to.revision)


def too_old(version: Version, database_url: str) -> Result:
    """A store of a version that no migration leads from: refused by a sentence, and unchanged."""
    assert version.revision < FIRST, version
    result = Result(Counter(stores=1))
    with serving(version, database_url) as server:
        told = client(version, "round", server.endpoint)
    assert told["send, receive, ack"] == "ok", told
    _refused(this_one(), database_url, f"has schema {version.revision} of a development version", result)
    with serving(version, database_url):
        pass  # its own server still uses it
    return result


def _refused(version: Version, database_url: str, sentence: str, result: Result) -> None:
    before, bytes_before = stores.content(database_url), stores.fingerprint(database_url)
    said = refusal(version, database_url)
    result.counts["refusals"] += 1
    where = f"{version} at a store that it must refuse"
    if said is None:
        result.found(where, ["it did not refuse it"])
    elif not said.is_plain or sentence not in said.said:
        result.found(where, [f"it ended with {said.code} and said {said.said!r}"])
    if stores.content(database_url) != before or stores.fingerprint(database_url) != bytes_before:
        result.found(where, ["it changed the store"])


def two_at_once(version: Version, database_url: str, to: Version | None = None, *, at: int, killed: bool) -> Result:
    """Two servers on one Postgres: the first stops before statement `at`, the second waits; the first goes on, or dies.

    That the second waits is read from Postgres; the tables are locked until the first has ended.
    """
    to = to or this_one()
    result = Result(Counter(stores=1, pairs_that_migrate_at_once=1))
    told = fill(version, database_url)
    first = Served(to, database_url, under=stepping("stop", str(at), "none"))
    second: Served | None = None
    try:
        _stopped(first.process.pid)
        second = Served(to, database_url)
        _until(lambda: stores.waits_for_lock(database_url), "the second server waits for the first")
        if killed:
            first.kill()
            result.counts["kills_in_mid_migration"] += 1
        else:
            os.kill(first.process.pid, signal.SIGCONT)
            first.ready()
        second.ready()
        result.found("two at once", go_on(second.endpoint, database_url, told))
    finally:
        first.kill()
        if second is not None:
            second.kill()
    result.found("two at once", stores.unsound(database_url))
    return result


def _stopped(pid: int) -> None:
    def is_stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    _until(is_stopped, "the first server stops in the migration")


def _until(is_so: Any, what: str) -> None:
    ends_s = time.monotonic() + CLIENT_WITHIN_S
    while not is_so():
        assert time.monotonic() < ends_s, f"never: {what}"
        time.sleep(0.05)
