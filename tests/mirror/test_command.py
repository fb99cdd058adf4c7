"""`popmq mirror` as an operator types it: plans, refusals, a second start, kills."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import popserver
from popclient.admin.mirror_facts import MirrorReport
from popclient.mirror.records import record_name
from tests.mirror.pair import Pair, pair
from tests.support.shell import POPMQ
from tests.support.waiting import soon

MESSAGES = 3_000
PATIENCE_S = 60.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path) as both:
        yield both


def command(servers: Pair, *more: str) -> list[str]:
    sides = ["--from", servers.old.endpoint, "--to", servers.new.endpoint]
    return [POPMQ, "--json", "mirror", *sides, "--topic", "orders", *more]


def ran(servers: Pair, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(servers, *more), capture_output=True, text=True, timeout=120, check=False)


def last(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


def test_a_dry_run_tells_all_and_changes_nothing(servers: Pair) -> None:
    with servers.admin(servers.old) as admin:
        admin.create_topic("orders", queue_count=3)
        admin.create_group("billing", max_attempts=4)
    servers.send("orders", "tea")
    with servers.admin(servers.new) as admin:
        admin.create_group("billing")
    done = ran(servers, "--group", "billing", "--dry-run")
    assert done.returncode == 0, done.stderr
    found = last(done.stdout)
    (handover,) = found["handovers"]
    assert (handover["topic"], handover["group"], handover["way"]) == ("orders", "billing", "to the group alone")
    assert found["topics_to_create"] == ["orders"]
    assert any("17 attempts, not 4" in each for each in found["notes"])
    with servers.admin(servers.new) as admin:
        assert admin.list_topics() == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--group", "billing"), "topic orders does not exist at PopMQ"),
        (("--all-groups",), "has no group for orders"),
        (("--to-access-key", "ops"), "POPMQ_TO_ACCESS_SECRET"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(servers: Pair, more: tuple[str, ...], said: str) -> None:
    done = ran(servers, *more)
    assert done.returncode != 0
    assert said in done.stderr
    with servers.admin(servers.new) as admin:
        assert (admin.list_topics(), admin.list_groups()) == ([], [])


@pytest.mark.parametrize(
    ("user", "said"), [(("--from-access-key", "root"), "POPMQ_FROM_ACCESS_SECRET"), ((), "--from-access-key")]
)
def test_who_calls_is_asked_first(servers: Pair, user: tuple[str, ...], said: str) -> None:
    with popserver.embedded(auth=True, admin_access_key="root", admin_secret="root-has-a-secret") as guarded:
        sides = ["--from", guarded.endpoint, *user, "--to", servers.new.endpoint]
        done = subprocess.run(
            [POPMQ, "mirror", *sides, "--topic", "orders"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "POPMQ_FROM_ACCESS_SECRET": "another-one"},
        )
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def test_two_groups_of_message_groups_are_refused(servers: Pair) -> None:
    with servers.admin(servers.old) as admin:
        admin.create_topic("orders", accept_message_types="FIFO")
    servers.make_groups("billing", "audit")
    done = ran(servers, "--group", "billing", "--group", "audit")
    assert (done.returncode != 0, "name one --group" in done.stderr) == (True, True), done.stderr


def test_all_groups_are_found(servers: Pair) -> None:
    servers.make_groups("billing", "audit")
    servers.send("orders", "tea")
    for group in ("billing", "audit"):
        servers.received(servers.old, group, "orders", 1)
    servers.send("orders", "milk")
    done = ran(servers, "--all-groups", "--until-empty")
    assert done.returncode == 0, done.stderr
    assert {each["group"]: each["handed"] for each in last(done.stdout)["mirrors"]} == {"billing": 1, "audit": 1}


def test_a_terminal_has_bars_on_standard_error(servers: Pair) -> None:
    servers.make_groups("billing")
    servers.send("orders", "tea")
    ours, theirs = pty.openpty()
    plain = [each for each in command(servers, "--group", "billing", "--until-empty") if each != "--json"]
    running = subprocess.Popen(plain, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    drawn = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while part := os.read(ours, 65_536):
            drawn += part
    os.close(ours)
    said, _ = running.communicate()
    assert running.returncode == 0
    assert "1 handed over, 0 left" in said
    assert "\x1b" not in said
    assert b"group billing in topic orders" in drawn


def test_it_needs_no_extra(servers: Pair) -> None:
    """Without `rich` there are lines in place of bars."""
    servers.make_groups("billing")
    servers.send("orders", "tea")
    program = "import sys; sys.modules['rich'] = None; from popclient.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = command(servers, "--group", "billing", "--until-empty")[1:]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert last(done.stdout)["mirrors"][0]["handed"] == 1


def test_it_is_not_started_twice_and_the_server_has_its_record(servers: Pair) -> None:
    servers.make_groups("billing")
    servers.send("orders", "tea")
    name = record_name(servers.old.endpoint, servers.new.endpoint, "orders", "billing")
    other = MirrorReport(name, servers.old.endpoint, servers.new.endpoint, "orders", "billing", "other", "elsewhere")
    with servers.admin(servers.new) as admin:
        admin.report_mirror(other, lease=300, claim=True)
        done = ran(servers, "--group", "billing", "--until-empty")
        assert (done.returncode != 0, "runs already on elsewhere" in done.stderr) == (True, True), done.stderr
        admin.report_mirror(replace(other, state="STOPPED"))
        done = ran(servers, "--group", "billing", "--until-empty")
        assert done.returncode == 0, done.stderr
        (record,) = admin.list_mirrors()
    assert (record.state, record.handed, record.lag) == ("DONE", 1, 0)


def test_a_killed_mirror_goes_on_and_nothing_is_lost_or_twice(servers: Pair, tmp_path: Path) -> None:
    with servers.admin(servers.old) as admin:
        admin.create_topic("orders")
    servers.make_groups("billing")
    ids = set(servers.send_many("orders", MESSAGES))
    state = ["--group", "billing", "--state", str(tmp_path / "state")]
    running = subprocess.Popen(command(servers, *state), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    soon(lambda: servers.stored(servers.new, "%RETRY%billing") > MESSAGES // 10, within_s=PATIENCE_S)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert servers.stored(servers.new, "%RETRY%billing") < MESSAGES
    servers.old.clock.advance("61s")  # the holds of the mirror that is gone
    done = ran(servers, *state, "--until-empty")
    assert done.returncode == 0, done.stderr
    found = servers.received_ids(servers.new, "billing", "orders", MESSAGES)
    assert len(found) == MESSAGES
    assert set(found) == ids


def test_a_stopped_mirror_gives_back_what_it_holds(servers: Pair) -> None:
    servers.make_groups("billing")
    servers.send("orders", "tea")
    running = subprocess.Popen(command(servers, "--group", "billing"), stdout=subprocess.DEVNULL)
    soon(lambda: servers.stored(servers.new, "%RETRY%billing") == 1, within_s=PATIENCE_S)
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    with servers.admin(servers.new) as admin:
        (record,) = admin.list_mirrors()
    assert (record.state, record.handed) == ("STOPPED", 1)
