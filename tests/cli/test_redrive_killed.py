"""popmq dlq redrive, or its server, ended by kill -9 in the midst: it goes on, and each dead letter goes back once."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from popclient import SimpleConsumer
from popclient.admin import Admin, RedrivePlan
from popclient.errors import NotFound
from tests.spark.filled import fill
from tests.support.scripted_server import until, until_in_thread
from tests.support.server_process import clean_environment, served
from tests.support.shell import POPMQ, Shell

COUNT = 60
FIXES = """
from popclient.admin import Repair

def shout(letter):
    return Repair(body=letter.message.text.upper())
"""


@pytest.fixture
def dead(shell: Shell) -> set[str]:
    """The bodies of sixty messages that failed at their only attempt."""
    shell.ok("topic", "create", "flights", "--queues", "2")
    shell.ok("group", "create", "counters", "--max-attempts", "1")
    bodies = {f"flight {number}" for number in range(COUNT)}
    for body in bodies:
        shell.ok("message", "send", "flights", body)
    with SimpleConsumer(shell.endpoint, "counters", "flights", await_duration=5) as consumer:
        left = COUNT
        while left:
            left -= len(consumer.receive())
    shell.broker.clock.advance("31s")
    with Admin(shell.endpoint) as admin:
        until_in_thread(lambda: len(list(admin.dead_letters("counters", without_bodies=True))) == COUNT)
    return bodies


def plan(admin: Admin) -> RedrivePlan | None:
    try:
        return admin.redrive_plan("mine")
    except NotFound:
        return None


@pytest.mark.user("U21")
@pytest.mark.parametrize("repair", [[], ["--repair", "fixes:shout"]], ids=["as they are", "repaired"])
def test_killed_and_run_again(shell: Shell, dead: set[str], tmp_path: Path, repair: list[str]) -> None:
    (tmp_path / "fixes.py").write_text(FIXES)
    words = ["dlq", "redrive", "--group", "counters", "--plan", "mine", *repair, "--endpoint", shell.endpoint]
    with Admin(shell.endpoint) as admin:

        def begun() -> bool:
            found = plan(admin)
            return found is not None and found.redriven > 0

        with subprocess.Popen([POPMQ, *words, "--rate", "30/s"], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
            until_in_thread(begun)
            process.kill()
        left = len(list(admin.dead_letters("counters", without_bodies=True)))
        assert 0 < left < COUNT
        again = subprocess.run([POPMQ, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        assert f"plan mine: {COUNT if not repair else left} sent back, 0 skipped" in again.stdout
        assert list(admin.dead_letters("counters", without_bodies=True)) == []
        record = list(admin.redrives("mine"))
        assert [each.state for each in record] == ["REDRIVEN"] * COUNT
    got: list[str] = []
    with SimpleConsumer(shell.endpoint, "counters", "flights", await_duration=5) as consumer:
        while len(got) < COUNT:
            received = consumer.receive()
            got += [each.text for each in received]
            consumer.ack(received)
        assert consumer.receive(await_duration=0) == []
    assert sorted(got) == sorted(each.upper() if repair else each for each in dead)


@pytest.mark.user("U21")
async def test_a_server_that_comes_back_is_gone_on_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'popmq.db'}"
    fill(url, 90)
    async with served(url) as server:
        words = (
            "dlq",
            "redrive",
            "--group",
            "radar",
            "--plan",
            "mine",
            "--rate",
            "30/s",
            "--endpoint",
            server.endpoint,
        )
        redrive = await asyncio.create_subprocess_exec(POPMQ, *words, stdout=subprocess.PIPE, env=clean_environment())
        try:
            with Admin(server.endpoint) as admin:
                await until(lambda: (found := plan(admin)) is not None and found.redriven > 0)
            await server.kill()
            await server.start()
            said, _ = await redrive.communicate()
        finally:
            if redrive.returncode is None:
                redrive.kill()
        assert (redrive.returncode, said.decode()) == (0, "plan mine: 30 sent back, 0 skipped, 0 not sent yet\n")
